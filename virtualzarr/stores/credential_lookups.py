"""Look-ups of credentials that are under way: none waits for itself, nor keeps what others need.

What looks credentials up may read what needs other ones, and so on, in any thread or event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from virtualzarr.errors import AccessError
from virtualzarr.stores.forks import ForkSafeLock

T = TypeVar("T")

PATIENCE = 300.0
"""For how many seconds others wait for a look-up, in which a user may have to log in."""


class HasLookup(Protocol):
    """Whose credentials are looked up.

    Attributes
    ----------
    lookup : Lookup or None
        The one that is under way.
    turns : mapping of event loops to locks
        Of those in a loop who need it, one at a time keeps a thread.
    """

    prefix: str
    lookup: Lookup | None
    turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]


class Lookup:
    """A look-up that is under way.

    Attributes
    ----------
    awaited : list of HasLookup
        What it waits for.
    asks_itself : bool
        Whether it would have had to wait for itself.
    """

    def __init__(self, provider: HasLookup) -> None:
        self.provider = provider
        self.awaited: list[HasLookup] = []
        self.asks_itself = False


# Of what is done in this thread, and in event loops and threads that do it for this one.
_own_lookups: ContextVar[tuple[Lookup, ...]] = ContextVar("own_lookups", default=())
_noting = ForkSafeLock()


def is_looking_up() -> bool:
    """Whether this is done for a function that looks credentials up."""
    return bool(_own_lookups.get())


@contextmanager
def looking_up(provider: HasLookup) -> Iterator[Lookup]:
    """Note that credentials are looked up meanwhile."""
    lookup = provider.lookup = Lookup(provider)
    token = _own_lookups.set((*_own_lookups.get(), lookup))
    try:
        yield lookup
    finally:
        _own_lookups.reset(token)
        provider.lookup = None


@contextmanager
def waiting_for(provider: HasLookup) -> Iterator[None]:
    """Note that credentials are waited for meanwhile.

    Raises
    ------
    AccessError
        It is for these that they are looked up: both would wait for ever.
    """
    lookups = _own_lookups.get()
    if not lookups:
        yield
        return
    with _noting:  # of two that ask one another, the second notices it
        lookup = _find_circle(provider, lookups)
        if lookup is None:
            lookups[-1].awaited.append(provider)
    if lookup is not None:
        lookup.asks_itself = True
        raise AccessError(
            "what looks credentials up reads what needs them: credentials for "
            f"{lookup.provider.prefix}"
        )
    try:
        yield
    finally:
        lookups[-1].awaited.remove(provider)


def _find_circle(provider: HasLookup, own: tuple[Lookup, ...]) -> Lookup | None:
    """Return the one of our own look-ups that a provider waits for, or is of, if any is."""
    providers, seen = [provider], set[int]()
    while providers:
        provider = providers.pop()
        if id(provider) in seen:
            continue
        seen.add(id(provider))
        for lookup in own:
            if lookup.provider is provider:
                return lookup
        if (others := provider.lookup) is not None:
            providers += others.awaited
    return None


async def call_in_turn(provider: HasLookup, function: Callable[..., T], *values: Any) -> T:
    """Call what may look credentials up, in a thread of its own, and await what it returns.

    The default threads of an event loop are few: with all of them waiting for one credential, none
    would be left for what its look-up needs.
    """
    turn = provider.turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    with waiting_for(provider):
        try:
            await asyncio.wait_for(turn.acquire(), PATIENCE)
        except TimeoutError:
            raise late_error(provider) from None
        try:
            return await _call_in_thread(provider, function, *values)
        finally:
            turn.release()


def late_error(provider: HasLookup) -> AccessError:
    """Return the error for who has waited too long for what another one looks up."""
    return AccessError(
        f"others look them up for longer than {PATIENCE:g} s; what they do waits for itself, "
        "perhaps, by reading what needs them in a thread of its own: credentials for "
        f"{provider.prefix}"
    )


async def _call_in_thread(provider: HasLookup, function: Callable[..., T], *values: Any) -> T:
    loop, context = asyncio.get_running_loop(), copy_context()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():  # nobody waits any more
            set_outcome(value)

    def call() -> None:
        settled: tuple[Callable[[Any], None], Any]
        try:
            settled = outcome.set_result, context.run(function, *values)
        except Exception as error:
            settled = outcome.set_exception, error
        except BaseException as error:  # such as an exit, which would end the event loop
            problem = f"what looks them up failed with {type(error).__name__}"
            settled = (
                outcome.set_exception,
                AccessError(f"{problem}: credentials for {provider.prefix}"),
            )
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, *settled)

    Thread(target=call, name="virtualzarr-credentials", daemon=True).start()
    return await outcome
