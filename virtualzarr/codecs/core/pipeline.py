"""Codec pipelines: chains of codecs, from and to the documents of Zarr v2 and v3."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from virtualzarr.codecs.core import v2
from virtualzarr.codecs.core.base import ArrayArray, ArrayBytes, Buffer, BytesBytes, Codec
from virtualzarr.codecs.core.block import BlockCodec
from virtualzarr.codecs.core.byte_order import native
from virtualzarr.codecs.core.registry import codec_from_v3, make
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, UnsupportedError

_LARGE = 64 * 1024
"""Blocks of so many bytes are decoded one by one as fast."""


class BatchDecoder(NamedTuple):
    """Decodes many blocks: the last codec of all of them at once, then the others of each.

    Threads that decode one small block after the other take turns for the interpreter, which costs
    more than decoding does.

    Attributes
    ----------
    decode_last : callable
        Takes encoded blocks, and gives what the others decode, or None where the blocks have to be
        decoded one by one.
    others : BlockCodec
    """

    decode_last: Callable[[Sequence[Buffer]], Sequence[Buffer] | None]
    others: BlockCodec

    def decode(self, chunks: Sequence[Buffer]) -> Iterator[tuple[bool, Buffer]]:
        """Yield what the last codec makes of each chunk, or the chunk where it has to do it alone.

        The first of each pair tells whether it did.
        """
        # Bounded: what a batch decodes to is in memory together.
        size = max(config.batch_bytes // max(self.others.nbytes, 1), 1)
        for first in range(0, len(chunks), size):
            batch = chunks[first : first + size]
            decoded = self.decode_last(batch)
            if decoded is None:
                yield from zip(repeat(False), batch)
            else:
                yield from zip(repeat(True), decoded)


class Pipeline:
    """Codecs in the order of encoding: arrays to arrays, one array to bytes, bytes to bytes.

    Immutable, hashable, equal by value. `serializer` is the one from array to bytes.

    Parameters
    ----------
    codecs : iterable of Codec or str or mapping
        Codecs, or members of a v3 document's ``codecs`` list.

    Raises
    ------
    MetadataError
        The kinds are out of order, or there is not exactly one codec from array to bytes.

    Examples
    --------
    >>> pipeline = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
    >>> block = pipeline.for_block((2,), "i2")
    >>> block.decode(block.encode([1, 2]))
    array([1, 2], dtype=int16)
    """

    __slots__ = ("_hash", "codecs", "serializer")
    codecs: tuple[Codec, ...]
    serializer: ArrayBytes
    _hash: int

    def __init__(self, codecs: Iterable[Codec | str | Mapping[str, Any]]) -> None:
        chain = tuple(c if isinstance(c, Codec) else codec_from_v3(c) for c in codecs)
        chain = _order_by_kind(chain)
        # Past `__setattr__`, which refuses changes: pipelines are keys of caches.
        object.__setattr__(self, "codecs", chain)
        serializer = next(codec for codec in chain if isinstance(codec, ArrayBytes))
        object.__setattr__(self, "serializer", serializer)
        # Hashed once: the compiled codec of a block is looked up for every request.
        object.__setattr__(self, "_hash", hash(chain))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Pipeline cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return Pipeline, (self.codecs,)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Pipeline) and self.codecs == other.codecs)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.codecs))}])"

    # -- use ---------------------------------------------------------------------------------

    def for_block(self, shape: Sequence[int], dtype: Any, fill: Any = None) -> BlockCodec:
        """Return what decodes and encodes blocks of one shape and dtype.

        Parameters
        ----------
        shape : sequence of int
            The declared shape of the cell.
        dtype : dtype-like
            The dtype of the array.
        fill : optional
            The fill value of the array, zero by default: what parts of a shard that are not
            stored decode to.

        Raises
        ------
        CodecError
            A codec of the chain cannot be used with such blocks.
        """
        dtype = np.dtype(dtype)
        # Without the fill value where it means nothing: arrays that differ in it share one compiled
        # codec.
        if fill is None or not self.serializer.needs_fill:
            return _compile(self, tuple(shape), dtype)
        return _compile(self, tuple(shape), dtype, _Fill(fill, dtype))

    def batch_decoder(
        self, shape: Sequence[int], dtype: Any, fill: Any = None
    ) -> BatchDecoder | None:
        """Return what decodes many blocks together; None if the last codec cannot, or need not."""
        decode = getattr(self.codecs[-1], "decode_many", None)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if decode is None or nbytes > _LARGE:
            return None
        others = self.without(-1).for_block(shape, dtype, fill)
        size = others.encoded_size
        return None if size is None else BatchDecoder(partial(decode, size=size), others)

    def check_edges(self, edges: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> None:
        """Refuse blocks that cannot be encoded.

        Parameters
        ----------
        edges : sequence of sequences of int
            For each axis, the different edges that blocks have.

        Raises
        ------
        CodecError
            A shard with such an edge is not cut into whole sub-chunks.
        """
        for codec in self.codecs:
            # The serializer sees the axes in the order that transposes leave them in.
            if isinstance(codec, Transpose):
                edges = [edges[axis] for axis in codec.axes(len(edges))]
            elif isinstance(codec, ArrayBytes):
                codec.check_edges(edges)
            elif isinstance(codec, ArrayArray):
                return  # it may give another shape, known when there is a block

    def check_fill(self, fill: Any, dtype: np.dtype[Any]) -> None:
        """Refuse a fill value that a codec cannot store as it must.

        Raises
        ------
        CodecError
            It is out of the range of what is stored, or would come back as another.
        """
        for codec in self.codecs:
            if not isinstance(codec, ArrayArray) or fill is None:
                return
            fill = codec.check_fill(fill, dtype)
            dtype = codec.encode_dtype(dtype)

    def decoding_key(self, dtype: Any) -> Hashable:
        """Return a key that is equal for pipelines that decode alike.

        Compression levels do not matter, nor does the byte order of one-byte elements.
        """
        # Elements have no byte order before the bytes codec, whatever the dtype of the caller.
        dtype = native(np.dtype(dtype))
        keys = []
        for codec in self.codecs:
            key = codec.decoding_key(dtype)
            if key is not None:
                keys.append(key)
            if isinstance(codec, ArrayArray):
                dtype = codec.encode_dtype(dtype)
        return tuple(keys)

    def without(self, *indices: int) -> Pipeline:
        """Return the pipeline without some of its codecs.

        Parameters
        ----------
        *indices : int
            Places in `codecs` of those to leave out, which must be from bytes to bytes: a chunk
            may have skipped such a filter, as HDF5's filter masks say.
        """
        for index in indices:
            if self.codecs[index].kind != "bytes_bytes":
                raise ValueError(f"codec {self.codecs[index].name} cannot be left out of a chain")
        # Negative places count from the end, as in lists.
        skipped = {index % len(self.codecs) for index in indices}
        return Pipeline(codec for i, codec in enumerate(self.codecs) if i not in skipped)

    def with_first(self, **members: Any) -> Pipeline:
        """Return the pipeline with other numbers in its first codec, from array to array.

        They are not checked. Thousands of such pipelines are compiled in no time.
        """
        return _Variant(self, self.codecs[0].with_members(members))

    # -- v3 ----------------------------------------------------------------------------------

    @classmethod
    def from_v3(cls, documents: Sequence[str | Mapping[str, Any]]) -> Pipeline:
        """Build from the ``codecs`` list of a v3 document."""
        if not isinstance(documents, (list, tuple)) or not documents:
            raise MetadataError(f"codecs must be a list with at least one codec, not {documents!r}")
        return cls(documents)

    def to_v3(self, ndim: int | None = None) -> list[dict[str, Any]]:
        """Return the ``codecs`` list of a v3 document.

        Parameters
        ----------
        ndim : int, optional
            Number of dimensions; only needed after `from_v2` was not told the shape.
        """
        documents = []
        for codec in self.codecs:
            if isinstance(codec, Transpose) and isinstance(codec.configuration["order"], str):
                if ndim is None:
                    raise UnsupportedError(
                        "codec transpose: the order 'F' has no v3 form until the number of "
                        "dimensions is known; give ndim"
                    )
                codec = make("transpose", order=codec.axes(ndim))
            documents.append(codec.to_v3())
        return documents

    # -- v2 ----------------------------------------------------------------------------------

    @classmethod
    def from_v2(
        cls,
        filters: Sequence[Mapping[str, Any]] | None,
        compressor: Mapping[str, Any] | None,
        order: str,
        dtype: Any,
        shape: Sequence[int] | None = None,
    ) -> Pipeline:
        """Build from the members of a v2 document.

        Parameters
        ----------
        filters : list of mappings or None
        compressor : mapping or None
        order : {"C", "F"}
        dtype : dtype-like
            With the byte order of what is stored.
        shape : sequence of int, optional
            The chunk shape. With it, orders and shapes that v3 does not write are made explicit.
        """
        return cls(v2.codecs_from_v2(filters, compressor, order, np.dtype(dtype), shape))

    def to_v2(self, dtype: Any, ndim: int, shape: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the members of a v2 document.

        Parameters
        ----------
        dtype : dtype-like
            The dtype of the array.
        ndim : int
            Number of dimensions of the array.
        shape : sequence of int, optional
            The chunk shape, which some codecs of imagecodecs write down.

        Returns
        -------
        dict
            ``dtype`` (numpy.dtype, with the byte order of what is stored), ``filters`` (list or
            None), ``compressor`` (dict or None), ``order``.

        Raises
        ------
        UnsupportedError
            There is no such form.
        """
        return v2.codecs_to_v2(
            self.codecs, np.dtype(dtype), ndim, None if shape is None else tuple(shape)
        )


