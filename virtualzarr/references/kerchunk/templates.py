"""The templates of reference files: texts with `{{expressions}}`, a small and safe part of Jinja.

An expression is integer arithmetic (`+ - * // % **` and parentheses, and `/` where it leaves no
remainder), a name, a text in quotes, a call of a template with keyword arguments, or a number
formatted by `'%03d' % i` or `'%03d' | format(i)`. Whatever else Jinja has is refused by name.
Expressions are evaluated for many values of the variables at once.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import BadReferenceError, UnsupportedError

Ints = npt.NDArray[np.int64]
Value = str | int | Ints | list[str]
"""A constant, or one value for each combination of the variables."""

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NUMBER_FORMAT = re.compile(r"%(0?[1-9]?[0-9]?)d")
_GREATEST = float(2**62)
_LONGEST, _DEEPEST = 1000, 20

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.floordiv,
    ast.Pow: operator.pow,
}


class Templates:
    """The block `templates` of a reference file.

    Parameters
    ----------
    block : mapping of str to str

    Examples
    --------
    >>> templates = Templates({"u": "server.domain/path", "f": "{{c}}"})
    >>> templates.render("http://{{u}}"), templates.render("http://{{f(c='text')}}")
    ('http://server.domain/path', 'http://text')
    """

    def __init__(self, block: Mapping[str, Any] | None = None) -> None:
        for name, text in (block or {}).items():
            if not isinstance(text, str):
                raise BadReferenceError(
                    f"the template {name!r} is a {type(text).__name__}, not a text"
                )
        self.texts: dict[str, str] = dict(block or {})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def render(self, text: str, variables: Mapping[str, Value] | None = None) -> str:
        """The text with its expressions replaced by their values, which are single ones."""
        return "".join(_as_text(piece) for piece in self.pieces(text, variables or {}))

    def pieces(self, text: str, variables: Mapping[str, Value], depth: int = 0) -> list[Value]:
        """The constant parts and the values of the expressions of a text, in turn."""
        if "{%" in text or "{#" in text:
            raise UnsupportedError(
                f"Jinja statements and comments are not supported: {text[:80]!r}"
            )
        pieces: list[Value] = []
        for number, part in enumerate(_PLACE.split(text)):
            if number % 2:
                pieces.append(self._evaluate(part, variables, depth))
            elif part:
                pieces.append(part)
        return pieces

    def _evaluate(self, expression: str, variables: Mapping[str, Value], depth: int) -> Value:
        if len(expression) > _LONGEST or depth > _DEEPEST:
            raise BadReferenceError("an expression of a template is too long, or nested too deeply")
        try:
            tree = ast.parse(expression.strip(), mode="eval")
            return self._value(tree.body, variables, depth)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, BadReferenceError):
                raise
            raise BadReferenceError(f"{expression!r} is no expression: {error}") from error

    def _value(self, node: ast.expr, variables: Mapping[str, Value], depth: int) -> Value:
        # Only these nodes of Python's syntax tree are evaluated; no name leads to an object, so
        # that nothing can be called.
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | str() as value):
                return _check_size(value) if isinstance(value, int) else value
            case ast.Name(id=name):
                return self._look_up(name, {}, variables, depth)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = _integers(self._value(operand, variables, depth))
                return -number if isinstance(sign, ast.USub) else number
            case ast.BinOp(
                left=left, op=ast.BitOr(), right=ast.Call(func=ast.Name(id="format")) as call
            ):
                if len(call.args) == 1 and not call.keywords:
                    return _format(
                        self._value(left, variables, depth),
                        self._value(call.args[0], variables, depth),
                    )
            # '%03d' % i formats, as in Python, where the left side is a text.
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                a, b = (self._value(side, variables, depth) for side in (left, right))
                return _format(a, b) if _is_format(a, op) else _compute(op, a, b)
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                if all(keyword.arg for keyword in keywords):
                    arguments = {
                        str(k.arg): self._value(k.value, variables, depth) for k in keywords
                    }
                    return self._look_up(name, arguments, {}, depth)
        raise UnsupportedError(f"expressions such as {ast.unparse(node)!r} are not supported")

    def _look_up(
        self, name: str, arguments: Mapping[str, Value], variables: Mapping[str, Value], depth: int
    ) -> Value:
        """A variable's value, or a template's text rendered with what it is given."""
        if name in variables:
            return variables[name]
        if name not in self.texts:
            names = ", ".join([*variables, *self.texts]) or "none"
            raise BadReferenceError(
                f"the template or variable {name!r} is not defined; there are: {names}"
            )
        # As in fsspec, a template sees its arguments, and no other template.
        pieces = Templates().pieces(self.texts[name], {**variables, **arguments}, depth + 1)
        return _join(pieces)


def _is_format(left: Value, op: ast.operator) -> bool:
    return isinstance(op, ast.Mod) and isinstance(left, str)


def _integers(value: Value) -> int | Ints:
    if isinstance(value, (str, list)):
        raise BadReferenceError(f"a text where a number is needed: {value!r:.80}")
    return value


def _check_size(value: int | Ints) -> int | Ints:
    if isinstance(value, int) and abs(value) >= _GREATEST:
        raise BadReferenceError("a number of a template is beyond 2^62")
    return value


def _compute(op: ast.operator, left: Value, right: Value) -> int | Ints:
    """Exact integer arithmetic: what does not fit is refused, not wrapped around."""
    a, b = _integers(left), _integers(right)
    divides = isinstance(op, (ast.FloorDiv, ast.Mod, ast.Div))
    if divides and np.any(np.asarray(b) == 0):
        raise BadReferenceError("an expression of a template divides by zero")
    if isinstance(op, ast.Div) and np.any(np.asarray(a) % b):
        raise BadReferenceError("'/' leaves a remainder; reference files have integers only")
    if isinstance(op, ast.Pow) and (np.any(np.asarray(b) < 0) or np.any(np.asarray(b) > 62)):
        raise BadReferenceError("an exponent of a template is not between 0 and 62")
    # First in floating point, to see whether the exact result would fit: int64 wraps around
    # without a word.
    function = _OPERATORS[type(op)]
    with np.errstate(all="ignore"):
        size = np.abs(np.asarray(function(np.asarray(a, float), np.asarray(b, float))))
    if size.max(initial=0) >= _GREATEST:
        raise BadReferenceError("a number of a template is beyond 2^62")
    result = function(a, b)
    return result if isinstance(result, np.ndarray) else int(result)


def _format(form: Value, number: Value) -> Value:
    """`'%03d' % i`."""
    match = _NUMBER_FORMAT.fullmatch(form) if isinstance(form, str) else None
    if match is None:
        raise UnsupportedError(f"the format {form!r:.80} is not supported; '%d' and '%03d' are")
    value = _integers(number)
    if isinstance(value, int):
        return form % value  # type: ignore[operator]
    return [form % item for item in value.tolist()]


def _as_text(value: Value) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    raise BadReferenceError("a variable where a single value is needed")


def _join(pieces: list[Value]) -> Value:
    """One value of several pieces, which is a text unless it is one number alone."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, (str, int)) for piece in pieces):
        return "".join(map(str, pieces))
    return texts(pieces, next(len(p) for p in pieces if not isinstance(p, (str, int))))


def texts(pieces: list[Value], count: int) -> list[str]:
    """One text for each combination of the variables: a Python loop, where nothing else will do."""
    columns = [
        [str(piece)] * count if isinstance(piece, (str, int))
        else list(map(str, piece.tolist() if isinstance(piece, np.ndarray) else piece))
        for piece in pieces
    ]  # fmt: skip
    return ["".join(parts) for parts in zip(*columns, strict=True)] if columns else [""] * count
