"""Watching a folder from the command line, and what is printed."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from virtualzarr.cli.option_names import in_options
from virtualzarr.cli.stopping import AbandonedError, find_stop
from virtualzarr.dataset.watch import Event, Watch


class Printer:
    """Prints what a watch tells: lines of text, or of JSON for programs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.as_json, self.quiet = options.json, options.quiet
        self.parser = options.parser

    def __call__(self, event: Event) -> None:
        """Print an event, so that who reads a pipe has it at once."""
        if self.as_json:
            self.put(
                event=event.kind, files=event.files, version=event.version,
                commit=event.commit or None, error=event.error or None, retry_in=event.retry_in,
            )  # fmt: skip
        elif event.error:
            where = f"{event.files[0]}: " if event.files else ""
            again = "until it changes" if event.retry_in is None else f"for {event.retry_in:g} s"
            left = "left out" if event.files else "waiting"
            error = in_options(event.error, self.parser)
            text = f"virtualzarr: warning: {where}{error}; {left} {again}"
            print(text, file=sys.stderr, flush=True)
        elif event.kind == "version unknown" and not self.quiet:
            print(f"already there, in which version is not known: {_list(event.files)}", flush=True)
        elif event.kind == "commit" and not self.quiet:
            plural = "s" * (len(event.files) != 1)
            count, names = len(event.files), _list(event.files)
            print(f"version {event.version}: {count} file{plural}: {names}", flush=True)

    def put(self, **members: Any) -> None:
        """Print a line of JSON without the members that are None."""
        document = {name: value for name, value in members.items() if value is not None}
        print(json.dumps(document), flush=True)

    def say(self, text: str, **members: Any) -> None:
        """Print how the watch goes."""
        if self.as_json:
            self.put(**members)
        elif not self.quiet:
            print(text, flush=True)


def _list(files: Sequence[str]) -> str:
    names = ", ".join(file.rpartition("/")[2] for file in files[:5])
    return names + ", ..." * (len(files) > 5)


def run_watch(watch: Watch, poll: float, once: bool, printer: Printer) -> int:
    """Watch until a signal comes, or once through all there is; return the exit code."""
    stop = find_stop()
    arrivals = watch.arrivals
    with stop.on_signals():
        try:
            with arrivals.listen(stop.wake) as is_told:
                # Listing goes on beside: events get lost, and other machines' writes have none.
                way = "by events and listing" if is_told else "by listing"
                printer.say(
                    f"watching {arrivals.folder} {way} for {watch.dataset.path}",
                    event="watching", folder=arrivals.folder, dataset=watch.dataset.path,
                    events=bool(is_told),
                )  # fmt: skip
                while not stop:
                    due = watch.step(lambda: bool(stop))
                    if once and not watch.is_waiting:
                        break
                    if not stop:
                        stop.wait(poll if due is None else min(poll, max(due, 0.01)))
        except AbandonedError:
            # Files are told by name when it is started anew: nothing comes twice.
            text = "stopped; a commit that was under way may be done or not"
            if printer.as_json:
                printer.put(event="abandoned", signal=stop.signal)
            print(f"virtualzarr: {text}", file=sys.stderr)
            return 128 + stop.signal
    left = arrivals.open
    if stop:
        name = signal.Signals(stop.signal).name
        printer.say(f"stopped by {name}", event="stopped", signal=name, open=left)
        # Who interrupts a program wants what called it to stop as well; a service has ended well.
        return 130 if stop.signal == signal.SIGINT else 0
    printer.say(
        f"left out: {len(left):,} of the files" if left else "nothing is left to do",
        event="stopped", open=left,
    )  # fmt: skip
    return 1 if left else 0