class _Variant(Pipeline):
    """A pipeline that differs from another one in numbers of its first codec only."""

    __slots__ = ("_template",)
    _template: Pipeline

    def __init__(self, template: Pipeline, first: Codec) -> None:
        object.__setattr__(self, "codecs", (first, *template.codecs[1:]))
        object.__setattr__(self, "serializer", template.serializer)
        object.__setattr__(self, "_template", template)

    # Not hashed beforehand: of thousands of variants, few are ever compared.
    def __hash__(self) -> int:
        return hash(self.codecs)

    def for_block(self, shape: Sequence[int], dtype: Any, fill: Any = None) -> BlockCodec:
        """Return what decodes blocks of one shape and dtype."""
        first = self.codecs[0]
        template = self._template.for_block(shape, dtype, fill)
        # Shards encode their fill value with the codecs before them, so each variant has its own.
        if not isinstance(first, ArrayArray) or self.serializer.needs_fill:
            return BlockCodec(self.codecs, tuple(shape), dtype, fill)
        return template.with_first(first)


def _order_by_kind(chain: tuple[Codec, ...]) -> tuple[Codec, ...]:
    """Return the chain with codecs of two kinds made the kind of their place; check the order."""
    serializers = [i for i, codec in enumerate(chain) if isinstance(codec, ArrayBytes)]
    if len(serializers) != 1:
        names = [codec.name for codec in chain]
        raise MetadataError(
            f"a chain needs exactly one codec from array to bytes, {names} has {len(serializers)}"
        )
    middle = serializers[0]
    # In v2, imagecodecs' bitorder may stand before or behind the bytes: its place tells its kind.
    after = tuple(_as_bytes(codec) for codec in chain[middle + 1 :])
    for codec in chain[:middle]:
        if not isinstance(codec, ArrayArray):
            raise MetadataError(f"codec {codec.name} must come after {chain[middle].name}")
    for codec in after:
        if not isinstance(codec, BytesBytes):
            raise MetadataError(f"codec {codec.name} must come before {chain[middle].name}")
    return (*chain[: middle + 1], *after)


def _as_bytes(codec: Codec) -> Codec:
    if codec.name == "imagecodecs_bitorder" and isinstance(codec, ArrayArray):
        from virtualzarr.codecs.bridges.imagecodecs import BitOrderBytes

        return BitOrderBytes(codec.name, codec.configuration)
    return codec


class _Fill:
    """A fill value that is equal to those of the same bits: 0.0 and -0.0 differ, NaNs do not."""

    __slots__ = ("bits", "value")

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self.value = value
        # By bits, as blocks are compared with the fill value by bits; objects by type, too, as 0 ==
        # False.
        self.bits = (type(value), value) if dtype.hasobject else np.asarray(value, dtype).tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fill) and self.bits == other.bits

    def __hash__(self) -> int:
        return hash(self.bits)


@lru_cache(maxsize=4096)
def _compile(
    pipeline: Pipeline, shape: tuple[int, ...], dtype: np.dtype[Any], fill: _Fill | None = None
) -> BlockCodec:
    return BlockCodec(pipeline.codecs, shape, dtype, None if fill is None else fill.value)
