"""Documents that claim more than anybody has, lead elsewhere, or are nested without end."""

from __future__ import annotations

import functools
import gzip
import json
import os
import zipfile
import zlib

import numpy as np

from tests.security.attacks import ANYTHING, SECRET, attack, attacks

GROUP = json.dumps({"zarr_format": 2})


def array_v2(shape, chunks, dtype="|u1", **more):
    return {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": None,
            "fill_value": 0, "order": "C", "filters": None, **more}  # fmt: skip


def array_v3(shape, grid, *codecs, data_type="uint8", fill_value=0):
    return {"zarr_format": 3, "node_type": "array", "shape": shape, "chunk_grid": grid,
            "chunk_key_encoding": "default", "fill_value": fill_value,
            "codecs": [*codecs] or ["bytes"], "data_type": data_type}  # fmt: skip


def regular(*chunk):
    return {"name": "regular", "configuration": {"chunk_shape": [*chunk]}}


def references(folder, document, name="refs.json"):
    (folder / name).write_text(json.dumps(document))
    return folder / name


def store(folder, **documents):
    """Write a Zarr hierarchy; keys have two underscores for a slash."""
    for key, value in documents.items():
        path = folder / "a.zarr" / key.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return folder / "a.zarr"


# --- counts ------------------------------------------------------------------------------------


@attack("UnsupportedError", r"limits\.generated", seconds=30)
def a_rule_for_a_billion_references(folder, secret):
    rule = {"key": "x/{{i}}", "url": "a", "offset": "{{i}}", "length": "1",
            "dimensions": {"i": {"stop": 10**9}}}  # fmt: skip
    refs = {".zgroup": GROUP, "x/.zarray": json.dumps(array_v2([10**9], [1]))}
    return references(folder, {"version": 1, "refs": refs, "gen": [rule]})


@attack("UnsupportedError", r"limits\.generated", megabytes=8000)
def many_rules(folder, secret):
    rule = {"key": "x/{{i}}", "url": "a", "offset": "{{i}}", "length": "1",
            "dimensions": {"i": {"stop": 9 * 10**6}}}  # fmt: skip
    refs = {".zgroup": GROUP, "x/.zarray": json.dumps(array_v2([10**9], [1]))}
    return references(folder, {"version": 1, "refs": refs, "gen": [rule] * 100})


@attack("UnsupportedError", "so sparse a grid", megabytes=4000)
def many_grids_with_one_reference(folder, secret):
    document = {".zgroup": GROUP}
    for k in range(300):
        document[f"x{k}/.zarray"] = json.dumps(array_v2([2**24], [1]))
        document[f"x{k}/5"] = ["a", 0, 1]
    return references(folder, document)


@attack("UnsupportedError|MismatchError|MetadataError", r"limits\.depth")
def consolidated_groups_in_one_another(folder, secret):
    nodes, path = {}, ""
    for _ in range(2000):
        path = f"{path}/g".lstrip("/")
        nodes[path] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
    root = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated}
    return store(folder, zarrDOTjson=root)


@attack("UnsupportedError", r"limits\.depth")
def references_to_groups_in_one_another(folder, secret):
    return references(
        folder, {".zgroup": GROUP} | {f"{'g/' * k}.zgroup": GROUP for k in range(2000)}
    )


@attack("UnsupportedError", r"limits\.depth")
def stored_groups_in_one_another(folder, secret):
    root = folder / "a.zarr"
    for k in range(300):
        path = root.joinpath(*["g"] * k)
        path.mkdir(exist_ok=True)
        (path / ".zgroup").write_text(GROUP)
    return root


@attack("UnsupportedError", r"limits\.fields")
def countless_fields_v2(folder, secret):
    dtype = [[f"f{k}", "|u1"] for k in range(200_000)]
    return store(folder, DOTzarray=array_v2([2], [2], dtype))


@attack("UnsupportedError", r"limits\.fields")
def countless_fields_v3(folder, secret):
    fields = [{"name": f"f{k}", "data_type": "uint8"} for k in range(200_000)]
    data_type = {"name": "struct", "configuration": {"fields": fields}}
    return store(folder, zarrDOTjson=array_v3([2], regular(2), data_type=data_type))


@attack(None, seconds=40)
def many_fields(folder, secret):
    """What is allowed takes a time that grows with their number, not with its square."""
    dtype = [[f"f{k}", "|u1"] for k in range(20_000)]
    return store(folder, DOTzarray=array_v2([2], [2], dtype))


@attacks("UnsupportedError", r"limits\.chunks_read")
def a_read_of_countless_chunks():
    long = {"kind": "inline", "chunk_shapes": [[[1, 40_000_000]]]}
    grids = {"regular": regular(1), "runs": {"name": "rectilinear", "configuration": long}}
    for name, grid in grids.items():
        yield (
            name,
            lambda folder, secret, grid=grid: store(
                folder, zarrDOTjson=array_v3([40_000_000], grid)
            ),
        )


