"""Writes DMR++ documents of HDF5 files, as OPeNDAP's builder does."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

NAMES = {"u1": "Byte", "i1": "Int8", "u2": "UInt16", "i2": "Int16", "u4": "UInt32", "i4": "Int32",
         "u8": "UInt64", "i8": "Int64", "f4": "Float32", "f8": "Float64"}  # fmt: skip
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 6: "scaleoffset", 32000: "lzf"}
PADDINGS = {0: "null_term", 1: "null_pad", 2: "space_pad"}
HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" '
    'xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dapVersion="4.0" dmrVersion="1.0" '
)


def write(path: Path, href: str = "OPeNDAP_DMRpp_DATA_ACCESS_URL", **options: Any) -> Path:
    """Write the document beside an HDF5 file."""
    with h5py.File(path, "r") as file:
        body = group(file, path, options)
    beside = path.with_name(path.name + ".dmrpp")
    name = f'name={quoteattr(path.name)} dmrpp:href={quoteattr(href)} dmrpp:version="3.21.1">'
    beside.write_text(f"{HEAD}{name}{body}\n</Dataset>\n", encoding="utf-8")
    return beside


def group(node: Any, path: Path, options: dict[str, Any]) -> str:
    """Return the members and attributes of a group."""
    lines = [
        f"<Dimension name={quoteattr(name)} size={quoteattr(str(len(member)))}/>"
        for name, member in node.items()
        if isinstance(member, h5py.Dataset) and member.is_scale
    ]
    for name, member in node.items():
        if isinstance(member, h5py.Group):
            lines.append(f"<Group name={quoteattr(name)}>{group(member, path, options)}</Group>")
        else:
            lines.append(variable(name, member, path, options))
    return "\n".join(["", *lines, attributes(node)])


def attributes(node: Any) -> str:
    """Return attributes; those of HDF5's dimension scales are not for users."""
    lines = []
    for name, value in node.attrs.items():
        if name in ("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST"):
            continue
        values = np.atleast_1d(value)
        kind = NAMES.get(values.dtype.str[1:], "String")
        texts = "".join(f"<Value>{escape(str(each))}</Value>" for each in values.tolist())
        lines.append(
            f"<Attribute name={quoteattr(name)} type={quoteattr(kind)}>{texts}</Attribute>"
        )
    return "\n".join(lines)


def variable(name: str, dataset: Any, path: Path, options: dict[str, Any]) -> str:
    """Return a variable."""
    tid, dtype = dataset.id.get_type(), dataset.dtype
    kind, inner = "Structure", ""
    extra = ""
    if dtype.kind in "SO":
        kind = "String"
        if dtype.kind == "S":
            pad = PADDINGS[tid.get_strpad()]
            extra = f'<dmrpp:FixedLengthStringArray string_length="{dtype.itemsize}" pad="{pad}"/>'
    elif dtype.names is None:
        kind = NAMES[dtype.str[1:]]
    else:
        inner = "".join(
            f"<{NAMES[dtype[field].base.str[1:]]} name={quoteattr(field)}>"
            + "".join(f'<Dim size="{n}"/>' for n in dtype[field].shape)
            + f"</{NAMES[dtype[field].base.str[1:]]}>"
            for field in dtype.names
        )
    dims = "".join(
        f"<Dim name={quoteattr(scale[0].name)}/>" if len(scale) else f'<Dim size="{n}"/>'
        for n, scale in zip(dataset.shape, dataset.dims, strict=True)
    )
    if dataset.is_scale:
        dims = f"<Dim name={quoteattr(dataset.name)}/>"
    values = stored(dataset, dtype, path, options)
    return (
        f"<{kind} name={quoteattr(name)}>{inner}{dims}{attributes(dataset)}{values}{extra}</{kind}>"
    )


def stored(dataset: Any, dtype: Any, path: Path, options: dict[str, Any]) -> str:
    """Return where values are, or the values."""
    plist = dataset.id.get_create_plist()
    if dtype.kind == "O":
        texts = [each.decode() for each in np.asarray(dataset[()]).reshape(-1).tolist()]
        return f"<dmrpp:vlsa>{''.join(map(listed, texts))}</dmrpp:vlsa>"
    if plist.get_layout() == h5py.h5d.COMPACT:
        raw = np.asarray(dataset[()]).astype(dtype.newbyteorder("<")).tobytes()
        return f"<dmrpp:compact>{base64.b64encode(raw).decode()}</dmrpp:compact>"
    if dataset.name in options.get("missing", ()):
        raw = zlib.compress(np.asarray(dataset[()], dtype.newbyteorder("<")).tobytes())
        return f"<dmrpp:missingdata>{base64.b64encode(raw).decode()}</dmrpp:missingdata>"
    said = f' byteOrder="{"BE" if byteorder(dtype) == ">" else "LE"}"'
    if dtype.names:
        ends = [dtype.fields[field][1] for field in dtype.names[1:]] + [dtype.itemsize]
        said += f' structOffset="{" ".join(map(str, ends))}"'
        said += ' fillValue="0"'
    elif dataset.fillvalue is not None and dtype.kind != "S":
        text = f"{dataset.fillvalue:g}" if dtype.kind == "f" else str(dataset.fillvalue)
        said += f" fillValue={quoteattr(text)}"
    elif dtype.kind == "S":
        said += f" fillValue={quoteattr(dataset.fillvalue.decode())}"
    if plist.get_layout() == h5py.h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        nbytes = dataset.id.get_storage_size()
        chunk = "" if offset is None else f'<dmrpp:chunk offset="{offset}" nBytes="{nbytes}"/>'
        return f"<dmrpp:chunks{said}>{chunk}</dmrpp:chunks>"
    names = [FILTERS[plist.get_filter(i)[0]] for i in range(plist.get_nfilters())]
    if names:
        said += f' compressionType="{" ".join(names)}"'
    lines = [f"<dmrpp:chunkDimensionSizes>{' '.join(map(str, dataset.chunks))}"
             "</dmrpp:chunkDimensionSizes>"]  # fmt: skip
    for i in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(i)
        mask = f' fm="{info.filter_mask}"' if info.filter_mask else ""
        place = ",".join(map(str, info.chunk_offset))
        lines.append(f'<dmrpp:chunk offset="{info.byte_offset}" nBytes="{info.size}" '
                     f'chunkPositionInArray="[{place}]"{mask}/>')  # fmt: skip
    return f"<dmrpp:chunks{said}>\n" + "\n  ".join(lines) + "</dmrpp:chunks>"


def byteorder(dtype: Any) -> str:
    """Return the byte order of the elements, or of the first member."""
    first = dtype if dtype.names is None else dtype[0].base
    return ">" if first.byteorder == ">" else "<"


def listed(text: str) -> str:
    """Return an entry of a list of texts: long ones are compressed."""
    if len(text) < 40:
        return f"<v>{escape(text)}</v>"
    raw = text.encode()
    return f'<v s="{len(raw)}">{base64.b64encode(zlib.compress(raw)).decode()}</v>'
