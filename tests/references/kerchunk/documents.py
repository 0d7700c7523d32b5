"""Reference documents for tests: small ones by hand, and random ones for comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from virtualzarr.config import config

GROUP = '{"zarr_format":2}'


def zarray(shape: list[int], chunks: list[int], dtype: str = "|u1", **changes: Any) -> str:
    """The text of a `.zarray` document without compression."""
    plain = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype,
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "order": "C",
    }
    return json.dumps({**plain, **changes})


def zarr_json(shape: list[int], chunks: list[int], data_type: str = "uint8", **changes: Any) -> str:
    """The text of the `zarr.json` of an array without compression."""
    endian = {} if data_type == "uint8" else {"configuration": {"endian": "little"}}
    plain = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", **endian}],
        "attributes": {},
    }
    return json.dumps({**plain, **changes})


@contextmanager
def looking_at(smallest: int) -> Iterator[None]:
    """Documents of at least so many bytes are looked at by array operations."""
    with config.tuning.set(json_vectorized_bytes=smallest):
        yield


ALWAYS, NEVER = 0, 1 << 60

_names = st.sampled_from(["a", "b", "run/1", "run/2/c", "0", "é ", 'q"t', "tab\t", "c"])
_uris = st.one_of(
    st.sampled_from(
        ["s3://b/f.nc", "s3://b/f.nd", "/d/x", 'http://h/"q"?a,b:["c",1,2],', "s3://é/\\"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).map(
        "s3://x/".__add__
    ),
)
_numbers = st.one_of(
    st.integers(0, 100_000),
    st.sampled_from([10**7, 10**8 - 1, 10**8, 10**15, 10**16 - 1, 10**16, 2**62]),
)
_odd_values = st.sampled_from([["s3://b/w"], "plain", "base64:AAA=", ["s3://b/f", 2**63 - 1, 2]])
_wrong_values = st.sampled_from([["s3://b/f", -1, 2], ["f", 1.0, 2], ["f", 2**63, 2], ["f", 1], 5])
_wrong_keys = st.sampled_from(["x/0", "a/01", "a/9.9.9", "a/c/7", "0", "/a/0", "a/", "a/0/"])
_styles = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"separators": (", ", ": ")},
        {"separators": (",", ":"), "ensure_ascii": False},
        {"indent": 1},
        {"indent": 4},
        {"separators": (" , ", " :\t")},
    ]
)


@st.composite
def references(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """A version 0 or 1 document and its text: mostly right, now and then wrong."""
    refs: dict[str, Any] = {".zgroup": GROUP}
    chunks: list[tuple[str, Any]] = []
    for name in draw(st.lists(_names, min_size=1, max_size=3, unique=True)):
        ndim = draw(st.integers(0, 3))
        separator = draw(st.sampled_from([".", "/"]))
        cells = draw(st.lists(st.integers(1, 6), min_size=ndim, max_size=ndim))
        version = draw(st.sampled_from([2, 2, 3]))
        if version == 2:
            refs[f"{name}/.zarray"] = zarray(cells, [1] * ndim, dimension_separator=separator)
            refs[f"{name}/.zattrs"] = draw(
                st.sampled_from(
                    ['{"x":["u",1,2],"y":3}', {"x": ["u", 1, 2], "y": ["v", 3, 4], "z": 1}]
                )
            )
        else:
            encoding = {"name": "default", "configuration": {"separator": separator}}
            refs[f"{name}/zarr.json"] = zarr_json(cells, [1] * ndim, chunk_key_encoding=encoding)
        chunks += draw(_chunks(name, cells, separator, version))
    if draw(st.booleans()):
        chunks = draw(st.permutations(chunks))
    if draw(st.sampled_from([False] * 5 + [True])) and chunks:
        where = draw(st.integers(0, len(chunks) - 1))
        key, value = chunks[where]
        wrong = draw(
            st.one_of(
                st.tuples(st.just(key), _wrong_values), st.tuples(_wrong_keys, st.just(value))
            )
        )
        chunks = [*chunks[:where], wrong, *chunks[where + 1 :]]
    refs |= dict(chunks)
    document_ = refs if draw(st.booleans()) else {"version": 1, "refs": refs}
    text = json.dumps(document_, **draw(_styles))
    if draw(st.booleans()):
        text = text.replace("/", "\\/")
    return document_, text


@st.composite
def _chunks(
    draw: st.DrawFn, name: str, cells: list[int], separator: str, version: int
) -> list[tuple[str, Any]]:
    import itertools

    pairs = []
    whole_files = draw(st.booleans())
    uris = draw(st.lists(_uris, min_size=1, max_size=3))
    for cell in itertools.product(*map(range, cells)):
        numbers = [str(number) for number in cell]
        stem = (
            [f"{name}/c", *numbers]
            if version == 3
            else [f"{name}/{(numbers or ['0'])[0]}", *numbers[1:]]
        )
        key = separator.join(stem)
        value: Any = [draw(st.sampled_from(uris)), draw(_numbers), draw(_numbers)]
        if whole_files:
            value = value[: draw(st.sampled_from([1, 3]))]
        if draw(st.sampled_from([False] * 30 + [True])):
            value = draw(_odd_values)
        pairs.append((key, value))
    return pairs
