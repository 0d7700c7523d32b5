"""Compiled pipelines: decoding and encoding of blocks of one shape and dtype.

Decoding is compiled once to a few steps. Where the elements end up as plain bytes, the last step
writes into the caller's array: the decompressor itself when the array's memory is laid out like the
bytes, else one assignment from a buffer kept per thread. A byte shuffle is undone by that same
assignment: for each byte of an element, one strided copy that also brings it to its place in the
native element and in the selected part of the array. Where most of a large block is wanted, Blosc
undoes the shuffle first, with vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from virtualzarr.codecs.bytes import Bytes
from virtualzarr.codecs.core.base import (
    SLACK,
    U1,
    UNSIZED_LIMIT,
    ArrayArray,
    ArrayBytes,
    Block,
    Buffer,
    BytesBytes,
    ChunkSpec,
    Codec,
    as_u1,
    as_view,
    nbytes_of,
)
from virtualzarr.codecs.core.byte_order import byte_positions, native
from virtualzarr.codecs.core.scratch import allocate, scratch, scratch_views
from virtualzarr.codecs.core.strided import StridedLayout, find_strided_layout
from virtualzarr.codecs.shuffle import HEAD, Shuffle, blosc_head, unshuffler
from virtualzarr.codecs.transpose import Transpose, inverse
from virtualzarr.errors import CodecError

Step: TypeAlias = Callable[[Buffer], Buffer]
Into: TypeAlias = Callable[[Buffer, Block], None]
_STRIDED = 64  # up to this element size, a shuffle is undone byte by byte
_FAST = (1 << 14, 1 << 29)  # between so many bytes of a block, Blosc undoes it faster


class BlockCodec:
    """Decodes and encodes blocks of one shape and dtype; made by `Pipeline.for_block`.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        What `decode` returns, in native byte order (structured dtypes as they were given).
    nbytes : int
        Decoded size in bytes (for object dtypes: of the references).
    encoded_size : int or None
        Bytes of an encoded block, if that is always the same.
    raw : (numpy.dtype, tuple of int) or None
        Set when the encoded bytes are just the elements: their dtype as stored, and the order of
        their axes (axis ``i`` of what is stored is axis ``order[i]`` of the block).
    strided : StridedLayout or None
        Set when the encoded bytes are elements of which the block takes some, or which are
        converted one by one; always set with `raw`.
    largest : int
        Bytes of the block, or of what it is taken from if that is more.
    """

    def __init__(
        self, codecs: Sequence[Codec], shape: tuple[int, ...], dtype: Any, fill: Any = None
    ) -> None:
        spec = ChunkSpec(tuple(int(length) for length in shape), native(np.dtype(dtype)))
        self.shape, self.dtype, self.nbytes = spec.shape, spec.dtype, spec.nbytes
        self._size = spec.size
        self._filters: list[tuple[ArrayArray, ChunkSpec]] = []
        self._bytes: list[BytesBytes] = []
        # Specs are handed from codec to codec as in the v3 specification: each sees the shape and
        # dtype that the one before makes of the chunk.
        for codec in codecs:
            codec = codec.resolve(spec)
            if isinstance(codec, ArrayArray):
                self._filters.append((codec, spec))
                spec = codec.encode_spec(spec)
            elif isinstance(codec, ArrayBytes):
                self._serializer: ArrayBytes = codec
            elif isinstance(codec, BytesBytes):
                self._bytes.append(codec)
        if self._serializer.needs_fill:
            spec = spec._replace(fill=self._encode_fill(fill))
        # Where blocks cannot be cut, no chunk is read: the error names the metadata, not a chunk.
        self._serializer.check_edges([[length] for length in spec.shape])
        self._inner = spec
        self.max_nbytes = max(self.nbytes, spec.nbytes)
        self._plan()

    def with_first(self, codec: ArrayArray) -> BlockCodec:
        """Return what decodes with other numbers in its first codec, which has to be compiled anew
        only where that can make a difference to the plan.
        """
        spec = self._filters[0][1]
        if self._plain or self.strided is not None or self._undo[-1][0] is not self._filters[0][0]:
            codecs = [codec, *(other for other, _ in self._filters[1:]), self._serializer]
            return BlockCodec([*codecs, *self._bytes], spec.shape, spec.dtype)
        copy = object.__new__(BlockCodec)
        copy.__dict__.update(self.__dict__)
        copy._filters = [(codec, spec), *self._filters[1:]]
        copy._undo = [*self._undo[:-1], (codec, spec)]
        return copy

    def _encode_fill(self, fill: Any) -> Any:
        """Return what the codecs of arrays make of the fill value."""
        for codec, spec in self._filters:
            if fill is not None and spec.size and not isinstance(codec, Transpose):
                fill = codec.encode_fill(fill, spec)
        return fill

    # -- compiling ---------------------------------------------------------------------------

    def _plan(self) -> None:
        """Choose how to decode."""
        self.raw: tuple[np.dtype[Any], tuple[int, ...]] | None = None
        self.strided: StridedLayout | None = None
        # What decodes to its input is left out of the plan, but not of encoding.
        steps = [(c, s) for c, s in self._filters if not c.is_identity(s)]
        self._undo = steps[::-1]
        verbatim = isinstance(self._serializer, Bytes) and self._serializer.is_verbatim(
            self._inner.dtype
        )
        self._plain = verbatim and all(isinstance(codec, Transpose) for codec, _ in steps)
        if isinstance(self._serializer, Bytes) and verbatim and not self._bytes:
            stored = self._serializer.encode_dtype(self._inner.dtype)
            self.strided = find_strided_layout(steps, stored, self._inner.shape)
        sizes = self._sizes()
        chain = [
            (codec, size)
            for codec, size in zip(self._bytes, sizes, strict=False)
            if not (isinstance(codec, Shuffle) and codec.elementsize == 1)
        ]
        self._planes: tuple[int, ...] | None = None
        self._head: Block | None = None
        if not self._plain:
            self._steps = [self._step(codec, size) for codec, size in reversed(chain)]
            if isinstance(self._serializer, Bytes):
                self._serializer.encode_dtype(
                    self._inner.dtype
                )  # or it raises, before any data is read
            return
        assert isinstance(self._serializer, Bytes)
        # From here on, bytes are elements in some order of axes: no array is made between two
        # codecs.
        self._stored = self._serializer.encode_dtype(self._inner.dtype)
        self._order = self._axes(steps)
        self._inverse = inverse(self._order)
        self._is_c_order = self._order == tuple(range(len(self._order)))
        self._stored_shape = tuple(self.shape[axis] for axis in self._order)
        self._is_native = self._stored == self.dtype
        if not chain:
            self.raw = (self._stored, self._order)
        # The order of positions brings bytes into native order as well, at no cost: big-endian
        # shuffled data take as long as little-endian ones.
        elif self._is_fusible(chain[0][0]):
            self._planes = byte_positions(self._stored, self.dtype)
            if _FAST[0] <= self.nbytes <= _FAST[1] and unshuffler() is not None:
                self._head = blosc_head(self.nbytes, self._stored.itemsize)
            del chain[0]
        self._last: Into | None = None
        self._decode_copy: Step | None = None
        # The last decompressor writes where elements are wanted; one with a trailer or of unknown
        # size needs a buffer of its own.
        if chain and chain[0][1] == self.nbytes:
            self._last = chain[0][0].decode_into
            if not chain[0][0].fills_memory(self.nbytes):
                self._decode_copy = partial(chain[0][0].decode_exactly, size=self.nbytes)
            del chain[0]
        self._steps = [self._step(codec, size) for codec, size in reversed(chain)]

    def _is_fusible(self, codec: BytesBytes) -> bool:
        width = self._stored.itemsize
        return isinstance(codec, Shuffle) and codec.elementsize == width and width <= _STRIDED

    def _sizes(self) -> list[int | None]:
        """Return the decoded size of each codec of bytes, where it is known."""
        size = self._serializer.compute_encoded_size(self._inner)
        sizes = []
        for codec in self._bytes:
            sizes.append(size)
            size = codec.compute_encoded_size(size)
        self.encoded_size = size
        return sizes

    def _step(self, codec: BytesBytes, size: int | None) -> Step:
        # Objects are pointers: how long their text is, is not bounded by the block's size.
        limit = UNSIZED_LIMIT if self.dtype.hasobject else 4 * self.max_nbytes + SLACK
        limit = max([limit, *(codec.longest for codec in self._bytes)])
        decode = codec.decode
        return lambda data: decode(data, size, limit)

    def _axes(self, steps: list[tuple[ArrayArray, ChunkSpec]]) -> tuple[int, ...]:
        axes = tuple(range(len(self.shape)))
        for codec, spec in steps:
            assert isinstance(codec, Transpose)
            axes = tuple(axes[axis] for axis in codec.axes(len(spec.shape)))
        return axes

    # -- decoding ----------------------------------------------------------------------------

    def decode(self, data: Buffer) -> Block:
        """Decode a block.

        Parameters
        ----------
        data : bytes-like
            The encoded bytes of one chunk.

        Returns
        -------
        numpy.ndarray
            A new array of `shape` and `dtype`.

        Raises
        ------
        CodecError
            The bytes do not decode to exactly this block.
        """
        if not self._plain:
            block = self._decode_by_arrays(data)
            # Views of the input, or of one repeated element, are read-only: callers own what they
            # get.
            return block if block.flags.writeable else block.copy()
        if self._is_c_order:
            out = allocate(self.shape, self.dtype)
        else:
            # In stored order, so that the decompressor can write straight into it; the transpose is
            # a view.
            out = allocate(self._stored_shape, self.dtype).transpose(self._inverse)
        self.decode_into(data, out)
        return out

    def decode_into(self, data: Buffer, out: Block, select: Any = None) -> None:
        """Decode a block, or a part of it, into an array.

        Parameters
        ----------
        data : bytes-like
            The encoded bytes of one chunk.
        out : numpy.ndarray
            Where to write, of any strides, with the shape of ``block[select]``.
        select : tuple, optional
            Slices or index arrays, one per axis. The whole block when not given.

        Raises
        ------
        CodecError
            The bytes do not decode to exactly this block; `out` may then hold anything.
        """
        # Empty blocks are stored as anything, such as no bytes at all, which codecs would refuse.
        if not self._size:
            return
        if type(data) is not bytes:
            data = as_view(data)
        if not self._plain:
            if select is None and self._can_decode_in_place(out):
                for step in self._steps:
                    data = step(data)
                self._serializer.decode_into(data, self._inner, out)
                return
            block = self._decode_by_arrays(data)
            if out.ndim:
                out[...] = block if select is None else block[select]
            else:
                out[()] = _element(block, () if select is None else select, out.dtype)
            return
        for step in self._steps:
            data = step(data)
        if self._planes is not None:
            self._copy_planes(data, out, select)
        elif self._last is None:
            self._copy_elements(data, out, select)
        else:
            self._decode_last(self._last, data, out, select)

    def _can_decode_in_place(self, out: Block) -> bool:
        """Tell whether the serializer can write into `out`, and nothing is to be undone then."""
        is_same = out.dtype == self._inner.dtype and not out.dtype.hasobject
        return self._serializer.decodes_in_place and is_same and not self._undo

    def _decode_unshuffled(self, last: Into, data: Buffer, out: Block, select: Any) -> None:
        """Undo a shuffle of all elements, in `out` itself where its memory allows."""
        unshuffle = unshuffler()
        assert unshuffle is not None
        end = HEAD + self.nbytes
        # On a cache line of its own: vector instructions of unaligned memory are slower.
        start = -(-end // 64) * 64
        memory = scratch(start + self.nbytes)
        memory[:HEAD] = self._head
        last(data, memory[HEAD:end])
        self._decode_last(unshuffle, memory[:end], out, select, memory[start:])

    def _copy_planes(self, data: Buffer, out: Block, select: Any) -> None:
        """Undo a shuffle, bring bytes into native order, and write the selected part, in one go."""
        assert self._planes is not None
        # Blosc undoes all of the block; below half of it, strided copies of the selection are
        # faster.
        if self._last is not None and self._head is not None and 2 * out.size > self._size:
            self._decode_unshuffled(self._last, data, out, select)
            return
        if self._last is not None:
            flat, planes = scratch_views(self, self.nbytes, self._split)
            self._last(data, flat)
        else:
            if nbytes_of(data) != self.nbytes:
                raise self._wrong_size(data)
            planes = self._split(as_u1(data))[1]
        if out.dtype == self.dtype:
            target = out
        else:
            # Bytes are only those of elements in the block's own dtype; casting comes after.
            target = np.empty(out.shape, self.dtype)
        if select is None:
            for position, plane in zip(self._planes, planes, strict=True):
                target.getfield(U1, position)[...] = plane
        else:
            for position, plane in zip(self._planes, planes, strict=True):
                target.getfield(U1, position)[...] = plane[select]
        if target is not out:
            out[...] = target

    def _split(self, flat: Block) -> tuple[Block, list[Block]]:
        planes = list(flat.reshape((self._stored.itemsize, *self._stored_shape)))
        if not self._is_c_order:
            planes = [plane.transpose(self._inverse) for plane in planes]
        # Elements of a flat array are scalars, not views: a block without axes needs arrays.
        elif not self.shape:
            planes = [np.ndarray((), U1, flat, k) for k in range(self._stored.itemsize)]
        return flat, planes

    def _copy_elements(self, data: Buffer, out: Block, select: Any) -> None:
        """Write the selected part of elements that lie in `data`."""
        if nbytes_of(data) != self.nbytes:
            raise self._wrong_size(data)
        block = self._view(as_u1(data))
        out[...] = block if select is None else block[select]

    def _decode_last(
        self, last: Into, data: Buffer, out: Block, select: Any, memory: Block | None = None
    ) -> None:
        """Decode into `out` itself where its memory allows, else into scratch memory first."""
        if select is None and self._is_native and out.dtype == self.dtype:
            target = out if self._is_c_order else out.transpose(self._order)
            # Part of a larger array has gaps between its rows, which no decompressor leaves.
            if target.flags.c_contiguous:
                last(data, target.reshape(-1).view(U1))
                return
        if memory is None and self._decode_copy is not None:
            self._copy_elements(self._decode_copy(data), out, select)
            return
        flat = scratch(self.nbytes) if memory is None else memory
        last(data, flat)
        block = self._view(flat)
        out[...] = block if select is None else block[select]

    def _view(self, flat: Block) -> Block:
        block = flat.view(self._stored).reshape(self._stored_shape)
        return block if self._is_c_order else block.transpose(self._inverse)

    def _decode_by_arrays(self, data: Buffer) -> Block:
        """Decode through arrays at every step; what is returned may be read-only."""
        if not self._size:
            return np.empty(self.shape, self.dtype)
        if type(data) is not bytes:
            data = as_view(data)
        for step in self._steps:
            data = step(data)
        block = self._serializer.decode(data, self._inner)
        # Codecs of arrays work on native numbers, the serializer gives those that are stored.
        if block.dtype != self._inner.dtype:
            block = block.astype(self._inner.dtype)
        for codec, spec in self._undo:
            block = codec.decode(block, spec)
        return block

    def _wrong_size(self, data: Buffer) -> CodecError:
        return self._serializer.size_error(nbytes_of(data), self.nbytes)

    # -- encoding ----------------------------------------------------------------------------

    def encode(self, block: Block) -> bytes:
        """Encode a block.

        Parameters
        ----------
        block : array-like
            Of this shape; cast to this dtype where that is safe.

        Returns
        -------
        bytes

        Raises
        ------
        CodecError
            The block has another shape, or cannot be encoded.
        """
        block = np.asarray(block)
        if block.shape != self.shape:
            raise CodecError(f"cannot encode a block {block.shape}: the chunk is {self.shape}")
        if block.dtype != self.dtype:
            try:
                # Only casts within a kind: float to integer would lose digits without a word.
                block = block.astype(self.dtype, casting="same_kind")
            except (TypeError, ValueError) as error:
                raise CodecError(f"cannot store {block.dtype} as {self.dtype}") from error
        for codec, spec in self._filters:
            block = codec.encode(block, spec)
        data: Buffer = self._serializer.encode(block, self._inner)
        for stage in self._bytes:
            data = stage.encode(data)
        return data if type(data) is bytes else as_u1(data).tobytes()


def _element(block: Any, select: Any, dtype: np.dtype[Any]) -> Any:
    """Return one element of a block: a sequence as such, where elements are sequences."""
    # A scalar of bytes or text would be indexed as such.
    is_block = isinstance(block, np.ndarray) and block.dtype == dtype
    return block[select] if is_block else block  # codecs may have taken it out of its axes
