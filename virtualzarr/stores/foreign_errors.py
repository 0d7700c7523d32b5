"""Exceptions of other libraries, without what they have of requests and answers.

Keys and signatures are there; messages, `repr` and pickles show them, and error trackers record all
of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from virtualzarr.redaction import hide_known, hide_secrets

_HIDDEN = frozenset(["request", "response", "headers"])
"""Names of attributes that have requests and answers, each in some library."""

NAMED = ("Code", "Message")
"""What is kept where a service describes an error: the rest may be a token, or what was signed."""

_PARSING = "aiohttp.http_exceptions"
"""Where exceptions are that quote answers, such as a cookie in a line that is no header."""

_QUOTE = re.compile(r":?\s+b?['\"].*|:\n.*", re.DOTALL)


def is_nobody_there(error: BaseException, *, has_answered: bool) -> bool:
    """Tell whether aiohttp could not connect since there is no such server: a wrong name or port.

    One that has answered this process is there: it starts anew, or takes no more connections.

    Examples
    --------
    >>> is_nobody_there(ConnectionResetError(), has_answered=False)
    False
    """
    import aiohttp

    if isinstance(error, aiohttp.ClientSSLError):
        return True  # what it shows is wrong, and stays so
    is_reset = isinstance(getattr(error, "os_error", None), ConnectionResetError)
    return isinstance(error, aiohttp.ClientConnectorError) and not (has_answered or is_reset)


def hide_requests(error: BaseException, secrets: Collection[str] = ()) -> None:
    """Take requests and answers out of an exception, its causes and contexts.

    Statuses, codes and messages stay, without secrets that are known: services repeat them.
    """

    def hide(value: Any) -> Any:
        # The known ones first: of one with `&sig=` in it, the other would leave half.
        return hide_secrets(hide_known(value, secrets)) if isinstance(value, str) else value

    for each in _walk(error):
        changed: Any = each
        request: Any = getattr(each, "request_info", None)
        if request is not None:
            urls = _as_bare(request.url), _as_bare(request.real_url)
            bare = type(request)(urls[0], request.method, {}, urls[1])
            # Earlier responses of the same request have its headers, too.
            changed.request_info, changed.history = bare, ()
            each.args = (bare, (), *each.args[2:])
        _hide_quotes(each)
        for name, value in vars(each).items():
            if name in _HIDDEN:
                vars(each)[name] = _as_bare_answer(value, hide)
            elif not name.startswith("_"):  # such as the URL of our own errors, which hide it
                vars(each)[name] = hide(value)
        each.args = tuple(map(hide, each.args))
        if isinstance(each, OSError) and isinstance(each.strerror, str):
            each.strerror = hide(each.strerror)


def _hide_quotes(error: Any) -> None:
    """Take quotes of answers that cannot be parsed out of exceptions of aiohttp."""
    if type(error).__module__ == _PARSING:
        message = _QUOTE.sub("", error.message)
        vars(error).clear()  # the line is in other attributes, too
        error.message, error.args = message, (message,)
    elif type(error.__cause__).__module__ == _PARSING and hasattr(error, "message"):
        error.message = _QUOTE.sub("", error.message)


def _walk(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it comes from, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


def _as_bare(url: Any) -> Any:
    return url.with_query(None).with_user(None)


def _as_bare_answer(response: Any, hide: Callable[[Any], Any]) -> Any:
    """Return status, code and message of what botocore has of an answer; None of all else."""
    if not isinstance(response, Mapping) or "Error" not in response:
        return None
    error, answer = response["Error"], response.get("ResponseMetadata") or {}
    return {
        "Error": {name: hide(error[name]) for name in NAMED if name in error},
        "ResponseMetadata": {"HTTPStatusCode": answer.get("HTTPStatusCode")},
    }
