"""Codec contract: three kinds, each with one way to decode and one to encode."""

from __future__ import annotations

import base64
import json
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.errors import CodecError, UnsupportedError

Block: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = Any  # bytes, memoryview or a flat uint8 array
Endian: TypeAlias = Literal["<", ">"]
U1 = np.dtype("u1")

# What an inner stage of unknown size may grow to: streams that do not compress stay well below.
# Decoders are given no more room than this beyond four times the block: a few bytes of a hostile
# chunk can claim gigabytes, and memory is taken before the claim is disproved.
SLACK = 1 << 16
UNSIZED_LIMIT = 1 << 30


class ChunkSpec(NamedTuple):
    """Shape and dtype of a block at one place in the chain.

    The fill value there is told only to codecs of arrays to bytes that need it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize


def as_hashable(value: Any) -> Hashable:
    """Return a hashable form of a JSON-like value."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, as_hashable(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(as_hashable(item) for item in value)
    # Buffers compare by content but cannot all be hashed.
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    # Equal to 0.0, but added to -0.0 it gives another sign.
    if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
        return _NEGATIVE_ZERO
    return value


_NEGATIVE_ZERO = ("float", "-0.0")


class Codec:
    """One step of a chain: a name, a configuration, and what they do.

    Codecs are immutable, hashable, and equal when name and configuration are.

    Attributes
    ----------
    name : str
        The name Zarr v3 documents use.
    kind : str
        ``"array_array"``, ``"array_bytes"`` or ``"bytes_bytes"``.
    configuration : dict
        Members of the configuration; not to be changed.
    """

    kind: ClassVar[str]
    # What decoding depends on; None: on everything in the configuration.
    decoding_fields: ClassVar[tuple[str, ...] | None] = None
    # A v2 document names it as its compressor when it comes last.
    compressor: ClassVar[bool] = False
    # v2 documents can name it.
    in_v2: ClassVar[bool] = True
    # Formats in whose documents other packages know the name, and decode what this codec decodes.
    portable_formats: ClassVar[tuple[int, ...]] = (2, 3)

    def __init__(self, name: str, configuration: Mapping[str, Any] | None = None) -> None:
        self.name = name
        # numpy scalars are no JSON, and NaN of numpy compares otherwise than that of Python in
        # keys.
        self.configuration: dict[str, Any] = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in (configuration or {}).items()
        }
        self.validate()

    def validate(self) -> None:
        """Check the configuration; raise `CodecError` when it is wrong."""

    def check_members(self, needed: Iterable[str] = (), others: Iterable[str] = ()) -> None:
        """Check that all members that are needed are there, and but for the others no more."""
        needed, members = {*needed}, {*self.configuration}
        if unknown := members - needed - {*others}:
            raise self.invalid(f"unknown members {sorted(unknown)}")
        if missing := needed - members:
            raise self.invalid(f"needs the members {sorted(missing)}")

    def decode_base64(self, text: Any, problem: str) -> bytes:
        """Return the bytes that a member of the configuration has as text, or say what is wrong."""
        try:
            return base64.b64decode(text, validate=True)
        except (TypeError, ValueError) as error:  # that of base64 is a ValueError, too
            raise self.invalid(problem) from error

    def check_integers(self, minima: Mapping[str, int]) -> None:
        """Check that the members are just these, each an integer of at least its minimum."""
        self.check_members(minima)
        for name, minimum in minima.items():
            value = self.configuration[name]
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < minimum:
                raise self.invalid(
                    f"{name} must be an integer of at least {minimum}, not {value!r}"
                )
            self.configuration[name] = operator.index(value)

    def get_dtype(self, member: str) -> np.dtype[Any]:
        """Return the dtype that a member of the configuration names."""
        try:
            return np.dtype(self.configuration[member])
        except TypeError as error:
            raise self.invalid(f"{member}: {error}") from error

    def with_members(self, members: Mapping[str, Any]) -> Codec:
        """Return the codec with other values of some members, which are not checked."""
        # Not through `__init__`: thousands of tiles differ in two numbers, and checking costs more
        # than decoding.
        codec = object.__new__(type(self))
        codec.name = self.name
        codec.configuration = {**self.configuration, **members}
        return codec

    def invalid(self, problem: str) -> CodecError:
        """Return the error for a wrong configuration."""
        return CodecError(f"codec {self.name}: {problem}")

    def error(self, problem: object) -> CodecError:
        """Return the error for bytes that do not decode."""
        return CodecError(f"{self.name}: {problem}")

    def size_error(self, got: int, need: int) -> CodecError:
        """Return the error for a decoded size that does not fit the block."""
        return self.error(f"decoded {got} bytes, the block needs {need}")

    def read_only_error(self) -> UnsupportedError:
        """Return the error for encoding by a codec that only decodes."""
        return UnsupportedError(f"codec {self.name}: encoding is not supported")

    def __getstate__(self) -> dict[str, Any]:
        # What was computed is left out: it depends on what was read before, and pickles of equal
        # codecs are compared.
        of_class = type(self)
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(of_class, name, None), cached_property)
        }

    @cached_property
    def _identity(self) -> Hashable:
        return (self.kind, self.name, as_hashable(self.configuration))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.configuration.items())
        return f"{self.name}({arguments})"

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Return the codec with what it takes from the array at its place filled in."""
        return self

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return what decoding depends on; None when decoding changes nothing."""
        # Levels and block sizes are chosen by writers; arrays that differ in nothing else can be
        # joined.
        fields = self.configuration
        if self.decoding_fields is not None:
            fields = {key: fields[key] for key in self.decoding_fields if key in fields}
        return (type(self).__name__, as_hashable(fields))

    def is_portable(self, zarr_format: int) -> bool:
        """Whether other packages that know codecs of this name decode what this one decodes.

        Only of the codec itself; `to_v2` and `to_v3` refuse what has no form at all.
        """
        return zarr_format in self.portable_formats

    @property
    def v2_id(self) -> str:
        """The id Zarr v2 documents use."""
        return self.name.removeprefix("numcodecs.")

    def to_v3(self) -> dict[str, Any]:
        """Return the member of a v3 document's ``codecs`` list."""
        if not self.configuration and not self.name.startswith("numcodecs."):
            return {"name": self.name}
        return {"name": self.name, "configuration": to_json(self.configuration)}

    def to_v2(self, spec: ChunkSpec, endian: Endian) -> dict[str, Any]:
        """Return the v2 configuration at a place where the array is as `spec` says.

        Raises
        ------
        UnsupportedError
            There is none.
        """
        if not self.in_v2:
            raise UnsupportedError(f"codec {self.name} has no v2 form")
        return {"id": self.v2_id, **to_json(self.configuration)}


