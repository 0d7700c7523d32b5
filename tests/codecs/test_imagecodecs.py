"""The bridge to imagecodecs, against its own v2 codecs and, where installed, its v3 codecs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codecs.blocks import block_of, same
from virtualzarr.codecs import ChunkSpec, Pipeline, make
from virtualzarr.codecs.bridges.imagecodecs import BYTES, IMAGES
from virtualzarr.errors import CodecError, UnsupportedError

imagecodecs = pytest.importorskip("imagecodecs")
theirs = pytest.importorskip("imagecodecs.numcodecs")

RAW = np.repeat(block_of(np.dtype("u1"), (1024,)), 4).tobytes()
SZIP = {
    "options_mask": 4,
    "pixels_per_block": 8,
    "bits_per_pixel": 8,
    "pixels_per_scanline": 64,
}


def available(short):
    name = "jpeg8" if short == "jpeg" else short
    constants = getattr(imagecodecs, name.upper(), None)
    return constants is not None and constants.available


def encodable(short):
    return available(short) and short not in ("lzo", "dds", "openzl", "isal")


@pytest.mark.parametrize("short", [name for name in BYTES if encodable(name)])
def test_bytes_both_directions(short):
    configuration = SZIP if short == "szip" else {}
    codec = make(f"imagecodecs_{short}", **configuration)
    raw = b"abcd" * 1024 if short == "pglz" else RAW
    other = getattr(theirs, short.capitalize())(**configuration)
    out = np.zeros(len(raw), "u1")
    for data in (bytes(other.encode(raw)), bytes(codec.encode(raw))):
        codec.decode_into(data, out)
        assert out.tobytes() == raw
        out[:] = 0
        assert bytes(codec.decode(data, len(raw), len(raw))) == raw
    assert bytes(other.decode(bytes(codec.encode(raw))))[: len(raw)] == raw
    for cut in (0, 1, len(data) // 2):
        with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
            codec.decode_into(data[:cut], out)
    with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
        codec.decode(data, len(raw) + 512, len(raw) + 512)
    if short != "lzw":  # strips of TIFFs may hold more than they should
        with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
            codec.decode(data, len(raw) - 512, len(raw) - 512)


def test_blosc_that_is_cut_off():
    noise = np.random.default_rng(1).bytes(64)  # stored as it is, as nothing is gained
    codec = make("imagecodecs_blosc")
    data, out = bytes(codec.encode(noise)), np.zeros(64, "u1")
    for cut in range(len(data)):
        with pytest.raises(CodecError, match="imagecodecs_blosc"):
            codec.decode_into(data[:cut], out)
        with pytest.raises(CodecError, match="imagecodecs_blosc"):
            codec.decode(data[:cut], 64, 64)


@pytest.mark.parametrize("short", ["bitshuffle", "byteshuffle", "zfp"])
def test_layouts_hold_no_objects(short):
    with pytest.raises(UnsupportedError, match=f"imagecodecs_{short}.*object"):
        Pipeline([make(f"imagecodecs_{short}")]).for_block((2,), np.dtype(object))


@pytest.mark.parametrize("short", ["lzf", "lz4"])
def test_streams_without_their_size(short):
    codec = make(f"imagecodecs_{short}", header=False)
    data = bytes(codec.encode(RAW))
    assert bytes(codec.decode(data, len(RAW), len(RAW))) == RAW
    assert codec.is_portable(3) is (short != "lzf")
    assert data == getattr(imagecodecs, f"{short}_encode")(RAW, header=False)


def test_lzf_and_lz4_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("hdf5plugin")
    import hdf5plugin

    block = np.frombuffer(RAW, "<i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("lzf", data=block, chunks=block.shape, compression="lzf")
        file.create_dataset("lz4", data=block, chunks=block.shape, **hdf5plugin.LZ4())
        for name, codec in (
            ("lzf", make("imagecodecs_lzf", header=False)),
            ("lz4", make("imagecodecs_lz4h5")),
        ):
            _, data = file[name].id.read_direct_chunk((0,))
            pipeline = Pipeline([make("bytes", endian="little"), codec])
            assert same(pipeline.for_block(block.shape, "i4").decode(data), block)


LOSSLESS = {
    "png": [("u1", (20, 30)), ("u2", (20, 30, 3)), ("u1", (1, 20, 30, 4)), ("i2", (20, 30))],
    "jpeg2k": [("u1", (20, 30)), ("u2", (20, 30, 3)), ("i2", (1, 20, 30)), ("u1", (20, 30, 1))],
    "jpegxl": [("u1", (20, 30)), ("u2", (20, 30, 3))],
    "jpegls": [("u1", (20, 30)), ("u2", (1, 1, 20, 30))],
    "lerc": [("f4", (20, 30)), ("i2", (20, 30)), ("u1", (20, 30, 3)), ("f8", (20, 30))],
    "webp": [("u1", (20, 30, 3)), ("u1", (20, 30, 4))],
    "bmp": [("u1", (20, 30))],
    "qoi": [("u1", (20, 30, 3))],
    "tiff": [("f4", (20, 30)), ("u2", (20, 30))],
    "spng": [("u1", (20, 30))],
    "ljpeg": [("u2", (20, 30))],
    "jpegxr": [("u1", (20, 30)), ("u2", (20, 30, 3))],
}
LEVELS = {"jpeg2k": {"level": 0}, "webp": {"lossless": True}, "jpegxl": {"lossless": True}}
LEVELS |= {"jpegxr": {"level": 1.0}}
DECODED = {"webp": {"hasalpha": True}}  # else an alpha channel without holes is left out


@pytest.mark.parametrize(
    ("short", "dtype", "shape"),
    [(k, *case) for k, cases in LOSSLESS.items() for case in cases if available(k)],
)
def test_images_without_loss(short, dtype, shape):
    rows = np.add.outer(np.arange(20), np.arange(30)) % 90
    block = np.broadcast_to(rows.reshape(20, 30, *(1 for _ in shape[2:])), (20, 30, *shape[2:]))
    block = np.resize(block, shape).astype(dtype)
    if short == "webp" and shape[-1] == 4:
        block[..., 3] = 255
    if dtype == "i2":
        block -= 20
    options = LEVELS.get(short, {}) | (DECODED.get(short, {}) if shape[-1] == 4 else {})
    codec = Pipeline([make(f"imagecodecs_{short}", **options)])
    codec = codec.for_block(shape, dtype)
    data = codec.encode(block)
    assert same(codec.decode(data), block)
    other = getattr(theirs, short.capitalize())(**LEVELS.get(short, {}))
    sample = block.view("u2") if dtype == "i2" and short == "png" else block
    assert same(codec.decode(bytes(other.encode(sample))), block)
    out = np.zeros(block[..., ::-2].shape, dtype)
    codec.decode_into(data, out, (*[slice(None)] * (len(shape) - 1), slice(None, None, -2)))
    assert (out == block[..., ::-2]).all()
    for wrong in ((*shape[:-1], shape[-1] + 1), (19, 30), (30, 20), (600,)):
        with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
            Pipeline([make(f"imagecodecs_{short}")]).for_block(wrong, dtype).decode(data)
    with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
        Pipeline([make(f"imagecodecs_{short}")]).for_block(shape, "c16").decode(data)


def test_jpeg_with_tables_and_colour_spaces():
    block = np.full((16, 24, 3), (200, 30, 60), "u1")
    data = imagecodecs.jpeg8_encode(block, level=95)
    expected = imagecodecs.jpeg8_decode(data, outcolorspace="YCBCR")
    codec = make("imagecodecs_jpeg", colorspace_data="YCBCR", bitspersample=8)
    assert same(Pipeline([codec]).for_block(block.shape, "u1").decode(data), expected)
    # The tables may be kept apart, as TIFF keeps them, and are base64 in documents.
    start, end = data.index(b"\xff\xdb"), data.index(b"\xff\xc0")
    tables = b"\xff\xd8" + data[start:end] + b"\xff\xd9"
    short = data[:start] + data[end:]
    codec = make("imagecodecs_jpeg", tables=tables)
    expected = imagecodecs.jpeg8_decode(data)
    assert same(Pipeline([codec]).for_block(block.shape, "u1").decode(short), expected)
    document = codec.to_v3()
    assert isinstance(document["configuration"]["tables"], str)
    assert Pipeline([document]) == Pipeline([codec])
    config = theirs.Jpeg(tables=tables).get_config()
    again = Pipeline.from_v2(None, config, "C", "|u1", block.shape)
    assert same(again.for_block(block.shape, "u1").decode(short), expected)
    with pytest.raises(CodecError, match="base64"):
        Pipeline([make("imagecodecs_jpeg", tables="*")]).for_block((2, 2), "u1").decode(short)


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">u2", "<f4", ">f4", "<f8"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_predictors(dtype, axis):
    shape = (4, 6, 8)
    block = block_of(np.dtype(dtype), shape)
    native = np.dtype(dtype).newbyteorder("=")
    dist = 1
    cases = [("delta", theirs.Delta)]
    if "f" in dtype and axis == -1:
        cases.append(("floatpred", theirs.Floatpred))
    for short, other in cases:
        config = other(shape=shape, dtype=dtype, axis=axis, dist=dist).get_config()
        pipeline = Pipeline.from_v2([config], {"id": "zlib", "level": 1}, "C", dtype, shape)
        data = make("numcodecs.zlib").encode(other(**without_id(config)).encode(block))
        codec = pipeline.for_block(shape, dtype)
        decoded = codec.decode(data)
        assert decoded.astype(dtype).tobytes() == block.tobytes()
        assert decoded.dtype == native
        assert codec.encode(decoded) == data
        document = pipeline.to_v3()[0]
        assert document == {
            "name": f"imagecodecs_{short}",
            "configuration": {"axis": axis, "dist": dist},
        }
        back = pipeline.to_v2(native, 3, shape)
        again = Pipeline.from_v2(back["filters"], back["compressor"], "C", back["dtype"], shape)
        assert same(again.for_block(shape, native).decode(data), decoded)
        with pytest.raises(UnsupportedError, match="chunk shape"):
            pipeline.to_v2(native, 3)


def without_id(config):
    return {key: value for key, value in config.items() if key != "id"}


def test_a_predictor_on_a_shape_of_its_own():
    block = block_of(np.dtype("u1"), (2, 3, 8))
    config = theirs.Delta(shape=(6, 8), dtype="u1", axis=-1).get_config()
    pipeline = Pipeline.from_v2([config], None, "C", "|u1", block.shape)
    data = theirs.Delta(shape=(6, 8), dtype="u1").encode(block.reshape(6, 8))
    assert same(pipeline.for_block(block.shape, "u1").decode(data), block)
    with pytest.raises(UnsupportedError, match="shape of its own"):
        pipeline.to_v3()
    fits = theirs.Delta(shape=(3, 8), dtype="u1", axis=-1).get_config()
    pipeline = Pipeline.from_v2([fits], None, "C", "|u1", (1, 3, 8))
    assert pipeline.to_v3()[0]["configuration"] == {"axis": -1, "dist": 1}


@pytest.mark.parametrize("bits", [1, 2, 4, 6, 10, 12])
@pytest.mark.parametrize("zipped", [False, True])
def test_packed_integers(bits, zipped):
    dtype = np.dtype("u1" if bits <= 8 else "u2")
    block = np.random.default_rng(bits).integers(0, 1 << bits, (5, 13)).astype(dtype)
    tail = [make("numcodecs.zlib")] if zipped else []
    codec = Pipeline([make("imagecodecs_packints", bitspersample=bits, runlen=13), *tail])
    codec = codec.for_block(block.shape, dtype)
    packed = b"".join(imagecodecs.packints_encode(row, bits, runlen=13) for row in block)
    data = make("numcodecs.zlib").encode(packed) if zipped else packed
    assert same(codec.decode(data), block)
    assert len(packed) == 5 * -(-13 * bits // 8)
    for bad in (data[:-1], data + b"x" if not zipped else b""):
        with pytest.raises(CodecError):
            codec.decode(bad)


def test_packed_booleans_reversed_bits():
    block = np.random.default_rng(0).integers(0, 2, (7, 11)).astype(bool)
    packed = np.packbits(block, axis=1).tobytes()
    chain = [make("imagecodecs_packints", bitspersample=1, runlen=11), make("imagecodecs_bitorder")]
    pipeline = Pipeline(chain)
    reversed_ = imagecodecs.bitorder_encode(packed)
    assert same(pipeline.for_block(block.shape, "?").decode(reversed_), block)
    assert pipeline.codecs[1].kind == "bytes_bytes"
    assert not pipeline.codecs[1].is_portable(3)
    array = Pipeline([make("imagecodecs_bitorder"), make("bytes")]).for_block((3,), "u1")
    assert array.decode(bytes([1, 2, 128])).tolist() == [128, 64, 1]


def test_narrow_floats():
    block = np.array([[0, 1, -2.5], [1e3, -1e-3, np.inf]], "f4")
    for short, size in (("float24", 18), ("bfloat16", 12)):
        for order in ("<", ">"):
            codec = make(f"imagecodecs_{short}", byteorder=order)
            data = getattr(imagecodecs, f"{short}_encode")(block, byteorder=order)
            expected = getattr(imagecodecs, f"{short}_decode")(data, byteorder=order)
            ready = Pipeline([codec]).for_block(block.shape, "f4")
            assert len(data) == size
            assert same(ready.decode(data), expected.reshape(2, 3))
            assert ready.encode(block) == data
            with pytest.raises(CodecError, match="the block needs"):
                ready.decode(data[:-1])


@pytest.mark.parametrize("short", ["bitshuffle", "byteshuffle"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8"])
def test_shuffles_of_arrays(short, dtype):
    block = block_of(np.dtype(dtype), (8, 16))
    options = (
        {"itemsize": block.itemsize}
        if short == "bitshuffle"
        else {"shape": block.shape, "dtype": dtype}
    )
    other = getattr(theirs, short.capitalize())(**options)
    source = block.tobytes() if short == "bitshuffle" else block
    data = bytes(other.encode(source))
    codec = Pipeline([make(f"imagecodecs_{short}")]).for_block(block.shape, dtype)
    assert same(codec.decode(data), block)
    assert codec.encode(block) == data
    config = other.get_config()
    pipeline = Pipeline.from_v2([config], None, "C", dtype, block.shape)
    assert same(pipeline.for_block(block.shape, dtype).decode(data), block)
    assert pipeline.codecs[0].name == f"imagecodecs_{short}"
    if short == "bitshuffle":
        document = pipeline.to_v3()[0]
        assert "itemsize" not in document.get("configuration", {})
    with pytest.raises(CodecError, match="the block needs"):
        codec.decode(data[:-8])


def test_fax():
    if not available("ccittrle"):
        pytest.skip("imagecodecs has no CCITT codecs")
    # One row of 8 white pixels: the modified Huffman code of white run 8 is 10011.
    codec = Pipeline([make("imagecodecs_ccittrle")]).for_block((1, 8), "u1")
    data = b"\x98"
    expected = imagecodecs.ccittrle_decode(data, height=1, width=8)
    assert same(codec.decode(data), expected)
    with pytest.raises(UnsupportedError, match="encoding"):
        codec.encode(np.zeros((1, 8), "u1"))
    with pytest.raises(CodecError, match="needs an image"):
        Pipeline([make("imagecodecs_ccittrle")]).for_block((8,), "u1").decode(data)


@pytest.mark.parametrize("short", ["zfp", "rcomp"])
def test_array_compressors(short):
    if not available(short):
        pytest.skip(f"imagecodecs has no {short}")
    dtype = "i2" if short == "rcomp" else "f4"
    block = np.add.outer(np.arange(20), np.arange(30)).astype(dtype)
    codec = Pipeline([make(f"imagecodecs_{short}")]).for_block(block.shape, dtype)
    assert same(codec.decode(codec.encode(block)), block)
    with pytest.raises(CodecError, match=f"imagecodecs_{short}"):
        codec.decode(b"")


def test_quantize_is_an_identity_on_reading():
    block = np.float32([1.23456, 2])
    codec = Pipeline(
        [make("imagecodecs_quantize", mode="bitround", nsd=2), make("bytes", endian="little")]
    )
    ready = codec.for_block((2,), "f4")
    assert ready.raw is not None
    assert ready.decode(block.tobytes()).tobytes() == block.tobytes()
    expected = imagecodecs.quantize_encode(block, "bitround", 2)
    assert ready.encode(block) == expected.tobytes()


def test_what_the_installed_imagecodecs_lacks_is_named():
    missing = [name for name in (*BYTES, *IMAGES) if not available(name)]
    if not missing:
        pytest.skip("imagecodecs has everything")
    codec = make(f"imagecodecs_{missing[0]}")
    data = codec.decode if codec.kind == "bytes_bytes" else None
    with pytest.raises(UnsupportedError, match=missing[0]):
        data(b"x", 1, 1) if data else codec.decode(b"x", ChunkSpec((1, 1), np.dtype("u1")))


def test_big_endian_images_of_v2_are_refused():
    config = {"id": "imagecodecs_jpeg2k"}
    with pytest.raises(UnsupportedError, match="native"):
        Pipeline.from_v2(None, config, "C", ">u2")
    assert Pipeline.from_v2(None, config, "C", "<u2").to_v3() == [{"name": "imagecodecs_jpeg2k"}]


def test_null_members_are_dropped():
    config = theirs.Jpeg2k(level=5).get_config()
    pipeline = Pipeline.from_v2(None, config, "C", "|u1", (4, 4))
    assert pipeline.to_v3() == [
        {"name": "imagecodecs_jpeg2k", "configuration": {"level": 5, "mct": True}}
    ]


@pytest.mark.parametrize(
    ("mode", "level", "number"),
    [("r", 8, 2), ("p", 12, 3), ("a", 0.01, 4), ("R", None, 5), ("reversible", None, 5)],
)
def test_names_of_zfp_modes_do_not_depend_on_the_version(mode, level, number):
    block = np.random.default_rng(0).normal(size=(9, 10)).astype("f4")
    fields = {"mode": mode} | ({} if level is None else {"level": level})
    named = Pipeline([make("imagecodecs_zfp", **fields)]).for_block(block.shape, "f4")
    counted = Pipeline([make("imagecodecs_zfp", **(fields | {"mode": number}))])
    stream = bytes(named.encode(block))
    assert stream == bytes(counted.for_block(block.shape, "f4").encode(block))
    assert stream == bytes(imagecodecs.zfp_encode(block, level, mode=number, header=True))
    if mode == "R":
        np.testing.assert_array_equal(named.decode(stream), block)


@pytest.mark.parametrize("mode", ["nothing", 99])
def test_modes_that_imagecodecs_does_not_have(mode):
    codec = Pipeline([make("imagecodecs_zfp", mode=mode)]).for_block((4,), "f4")
    with pytest.raises(CodecError, match="imagecodecs_zfp"):
        codec.encode(np.zeros(4, "f4"))
