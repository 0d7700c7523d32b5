"""Object codecs of numcodecs: arrays of arrays, JSON, and MessagePack."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.codecs.vlen import VlenBytes
from virtualzarr.errors import import_optional
from virtualzarr.redaction import take_message


class VlenArray(VlenBytes):
    """Elements are one-dimensional arrays of one dtype (numcodecs ``vlen-array``).

    Laid out as ``vlen-bytes``; an element that is missing (None, 0) counts as empty.
    """

    decoding_fields = ("dtype",)

    def validate(self) -> None:
        """Check the dtype."""
        value = self.configuration.get("dtype")
        try:
            dtype = np.dtype(value)
        except TypeError as error:
            raise self.invalid(f"dtype {value!r} is no dtype") from error
        if set(self.configuration) != {"dtype"} or value is None or dtype.hasobject:
            raise self.invalid(f"needs the one member dtype, a plain one, not {self.configuration}")
        if not dtype.itemsize:
            raise self.invalid(f"elements of {dtype} have no bytes")
        self.configuration["dtype"] = dtype.str

    def _value(self, raw: bytes) -> Any:
        dtype = np.dtype(self.configuration["dtype"])
        if len(raw) % dtype.itemsize:
            raise self.error(f"{len(raw)} bytes are no array of {dtype}")
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))

    def _raw(self, value: Any) -> bytes:
        if value is None or (isinstance(value, (int, float)) and value == 0):
            return b""
        array = np.asarray(value)
        if array.ndim != 1:
            raise self.error(f"can only encode arrays of one dimension, not {array.shape}")
        try:
            dtype = np.dtype(self.configuration["dtype"])
            return array.astype(dtype, casting="same_kind" if array.size else "unsafe").tobytes()
        except TypeError as error:
            raise self.error(f"cannot store {array.dtype} as {self.configuration['dtype']}") from (
                error
            )


class _NestedList(ArrayBytes):
    """A list of the elements, nested as the array is, followed by its dtype and shape."""

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the name of the form."""
        return type(self).__name__

    def _load(self, raw: bytes) -> Any:
        raise NotImplementedError

    def _dump(self, items: list[Any]) -> bytes:
        raise NotImplementedError

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return an array of the elements, of the array's own dtype."""
        items = self._load(bytes(as_u1(data)))
        if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-1], list):
            raise self.error("the data are no list that ends with a dtype and a shape")
        shape = list(spec.shape) or [1]  # of arrays without axes, one of one element is written
        if items[-1] not in (shape, list(spec.shape)):
            raise self.error(f"holds a block of shape {items[-1]}, not {list(spec.shape)}")
        # Flattened level by level, so that elements which are lists stay lists.
        flat = items[:-2]
        for length in shape[1:]:
            if not all(isinstance(part, list) and len(part) == length for part in flat):
                raise self.error(f"the elements are not nested as the shape {shape} says")
            flat = [item for part in flat for item in part]
        if len(flat) != spec.size:
            raise self.error(f"holds {len(flat)} elements, the block needs {spec.size}")
        values = allocate((spec.size,), object)
        for index, item in enumerate(flat):  # at once, numpy would take lists for axes
            values[index] = item
        try:
            return values.reshape(spec.shape).astype(spec.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(f"the elements are no {spec.dtype}: {error}") from error

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return the elements, the dtype and the shape."""
        block = np.atleast_1d(np.asarray(block))
        return self._dump([*_to_lists(block), block.dtype.str, list(block.shape)])


def _to_lists(block: Block) -> list[Any]:
    """Return an array as nested lists; elements that are arrays themselves stay what they are."""
    if not block.dtype.hasobject:
        return block.tolist()
    return [_to_lists(part) if block.ndim > 1 else part for part in block]


class Json(_NestedList):
    """JSON text (numcodecs ``json2``)."""

    def validate(self) -> None:
        """Check the encoding; the other members are about writing."""
        encoding = self.configuration.get("encoding", "utf-8")
        if encoding not in ("utf-8", "ascii", "utf-16", "utf-32", "latin-1"):
            raise self.invalid(f"encoding {encoding!r} is not known")

    @property
    def _encoding(self) -> str:
        return self.configuration.get("encoding", "utf-8")

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return the text encoding."""
        return ("Json", self._encoding)

    def _load(self, raw: bytes) -> Any:
        try:
            return json.loads(raw.decode(self._encoding))
        except (ValueError, RecursionError) as error:
            raise self.error(f"the data are not JSON ({take_message(error)})") from error

    def _dump(self, items: list[Any]) -> bytes:
        names = ("skipkeys", "ensure_ascii", "check_circular", "allow_nan", "sort_keys", "indent")
        options = {key: self.configuration[key] for key in names if key in self.configuration}
        separators = tuple(self.configuration.get("separators") or (",", ":"))
        try:
            text = json.dumps(items, **{"sort_keys": True, **options}, separators=separators)
            return text.encode(self._encoding)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.error(f"an element has no JSON form ({error})") from error


class MsgPack(_NestedList):
    """MessagePack (numcodecs ``msgpack2``); the package msgpack reads and writes it."""

    def validate(self) -> None:
        """Check the members."""
        self.check_members((), ["raw", "use_single_float", "use_bin_type"])

    @staticmethod
    def _package() -> Any:
        return import_optional("msgpack", "codec msgpack2 needs the package msgpack: install it")

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable:
        """Return whether text is left as bytes."""
        return ("MsgPack", bool(self.configuration.get("raw")))

    def _load(self, raw: bytes) -> Any:
        package = self._package()
        as_bytes = bool(self.configuration.get("raw"))
        try:
            items = package.unpackb(raw, raw=as_bytes, strict_map_key=False, use_list=True)
        # TypeError: keys of maps that cannot be hashed.
        except (ValueError, TypeError, RecursionError, package.UnpackException) as error:
            raise self.error(f"the data are not MessagePack ({error})") from error
        return items

    def _dump(self, items: list[Any]) -> bytes:
        fields = self.configuration
        try:
            packed: bytes = self._package().packb(
                items,
                use_bin_type=fields.get("use_bin_type", True),
                use_single_float=fields.get("use_single_float", False),
            )
            return packed
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(f"an element has no MessagePack form ({error})") from error