def to_json(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as plain JSON values, sure not to be shared."""
    if all(type(value) in _ATOMS for value in configuration.values()):  # most are
        return dict(configuration)
    # A copy through JSON: a caller that changes its document must not change an immutable codec.
    return json.loads(json.dumps(configuration))


_ATOMS = frozenset({str, int, float, bool, type(None)})


class ArrayArray(Codec):
    """A codec from array to array."""

    kind = "array_array"
    # Each element is decoded on its own, wherever it is in the block.
    elementwise: ClassVar[bool] = False

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec of the encoded array."""
        return spec

    def encode_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the encoded array, whatever its shape."""
        # No codec but a rearrangement looks at the shape to tell the dtype, so one element will do.
        return self.encode_spec(ChunkSpec((1,), dtype)).dtype

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> Any:
        """Return the fill value as the encoded array has it, None where that is not defined.

        Raises `CodecError` where the specification of the codec refuses such a fill value.
        """
        return fill if self.is_identity(ChunkSpec((1,), dtype)) else None

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return the fill value of the encoded array."""
        # The whole block: codecs such as delta encode the first element otherwise than the others.
        return self.encode(np.full(spec.shape, fill, spec.dtype), spec).flat[0]

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the array whose encoded form is `block`; `spec` is what comes out."""
        raise NotImplementedError

    def encode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the encoded form of `block`, which is as `spec` says."""
        raise self.read_only_error()

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Whether decoding returns its input."""
        return False


class Rearrangement(ArrayArray):
    """Base of array-to-array codecs that only move elements: each keeps its dtype and value."""

    def encode_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype."""
        return dtype

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> Any:
        """Return the fill value."""
        return fill

    def encode_fill(self, fill: Any, spec: ChunkSpec) -> Any:
        """Return the fill value."""
        return fill

    def resolve(self, spec: ChunkSpec) -> Codec:
        """Check that the block has the axes that are moved."""
        self.encode_spec(spec)
        return self


class ElementCast(ArrayArray):
    """Base of array-to-array codecs that decode elements of another dtype, each on its own.

    The member `data_type` of the configuration is numpy's name of the dtype that is stored.
    """

    in_v2 = False
    elementwise = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is stored."""
        return self.get_dtype("data_type")

    def encode_spec(self, spec: ChunkSpec) -> ChunkSpec:
        """Return the spec with the stored dtype."""
        return ChunkSpec(spec.shape, self.dtype)


class LossyFilter(ArrayArray):
    """Base of array-to-array codecs that drop digits when encoding; decoding changes nothing."""

    def is_identity(self, spec: ChunkSpec) -> bool:
        """Return True."""
        return True

    def decoding_key(self, dtype: np.dtype[Any]) -> Hashable | None:
        """Return None."""
        return None

    def decode(self, block: Block, spec: ChunkSpec) -> Block:
        """Return the block."""
        return block


class ArrayBytes(Codec):
    """A codec from array to bytes."""

    kind = "array_bytes"
    # Decoding depends on the array's fill value.
    needs_fill: ClassVar[bool] = False
    # `decode_into` writes into an array of any strides without making another.
    decodes_in_place: ClassVar[bool] = False

    def check_edges(self, edges: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> None:
        """Raise `CodecError` unless blocks with any of these edges, by axis, can be encoded."""

    def compute_encoded_size(self, spec: ChunkSpec) -> int | None:
        """Return the number of bytes of an encoded array, if that is always the same."""
        return None

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the array (shape and native dtype as `spec`)."""
        raise NotImplementedError

    def decode_into(self, data: Buffer, spec: ChunkSpec, out: Block) -> None:
        """Decode into an array, of the shape and native dtype of `spec`."""
        out[...] = self.decode(data, spec)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return the bytes of `block`."""
        raise self.read_only_error()


class BytesBytes(Codec):
    """A codec from bytes to bytes.

    Subclasses write `decode_into`, or `decode`, or both.
    """

    kind = "bytes_bytes"

    @property
    def longest(self) -> int:
        """Bytes that it may be given more than a block has, if it says so."""
        return 0

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return the encoded size of `size` bytes, if that is always the same."""
        return None

    def fills_memory(self, size: int) -> bool:
        """Tell whether `decode_into` writes so many bytes where they are wanted, without a copy."""
        return type(self).decode_into is not BytesBytes.decode_into

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the decoded bytes: exactly `size`, or at most `limit` when it is not known."""
        # The size is unknown behind a codec without a fixed encoded size, as behind vlen-utf8.
        if size is None:
            raise self.error("the decoded size must be known, and what follows does not tell it")
        out = allocate((size,), U1)
        self.decode_into(data, out)
        return out

    def decode_exactly(self, data: Buffer, size: int) -> Buffer:
        """Return the decoded bytes, which must be so many."""
        result = self.decode(data, size, size)
        got = nbytes_of(result)
        if got != size:
            raise self.size_error(got, size)
        return result

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Decode into `out`, a flat uint8 array that the result must fill exactly."""
        # Only codecs without a decoder that writes into given memory pay for this copy.
        out[:] = as_u1(self.decode_exactly(data, out.size))

    def encode(self, data: Buffer) -> Buffer:
        """Return the encoded bytes."""
        raise self.read_only_error()


def nbytes_of(data: Buffer) -> int:
    """Return the number of bytes in a buffer."""
    # First, as it is what stores give nearly always: this is called for every chunk.
    if type(data) is bytes:
        return len(data)
    return data.nbytes if hasattr(data, "nbytes") else len(data)


def as_view(data: Buffer) -> memoryview:
    """Return a buffer as a flat view of bytes without copying."""
    if type(data) is memoryview and data.ndim == 1 and data.itemsize == 1:
        return data
    flat: Any = as_u1(data)
    return memoryview(flat)


def as_u1(data: Buffer) -> Block:
    """Return a buffer as a flat uint8 array without copying."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(U1)
    return np.frombuffer(data, U1)
