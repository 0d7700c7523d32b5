"""Looking at a document by array operations gives what parsing it gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.kerchunk.documents import ALWAYS, GROUP, NEVER, looking_at, references, zarray
from virtualzarr.errors import BadReferenceError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.kerchunk import columns, document
from virtualzarr.references.kerchunk.bytescan import MARGIN, Text
from virtualzarr.references.kerchunk.members import find_members, find_styles
from virtualzarr.stores.location import Location


def outcome(text: bytes, smallest: int, tmp_path_factory=None):
    """What scanning gives: arrays, or the kind of error."""
    with looking_at(smallest):
        try:
            parts = document.read_document(text)
            group = scan_bytes(text)
        except VirtualZarrError as error:
            return type(error), error.variable
    return group, parts


def scan_bytes(text: bytes) -> Group:
    from virtualzarr.references.kerchunk.scan import _Scan

    return _Scan(Location.of("/here/refs.json"), "raise").of_document(text).node


def assert_same(one: Group, other: Group) -> None:
    ours, theirs = dict(one.members(None)), dict(other.members(None))
    assert ours.keys() == theirs.keys()
    for path, node in ours.items():
        if isinstance(node, Group):
            assert node.attributes == theirs[path].attributes
            continue
        assert node.metadata == theirs[path].metadata
        mine, its = node.manifest, theirs[path].manifest
        assert mine.shape == its.shape
        for name in ("offset", "length"):
            assert np.array_equal(np.asarray(getattr(mine, name)), np.asarray(getattr(its, name)))
        missing = np.asarray(mine.source) < 0
        assert np.array_equal(missing, np.asarray(its.source) < 0)
        for a, b in zip(
            np.asarray(mine.source)[~missing].tolist(),
            np.asarray(its.source)[~missing].tolist(),
            strict=True,
        ):
            assert mine.sources[a] == its.sources[b]


@settings(max_examples=100, deadline=None)
@given(references())
def test_fast_and_slow_agree(case):
    _, text = case
    slow = outcome(text.encode(), NEVER)
    fast = outcome(text.encode(), ALWAYS)
    if isinstance(slow[0], Group):
        assert isinstance(fast[0], Group), fast
        assert_same(slow[0], fast[0])
    else:
        assert fast[0] == slow[0]


@settings(max_examples=100, deadline=None)
@given(references(), st.sampled_from([ALWAYS, NEVER]))
def test_sources_that_are_made_when_asked_for_are_those_that_are_made_at_once(case, smallest):
    _, text = case
    at_once = outcome(text.encode(), smallest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_MANY", 1)
        asked = outcome(text.encode(), smallest)
    if isinstance(at_once[0], Group):
        assert isinstance(asked[0], Group), asked
        assert_same(at_once[0], asked[0])
    else:
        assert asked[0] == at_once[0]


@pytest.mark.parametrize("slash", ["/", "\\/"])
@pytest.mark.parametrize("other", ["s3://b/", "https://h/", "beside", "{{u}}/"])
def test_a_thousand_files_of_two_kinds(slash, other):
    refs = {".zgroup": GROUP, "x/.zarray": zarray([2000], [1]), "y/.zarray": zarray([900], [1])}
    names = [f"{'s3://b/' if i < 1000 else other}{i % 900}.nc" for i in range(2000)]
    refs |= {f"x/{i}": [name, i, 1] for i, name in enumerate(names)}
    refs |= {f"y/{i}": [name, 0, 1] for i, name in enumerate(names[900:1800])}
    sizes = {"s3://b/7.nc": 70, f"{other}8.nc": 80}
    whole = {"version": 1, "templates": {"u": "s3://u"}, "refs": refs,
             "virtualzarr": {"sizes": sizes}}  # fmt: skip
    group = scan_bytes(json.dumps(whole).replace("/", slash).encode())
    written = [name.replace("{{u}}", "s3://u").replace("beside", "/here/beside") for name in names]
    sources = [group["x"].manifest.sources[row] for row in group["x"].manifest.source.tolist()]
    assert [source.uri for source in sources] == written
    assert [source.size for source in sources] == [sizes.get(name) for name in names]
    sources = [group["y"].manifest.sources[row] for row in group["y"].manifest.source.tolist()]
    assert [source.uri for source in sources] == written[900:1800]


def regular(count: int = 300) -> dict:
    refs = {".zgroup": GROUP, "x/.zarray": zarray([count], [1])}
    return refs | {f"x/{i}": [f"s3://b/{i % 7}.nc", i * 11, 1] for i in range(count)}


@pytest.mark.parametrize("style", [{"separators": (",", ":")}, {"indent": 2}, {}])
@pytest.mark.parametrize("slash", ["/", "\\/"])
def test_nearly_all_members_of_a_plain_document_are_found(style, slash):
    text = json.dumps({"version": 1, "refs": regular()}, **style).replace("/", slash).encode()
    with looking_at(ALWAYS):
        found = document.read_document(text)
    assert found.members is not None
    assert len(found.members) + len(found.others) == 302
    assert len(found.others) < 12
    group = scan_bytes(text)
    assert [s.uri for s in group["x"].manifest.sources] == [f"s3://b/{i}.nc" for i in range(7)]
    assert np.array_equal(group["x"].manifest.offset, np.arange(300) * 11)


@pytest.mark.parametrize("style", [{"separators": (",", ":")}, {"indent": 2}, {}])
def test_members_for_whole_files_are_found_too(style):
    refs = regular()
    refs |= {f"x/{i}": [f"s3://c/{i}"] for i in range(0, 300, 3)}
    text = json.dumps({"version": 1, "refs": refs}, **style).encode()
    with looking_at(ALWAYS):
        found = document.read_document(text)
    assert found.members is not None
    assert len(found.others) < 12
    manifest = scan_bytes(text)["x"].manifest
    assert np.array_equal(np.asarray(manifest.length) < 0, np.arange(300) % 3 == 0)
    assert [manifest.sources[i].uri for i in manifest.source[:4]] == [
        "s3://c/0", "s3://b/1.nc", "s3://b/2.nc", "s3://c/3",
    ]  # fmt: skip


def test_members_of_an_attribute_are_not_references():
    refs = regular()
    refs["x/.zattrs"] = {f"x/{i}": ["s3://wrong/", i, i] for i in range(5)} | {"last": 1}
    text = json.dumps({"version": 1, "refs": refs}).encode()
    with looking_at(ALWAYS):
        found = document.read_document(text)
    assert found.others["x/.zattrs"] == refs["x/.zattrs"]
    assert found.members is not None
    assert len(found.members) > 280


def test_members_outside_refs_are_not_references():
    document_ = {"version": 1, "other": regular(40), "refs": regular(60), "more": regular(50)}
    with looking_at(ALWAYS):
        found = document.read_document(json.dumps(document_).encode())
    assert len(found.members or ()) + len(found.others) == 62


def test_text_that_looks_like_members_within_a_string_is_left_alone():
    refs = regular()
    inner = json.dumps(regular(10), separators=(",", ":"))
    refs["x/.zattrs"] = json.dumps({"history": inner})
    text = json.dumps(refs, separators=(",", ":")).encode()
    with looking_at(ALWAYS):
        group = scan_bytes(text)
    assert group["x"].attrs["history"] == inner


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/3.nc", 01650, 1]'),
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/3.nc", 1650, 1'),
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/3.nc" 1650, 1]'),
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/\\q.nc", 1650, 1]'),
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/\xff.nc", 1650, 1]'),
        (b'"x/150": ["s3://b/3.nc", 1650, 1]', b'"x/150": ["s3://b/\n.nc", 1650, 1]'),
        (b'"x/150"', b'"\\x/150"'),
        (b'"x/150"', b'"x/0150"'),
        (b'"x/150"', b'"x/149"'),
        (b'"x/150"', b'"x/-1"'),
        (b'"x/150"', b'"x/1.50"'),
    ],
)  # fmt: skip
def test_one_wrong_byte_is_an_error_in_both_ways(before, after):
    text = json.dumps(regular()).encode()
    assert text.count(before) == 1
    text = text.replace(before, after)
    for smallest in (ALWAYS, NEVER):
        with looking_at(smallest), pytest.raises(BadReferenceError):
            scan_bytes(text)


def test_cells_in_any_order_and_missing():
    rows = np.random.default_rng(1).permutation(400)[:350]
    refs = {".zgroup": GROUP, "x/.zarray": zarray([20, 20], [1, 1])}
    refs |= {f"x/{i // 20}.{i % 20}": ["/d/f", int(i), 1] for i in rows}
    with looking_at(ALWAYS):
        manifest = scan_bytes(json.dumps(refs).encode())["x"].manifest
    assert manifest.nrefs == 350
    there = np.asarray(manifest.source).reshape(-1) >= 0
    assert np.array_equal(np.flatnonzero(there), np.sort(rows))
    assert np.array_equal(np.asarray(manifest.offset).reshape(-1)[there], np.sort(rows))


def test_long_runs_of_backslashes_are_left_to_json():
    refs = regular()
    refs["x/.zattrs"] = json.dumps({"a": "\\" * 500})
    with looking_at(ALWAYS):
        assert scan_bytes(json.dumps(refs).encode())["x"].attrs["a"] == "\\" * 500


@pytest.mark.parametrize("number", [0, 7, 10**7, 10**8 - 1, 10**8, 123456789012, 10**16 - 1])
def test_numbers_of_up_to_16_digits(number):
    data = b" " * MARGIN + str(number).encode() + b"," + b" " * MARGIN
    end = np.array([data.index(b",")])
    value, digits = Text(data).numbers_before(end)
    assert (int(value[0]), int(digits[0])) == (number, len(str(number)))


@pytest.mark.parametrize("wrong", [b"", b"x", b"00", b"012", b"1" * 17, b"9" * 20, b"-", b"\xb1"])
def test_what_is_no_number_has_no_digits(wrong):
    data = b" " * MARGIN + wrong + b"," + b" " * MARGIN
    _, digits = Text(data).numbers_before(np.array([data.index(b",")]))
    assert digits[0] == 0


def test_strings_made_to_collide_are_told_apart(monkeypatch):
    words = [f"string number {i % 5:03d} of some length".encode() for i in range(50)]
    data = b" " * MARGIN + b"".join(words) + b" " * MARGIN
    start = MARGIN + np.arange(50) * len(words[0])
    text = Text(data)
    expected = text.unique(start, start + len(words[0]))
    monkeypatch.setattr(
        np, "unique", lambda code, **_: (code[:1], np.array([0]), np.zeros(len(code), int))
    )
    got = text.unique(start, start + len(words[0]))
    for a, b in zip(expected, got, strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(got[0], np.arange(50) % 5)


def test_a_style_is_found_where_most_members_are():
    text = b'{"a": ["u", 1, 2], ' + b"".join(b'"k%d":["u",1,2],' % i for i in range(50)) + b'"z":1}'
    (style,) = find_styles(text)
    assert style.gap == b":["
    found = find_members(Text(b" " * MARGIN + text + b" " * MARGIN), [style])
    assert found is not None
    assert len(found[0]) == 50
