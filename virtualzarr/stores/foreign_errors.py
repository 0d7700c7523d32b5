"""Exceptions of other libraries, without what they have of requests and answers.

Keys and signatures are there; messages, `repr` and pickles show them, and error trackers record all
of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from virtualzarr.redaction import hide_secrets

_HIDDEN = frozenset(["request", "response", "headers"])
"""Names of attributes that have requests and answers, each in some library."""

_NAMED = ("Code", "Message")
"""What is kept where a service describes an error: the rest may be a token, or what was signed."""


def hide_requests(error: BaseException) -> None:
    """Take requests and answers out of an exception, its causes and contexts.

    Statuses, codes and messages stay.
    """
    for each in _walk(error):
        changed: Any = each
        request: Any = getattr(each, "request_info", None)
        if request is not None:
            urls = _as_bare(request.url), _as_bare(request.real_url)
            bare = type(request)(urls[0], request.method, {}, urls[1])
            # Earlier responses of the same request have its headers, too.
            changed.request_info, changed.history = bare, ()
            each.args = (bare, (), *each.args[2:])
        for name in _HIDDEN & vars(each).keys():
            vars(each)[name] = _as_bare_answer(vars(each)[name])
        if any(isinstance(text, str) for text in each.args):
            each.args = tuple(
                hide_secrets(text) if isinstance(text, str) else text for text in each.args
            )


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


def _as_bare_answer(response: Any) -> Any:
    """Return status, code and message of what botocore has of an answer; None of all else."""
    if not isinstance(response, Mapping) or "Error" not in response:
        return None
    error, answer = response["Error"], response.get("ResponseMetadata") or {}
    return {
        "Error": {name: error[name] for name in _NAMED if name in error},
        "ResponseMetadata": {"HTTPStatusCode": answer.get("HTTPStatusCode")},
    }