# --- doors -------------------------------------------------------------------------------------


def write_secret(secret):
    (secret / "s.bin").write_bytes(np.full(6, SECRET, "<i4").tobytes())
    return secret / "s.bin"


@attacks("AccessError|BadReferenceError|SourceError", "", narrow=True)
def references_that_lead_elsewhere():
    hows = ("absolute", "file", "relative", "winding", "symlink", "cached", "chained", "encoded",
            "protocol", "nul")  # fmt: skip
    for how in hows:

        def build(folder, secret, how=how):
            path = write_secret(secret)
            (folder / "link").symlink_to(path)
            names = {
                "absolute": str(path),
                "file": f"file://{path}",
                "relative": os.path.relpath(path, folder),
                "winding": f"{folder}/../secret/s.bin",
                "symlink": "link",
                "cached": f"simplecache::file://{path}",
                "chained": f"zip://x::file://{path}",
                "encoded": f"file://{folder}/%2e%2e/secret/s.bin",
                "protocol": "gopher://x/y",
                "nul": f"{path}\0.bin",
            }
            document = {".zarray": json.dumps(array_v2([6], [6], "<i4")), "0": [names[how], 0, 24]}
            return references(folder, document)

        yield how, build


@attacks(ANYTHING)
def names_that_lead_elsewhere():
    for how in ("up", "absolute", "backslash"):
        for form in ("references", "consolidated"):

            def build(folder, secret, how=how, form=form):
                node = secret / "n.zarr"
                node.mkdir()
                (node / ".zarray").write_text(json.dumps(array_v2([6], [6], "<i4")))
                (node / "0").write_bytes(np.full(6, SECRET, "<i4").tobytes())
                name = {"up": "../../secret/n.zarr", "absolute": f"/{node}", "backslash":
                        "..\\..\\secret\\n.zarr"}[how]  # fmt: skip
                documents = {".zgroup": {"zarr_format": 2},
                             f"{name}/.zarray": array_v2([6], [6], "<i4")}  # fmt: skip
                if form == "references":
                    return references(folder, {k: json.dumps(v) for k, v in documents.items()})
                whole = {"zarr_consolidated_format": 1, "metadata": documents}
                return store(folder, DOTzgroup={"zarr_format": 2}, DOTzmetadata=whole)

            yield f"{how}-{form}", build


@attack("AccessError", "outside", narrow=True)
def a_description_that_leads_elsewhere(folder, secret):
    path = write_secret(secret)
    (folder / "a.nc.dmrpp").write_text(
        f'''<?xml version="1.0"?><Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#"
        xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dapVersion="4.0" dmrVersion="1.0"
        name="a" dmrpp:href="{os.path.relpath(path, folder)}"><Dimension name="x" size="6"/>
        <Int32 name="v"><Dim name="/x"/><dmrpp:chunks byteOrder="LE">
        <dmrpp:chunk offset="0" nBytes="24"/></dmrpp:chunks></Int32></Dataset>'''
    )
    return folder / "a.nc.dmrpp"


# --- bombs -------------------------------------------------------------------------------------


@attacks("CodecError", "")
def chunks_that_unpack_to_gigabytes():
    packed = {"zlib": 15, "gzip": 31}
    for codec, window in packed.items():

        def build(folder, secret, codec=codec, window=window):
            data = pack_zeros(2048, window)
            array = array_v2([8], [8], compressor={"id": codec, "level": 1})
            path = store(folder, DOTzarray=array)
            (path / "0").write_bytes(data)
            return path

        yield codec, build


def pack_zeros(megabytes, window):
    """Compress zeros, by a window of zlib for its own form or that of gzip."""
    piece, packer = b"\0" * (1 << 20), zlib.compressobj(9, wbits=window)
    head = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    # A piece after a full flush is compressed like any other: all but the first are one.
    body = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    digest = functools.reduce(
        lambda value, _: (zlib.crc32 if window > 15 else zlib.adler32)(piece, value),
        range(megabytes), int(window <= 15),
    )  # fmt: skip
    order = "little" if window > 15 else "big"
    size = (megabytes << 20).to_bytes(4, "little") if window > 15 else b""
    return head + body * (megabytes - 1) + b"\x03\0" + digest.to_bytes(4, order) + size


