"""JSON documents: bytes to JSON values and back, and errors that name the member at fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from grids import GridError
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError
from virtualzarr.errors import short as short
from virtualzarr.redaction import take_message

MAX_NDIM = 64
MAX_EXTENT = 2**63 - 1


def loads_json(data: bytes | str) -> Any:
    """Parse a JSON document, tolerating the bare `NaN` and `Infinity` that numpy users write.

    Raises
    ------
    MetadataError
        The bytes are not UTF-8 or not JSON, or an object has the same member twice.

    Examples
    --------
    >>> loads_json(b'{"shape": [2, 3]}')
    {'shape': [2, 3]}
    """
    try:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        message = take_message(error)
        raise MetadataError(f"the document is not UTF-8 text: {message}") from error
    except RecursionError as error:
        raise MetadataError("the JSON document is nested too deeply") from error
    except MetadataError:
        raise
    except ValueError as error:  # also an integer with more digits than Python converts
        raise MetadataError(f"the document is not JSON: {take_message(error)}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # RFC 8259 leaves open which of two members of one name counts; Python takes the last, others
    # the first, so two readers could see two arrays.
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise MetadataError(f"a JSON object has the member {twice!r} twice")
    return result


def dumps_json(value: Any, *, indent: int | None = 2, allow_nan: bool = True) -> bytes:
    """Write a JSON document as zarr-python does: ASCII, members in the order given.

    Parameters
    ----------
    allow_nan : bool
        Whether NaN and infinite floats are written as the bare tokens `NaN` and `Infinity`, where
        documents of others are written again. zarr-python and xarray write and read those in
        attributes, but they are not JSON: strict readers (TensorStore, browsers) refuse the whole
        document.

    Raises
    ------
    MetadataError
        A value is not JSON, or it is not finite and `allow_nan` is false; the message names the
        member.

    Examples
    --------
    >>> dumps_json({"zarr_format": 2}, indent=None)
    b'{"zarr_format": 2}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=allow_nan).encode("ascii")
    except RecursionError as error:
        raise MetadataError("nested too deeply to be written as JSON") from error
    except (TypeError, ValueError) as error:
        # Only now is the culprit looked for: Python names its type, not where it is.
        circular = "Circular" in str(error)
        culprit = None if circular else _describe_not_json(value, "", allow_nan)
        raise MetadataError(f"cannot be written as JSON: {culprit or error}") from error


def _describe_not_json(value: Any, path: str, allow_nan: bool) -> str | None:
    """Describe the first value inside `value` that JSON cannot hold."""
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            return f"{path or 'document'}: the member name {odd!r} is not a string"
        texts = (
            _describe_not_json(item, f"{path}.{key}".lstrip("."), allow_nan)
            for key, item in value.items()
        )
        return next(filter(None, texts), None)
    if isinstance(value, list | tuple):
        items = enumerate(value)
        texts = (_describe_not_json(item, f"{path}[{i}]", allow_nan) for i, item in items)
        return next(filter(None, texts), None)
    if (
        isinstance(value, float)
        and not allow_nan
        and (value != value or abs(value) == float("inf"))
    ):
        return f'{path} is {value}, which JSON has no token for; write the text "NaN", or null'
    if value is None or isinstance(value, str | int | float):
        return None
    return f"{path} is a {type(value).__name__}"


def is_same_json(a: Any, b: Any) -> bool:
    """Tell whether two JSON values are the same: NaN is NaN, but 1 neither 1.0 nor true.

    Zeros are the same if their signs are.

    Examples
    --------
    >>> is_same_json({"a": float("nan")}, {"a": float("nan")}), is_same_json([1], [True])
    (True, False)
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same_json(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(is_same_json, a, b))
    if type(a) is not type(b) and not any(_are_numbers(kind, a, b) for kind in (float, int)):
        return False
    if a == 0 and isinstance(a, float):
        return bool(a == b) and math.copysign(1, a) == math.copysign(1, b)
    return bool(a == b) or bool(a != a and b != b)


def _are_numbers(kind: type, a: Any, b: Any) -> bool:
    """Tell whether both are numbers of a kind, with or without a dtype; bools are not."""
    return all(isinstance(one, kind) and not isinstance(one, bool) for one in (a, b))


class member:
    """Prefix the errors raised inside with the member of the document that is being read."""

    # No generator, which takes several times as long: a document has many members.

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MetadataError | UnsupportedError):
            error.message = _join(self._name, error.message)
            error.args = (error.message,)
        elif isinstance(error, CodecError):
            raise MetadataError(_join(self._name, error.message)) from error
        elif isinstance(error, GridError):
            raise MetadataError(_join(self._name, str(error))) from error
        elif isinstance(error, RecursionError):
            raise MetadataError(_join(self._name, "nested too deeply")) from error


def _join(name: str, message: str) -> str:
    # "codecs" + "[1]: ..." is one path; anything else starts a new step.
    return f"{name}{message}" if message.startswith("[") else f"{name}: {message}"


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else raise a MetadataError."""
    if not isinstance(value, Mapping):
        raise MetadataError(f"must be a JSON object, not {short(value)}")
    return dict(value)


def as_list(value: Any) -> list[Any]:
    """Return `value` as a list if it is a JSON array, else raise a MetadataError."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise MetadataError(f"must be a JSON array, not {short(value)}")
    return list(value)


def as_lengths(value: Any) -> tuple[int, ...]:
    """Return a JSON array of non-negative integers as a tuple, else raise a MetadataError."""
    lengths = as_list(value)
    for i, length in enumerate(lengths):
        if isinstance(length, bool) or not isinstance(length, int):
            raise MetadataError(f"[{i}]: must be an integer, not {short(length)}")
        if not 0 <= length <= MAX_EXTENT:
            raise MetadataError(f"[{i}]: must be between 0 and 2^63-1, not {short(length)}")
    if len(lengths) > MAX_NDIM:
        raise UnsupportedError(f"{len(lengths)} dimensions; numpy arrays have at most {MAX_NDIM}")
    return tuple(lengths)


def require(document: Mapping[str, Any], *names: str) -> None:
    """Raise a MetadataError naming the first of `names` that `document` lacks."""
    for name in names:
        if name not in document:
            raise MetadataError(f"{name}: this mandatory member is missing")


def require_format(document: Mapping[str, Any], zarr_format: int) -> None:
    """Raise a MetadataError unless the member `zarr_format` is exactly `zarr_format`."""
    require(document, "zarr_format")
    value = document["zarr_format"]
    if isinstance(value, bool) or not isinstance(value, int) or value != zarr_format:
        raise MetadataError(f"zarr_format: must be {zarr_format}, not {short(value)}")
