"""Expressions of templates: exact integers, and nothing that Python could do besides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.errors import BadReferenceError, UnsupportedError, VirtualZarrError
from virtualzarr.references.kerchunk.templates import Templates


def evaluate(expression, **variables):
    (value,) = Templates().pieces("{{" + expression + "}}", variables)
    return value


@st.composite
def expressions(draw, depth=0):
    if depth > 3 or draw(st.booleans()):
        return draw(st.sampled_from(["i", "j", "1", "2", "7", "1000"]))
    left, right = draw(expressions(depth + 1)), draw(expressions(depth + 1))
    operator = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    return (
        f"({left} {operator} -{right})" if draw(st.booleans()) else f"({left} {operator} {right})"
    )


@settings(max_examples=100, deadline=None)
@given(expressions(), st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), min_size=1))
def test_columns_are_what_python_gives_for_each(expression, pairs):
    try:
        expected = [eval(expression, {}, {"i": i, "j": j}) for i, j in pairs]
    except ZeroDivisionError:
        with pytest.raises(BadReferenceError, match="zero"):
            evaluate(expression, **columns(pairs))
        return
    got = evaluate(expression, **columns(pairs))
    assert np.broadcast_to(got, len(pairs)).tolist() == expected


def columns(pairs):
    i, j = np.array(pairs, np.int64).T
    return {"i": i, "j": j}


@pytest.mark.parametrize(
    "expression",
    ["i * 4611686018427387904", "4611686018427387904 * 4", "i ** 62", "2 ** 63", "-2 ** 62 - i"],
)
def test_numbers_too_large_are_refused_and_do_not_wrap(expression):
    with pytest.raises(BadReferenceError, match=r"beyond|exponent"):
        evaluate(expression, i=np.array([1, 3]))


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')", "u.x", "u[0]", "[1]", "(1, 2)", "{1: 2}", "lambda: 1",
        "1 if 1 else 2", "1 and 2", "1 < 2", "1.5", "True", "None", "b'x'", "f'{1}'", "u(1)",
        "u(**{})", "f(*a)", "i << 2", "i @ i", "~i", "not i", "(x := 1)", "i | lower", "...",
    ],
)  # fmt: skip
def test_other_expressions_are_refused(expression):
    with pytest.raises(VirtualZarrError):
        Templates({"u": "a", "f": "{{c}}"}).render("{{" + expression + "}}", {"i": 1, "a": 1})


@pytest.mark.parametrize(
    "expression", ["'%1000d' % i", "'%s' % i", "'%d%d' % i", "'%x' % i", "i % 'a'"]
)
def test_other_formats_are_refused(expression):
    with pytest.raises((UnsupportedError, BadReferenceError)):
        evaluate(expression, i=1)


def test_formats():
    assert Templates().render("{{'%03d' % i}}-{{ '%d' | format(i) }}", {"i": 7}) == "007-7"
    assert evaluate("'%02d' % i", i=np.array([1, 12])) == ["01", "12"]


def test_division_must_leave_no_remainder():
    assert evaluate("i / 2", i=np.array([2, 4])).tolist() == [1, 2]
    with pytest.raises(BadReferenceError, match="remainder"):
        evaluate("i / 2", i=np.array([2, 3]))


@pytest.mark.parametrize(
    "text",
    [
        "{{" + "(" * 600 + "1" + ")" * 600 + "}}",
        "{{" + "1+" * 600 + "1}}",
        "{{ - }}",
        "{{}}",
        "{{'}}",
    ],
)
def test_broken_and_endless_expressions_are_refused(text):
    with pytest.raises(BadReferenceError):
        Templates().render(text)


def test_a_template_that_calls_itself_ends():
    with pytest.raises(BadReferenceError):
        Templates({"f": "{{f(c=c)}}"}).render("{{f(c='x')}}")


def test_templates_must_be_texts():
    with pytest.raises(BadReferenceError, match="'u'"):
        Templates({"u": 5})


def test_text_without_expressions_is_itself():
    assert Templates().render("a } b { c }} d") == "a } b { c }} d"