@attack("SourceError|CodecError|UnsupportedError|BadReferenceError", "")
def a_zip_whose_member_unpacks_to_gigabytes(folder, secret):
    header = np.lib.format.header_data_from_array_1_0(np.zeros(8, "u1"))
    with (
        zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("x.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, {**header, "shape": (8 << 30,)})
        for _ in range(512):
            member.write(b"\0" * (1 << 20))
    return folder / "a.npz"


@attack("MetadataError|BadReferenceError", "nested|deep")
def json_nested_without_end(folder, secret):
    return store(folder, zarrDOTjson=b'{"a":' * 100_000)


@attack("MetadataError|BadReferenceError", "nested|deep|JSON")
def references_nested_without_end(folder, secret):
    (folder / "refs.json").write_bytes(b'{"refs":' + b"[" * 1_000_000)
    return folder / "refs.json"


@attack("MetadataError|BadReferenceError", "")
def attributes_nested_without_end(folder, secret):
    nested = b'{"zarr_format": 3, "node_type": "group", "attributes": {"a":' + b"[" * 50_000
    return store(folder, zarrDOTjson=nested + b"]" * 50_000 + b"}}")


@attack("MetadataError", "")
def numbers_of_countless_digits(folder, secret):
    return store(folder, zarrDOTjson=b'{"zarr_format": 3, "node_type": "array", "shape": ['
                 + b"9" * 1_000_000 + b"]}")  # fmt: skip


@attack("SourceError|UnsupportedError", "")
def a_compressed_image_of_terabytes(folder, secret):
    header = bytearray(352)
    header[0:4] = (348).to_bytes(4, "little")
    header[40:56] = b"".join(n.to_bytes(2, "little") for n in (7, *[30_000] * 7))
    header[70:74] = (2).to_bytes(2, "little") + (8).to_bytes(2, "little")
    header[108:112] = np.float32(352).tobytes()
    header[344:348] = b"n+1\0"
    (folder / "a.nii.gz").write_bytes(gzip.compress(bytes(header) + bytes(1 << 20)))
    return folder / "a.nii.gz"


@attack("UnsupportedError", r"limits\.element_bytes.*variable x")
def fill_values_of_gigabytes(folder, secret):
    references = {".zgroup": '{"zarr_format": 2}'}
    for name in "xyz":
        references[f"{name}/.zarray"] = json.dumps({
            "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|S2147483647",
            "compressor": None, "fill_value": "", "order": "C", "filters": None,
        })  # fmt: skip
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    return folder / "refs.json"


@attack("UnsupportedError", r"limits\.element_bytes")
def an_npy_element_of_gigabytes(folder, secret):
    header = {"descr": "|S2147483647", "fortran_order": False, "shape": (0,)}
    with open(folder / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    return folder / "a.npy"


def fits_header(**cards):
    def shown(value):
        return f"'{value}'" if isinstance(value, str) else "T" if value is True else str(value)

    lines = [f"{key:<8}= {shown(value):>20}".ljust(80) for key, value in cards.items()]
    text = "".join([*lines, "END".ljust(80)])
    return text.ljust(-(-len(text) // 2880) * 2880).encode()


def fits_table(path, kind, width, columns, rows=0):
    """Write a FITS table of columns that all begin at the same byte."""
    cards = {"XTENSION": kind, "BITPIX": 8, "NAXIS": 2, "NAXIS1": width, "NAXIS2": rows,
             "PCOUNT": 0, "GCOUNT": 1, "TFIELDS": len(columns)}  # fmt: skip
    for number, form in enumerate(columns, 1):
        cards |= {f"TFORM{number}": form, f"TBCOL{number}": 1}
    first = fits_header(SIMPLE=True, BITPIX=8, NAXIS=0)
    path.write_bytes(first + fits_header(**cards) + bytes(2880))
    return path


@attacks("UnsupportedError", r"limits\.element_bytes.*variable 1")
def elements_of_fits_tables():
    tables = {
        "overlapping": ("TABLE", 99_999, ["A99999"] * 999),
        "text-rows": ("TABLE", 2**31 - 1, ["A9"]),
        "wider-text-rows": ("TABLE", 2**40, ["A9"]),
        "binary-rows": ("BINTABLE", 2**31 - 1, ["9A"]),
        "wider-binary-rows": ("BINTABLE", 2**40, ["9A"]),
    }
    for name, table in tables.items():
        yield name, lambda folder, secret, table=table: fits_table(folder / "a.fits", *table)


@attack("UnsupportedError", r"limits\.document_bytes.*zarr\.json")
def a_zip_file_of_compressed_metadata(folder, secret):
    with (
        zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zarr.json", "w") as member,
    ):
        member.write(b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": "')
        for _ in range(300):
            member.write(b"a" * (1 << 20))
        member.write(b'"}}')
    return folder / "a.zip"


@attack("SourceError", "cannot open the zip file")
def a_zip_directory_of_names_in_no_encoding(folder, secret):
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("\u00e4.npy", b"")
    data = (folder / "a.npz").read_bytes()
    (folder / "a.npz").write_bytes(data.replace("\u00e4".encode(), b"\xb9\xff"))
    return folder / "a.npz"
