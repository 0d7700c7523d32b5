"""A real object store on loopback: files scanned, read, joined, published and written there."""

from __future__ import annotations

import asyncio
import io
import logging
import uuid

import dask
import fsspec
import h5py
import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

import virtualzarr as vz
from virtualzarr.errors import (
    AccessError,
    MismatchError,
    SkippedVariableWarning,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    WriteError,
)
from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.stores.s3 import S3Transport

pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def endpoint():
    """Run a server, and make sure that nobody's own keys are used."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture(scope="module")
def options(endpoint):
    return {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": endpoint}}


@pytest.fixture
def bucket(options):
    """Return the URL of a new bucket."""
    name = f"b{uuid.uuid4().hex}"
    fsspec.filesystem("s3", **options).mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="module")
def put(options):
    """Write an object as somebody else would, so that nothing of this process notices."""
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)

    def write(url, data):
        fs.pipe_file(url, data)
        return url

    return write


def hdf5(start=0, hours=6, **more):
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["time"] = np.arange(start, start + hours, dtype="f8")
        made["time"].attrs["units"] = "hours since 2000-01-01"
        made["time"].make_scale("time")
        values = np.arange(start * 40, (start + hours) * 40, dtype="f4").reshape(hours, 40)
        how = {"chunks": (3, 16), "compression": "gzip", "shuffle": True}
        air = made.create_dataset("air", data=values, **how)
        air.dims[0].attach_scale(made["time"])
        made.create_dataset("names", data=["é", "b"], dtype=h5py.string_dtype())
        for name, value in more.items():
            made[name] = value
    return file.getvalue()


def air(files, hours=6):
    return np.arange(files * hours * 40, dtype="f4").reshape(files * hours, 40)


def test_hdf5(bucket, options, put):
    url = put(f"{bucket}/folder/a.h5", hdf5())
    group = vz.virtualize(url, storage_options=options)
    assert np.array_equal(group["air"][...], air(1))
    assert group["names"][...].tolist() == ["é", "b"]
    source = group["air"].manifest.sources[0]
    assert source.uri == url
    assert source.etag
    with pytest.raises(SourceNotFoundError, match=r"none\.h5"):
        vz.virtualize(f"{bucket}/none.h5", storage_options=options)
    with pytest.raises(SourceError):
        vz.virtualize(f"{bucket}none/a.h5", storage_options=options)


def test_external_links(bucket, options, put):
    link = h5py.ExternalLink("parts/b.h5", "/air")
    out = h5py.ExternalLink("../secret.h5", "/air")
    url = put(f"{bucket}/folder/a.h5", hdf5(far=link, out=out))
    put(f"{bucket}/folder/parts/b.h5", hdf5())
    put(f"{bucket}/secret.h5", hdf5())
    with pytest.warns(SkippedVariableWarning):
        group = vz.virtualize(url, storage_options=options, on_error="warn")
    assert group.skipped.keys() == {"out"}
    assert np.array_equal(group["far"][...], air(1))
    with pytest.raises(AccessError):
        vz.virtualize(url, storage_options=options)
    group = vz.virtualize(url, storage_options=options, allowed=bucket)
    assert np.array_equal(group["out"][...], air(1))


def test_many_files_by_pattern(bucket, options, put):
    for k in range(12):
        put(f"{bucket}/{k}.h5", hdf5(6 * k))
    group = vz.virtualize(f"{bucket}/*.h5", concat_dim="time", storage_options=options,
                          drop_variables=["names"])  # fmt: skip
    assert np.array_equal(group["air"][...], air(12))
    assert group["air"][50:53, ::7].tolist() == air(12)[50:53, ::7].tolist()


def test_tiff(bucket, options, put):
    image = RANDOM.integers(0, 9, (3, 70, 90)).astype("u2")
    file = io.BytesIO()
    tifffile.imwrite(file, image, tile=(32, 32), compression="zlib", photometric="minisblack")
    group = vz.virtualize(put(f"{bucket}/a.tif", file.getvalue()), storage_options=options)
    found = [node for _, node in group.members(None) if node.shape == image.shape]
    assert np.array_equal(found[0][...], image)


def test_zarr(bucket, options):
    values = RANDOM.normal(size=(20, 30))
    for version in (2, 3):
        url = f"{bucket}/{version}.zarr"
        theirs = zarr.create_array(url, shape=(20, 30), chunks=(7, 8), dtype="f8",
                                   zarr_format=version, storage_options=options)  # fmt: skip
        theirs[...] = values
        assert np.array_equal(vz.open(url, storage_options=options)[...], values)
        virtual = vz.virtualize(url, storage_options=options)
        array = virtual if isinstance(virtual, vz.Array) else next(iter(virtual.members()))[1]
        assert np.array_equal(array[3:18, ::3], values[3:18, ::3])


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_written_by_this_package(bucket, options, version):
    values = RANDOM.normal(size=(20, 30)).astype("f4")
    url = f"{bucket}/made.zarr"
    made = vz.create_array(url, shape=(20, 30), chunks=(7, 8), dtype="f4", zarr_format=version,
                           storage_options=options)  # fmt: skip
    made[...] = values
    made[3:9, 5:20] = 7
    values[3:9, 5:20] = 7
    theirs = zarr.open_array(url, mode="r", storage_options=options)
    assert np.array_equal(theirs[...], values)
    made.append(values)
    assert vz.open(url, storage_options=options).shape == (40, 30)
    theirs = zarr.open_array(url, mode="r", storage_options=options)
    assert np.array_equal(theirs[20:], values)


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet"])
def test_published_there(bucket, options, put, name):
    files = [put(f"{bucket}/{k}.h5", hdf5(6 * k)) for k in range(3)]
    group = vz.virtualize(files, concat_dim="time", storage_options=options,
                          drop_variables=["names"])  # fmt: skip
    url = f"{bucket}/{name}"
    group.publish(url, storage_options=options)
    again = vz.open(url, storage_options=options)
    assert np.array_equal(again["air"][...], air(3))
    where = {"fo": url, "target_options": options, "remote_protocol": "s3",
             "remote_options": options | {"asynchronous": True}}  # fmt: skip
    with (
        dask.config.set(scheduler="threads"),
        xr.open_dataset("reference://", engine="zarr", chunks={}, decode_times=True,
                        backend_kwargs={"consolidated": False, "storage_options": where}) as ds,
    ):  # fmt: skip
        assert np.array_equal(ds["air"].values, air(3))
        assert str(ds["time"].values[-1]).startswith("2000-01-01T17")
    with xr.open_dataset(url, engine=VirtualZarrBackendEntrypoint, storage_options=options) as ds:
        assert np.array_equal(ds["air"].values, air(3))


def test_objects_that_changed(bucket, options, put):
    url = put(f"{bucket}/a.h5", hdf5())
    group = vz.virtualize([url], storage_options=options)
    group.publish(f"{bucket}/refs.json", storage_options=options)
    put(url, hdf5(1000))  # of the same length
    with pytest.raises(SourceChangedError, match=r"a\.h5"):
        group["air"][...]
    with pytest.raises(SourceChangedError, match=r"a\.h5"):
        vz.open(f"{bucket}/refs.json", storage_options=options)["air"][...]


def test_objects_that_change_while_they_are_read(bucket, options, put, monkeypatch):
    """Every answer of the store names the version it is of."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    monkeypatch.setattr(vz.config, "remote_read", 1)
    monkeypatch.setattr(vz.config, "requests", 1)
    fetch, count = S3Transport.fetch_in_loop, []
    url = put(f"{bucket}/a.h5", hdf5())

    async def fetch_and_replace(self, path, *span):
        count.append(path)
        if len(count) == 2:
            # By another thread: the loop is that of the requests by which it is replaced, too.
            await asyncio.to_thread(put, url, hdf5(1000))
        return await fetch(self, path, *span)

    for recorded in (True, False):
        put(url, hdf5())
        group = vz.virtualize(url, storage_options=options)
        air = group["air"]
        if not recorded:  # as references of others are
            manifest = air.manifest
            sources = Sources([Source(url, storage_options=options)])
            columns = (manifest.source, manifest.offset, manifest.length)
            air = vz.Array.from_manifest(air.metadata, Manifest(manifest.shape, sources, *columns))
        count.clear()
        monkeypatch.setattr(S3Transport, "fetch_in_loop", fetch_and_replace)
        with pytest.raises(SourceChangedError, match=r"entity tag.*a\.h5"):
            air[...]
        monkeypatch.setattr(S3Transport, "fetch_in_loop", fetch)


def test_objects_that_changed_after_they_were_listed(bucket, options, put):
    """What a listing said of them is kept by fsspec."""
    for k in range(2):
        put(f"{bucket}/{k}.h5", hdf5(6 * k))
    group = vz.virtualize(f"{bucket}/*.h5", concat_dim="time", storage_options=options)
    put(f"{bucket}/1.h5", hdf5(1000))
    with pytest.raises(SourceChangedError, match=r"1\.h5"):
        group["air"][...]


def test_files_that_do_not_fit(bucket, options, put):
    files = [put(f"{bucket}/0.h5", hdf5()), put(f"{bucket}/1.h5", hdf5(6, other=[1]))]
    with pytest.raises(MismatchError, match="other"):
        vz.virtualize(files, concat_dim="time", storage_options=options)


def test_a_second_writer_of_references_goes_on_from_the_first(bucket, options, put, monkeypatch):
    """Its entity tag is another, though name and size need not be."""
    from virtualzarr.references import portable_form

    urls = [put(f"{bucket}/{i}.h5", hdf5(6 * i)) for i in range(3)]
    refs, how = f"{bucket}/refs.json", {"storage_options": options}
    vz.virtualize(urls[0], **how).publish(refs, **how)

    def meanwhile(*args, real=portable_form.make_plan, **more):
        monkeypatch.setattr(portable_form, "make_plan", real)
        vz.append(refs, urls[1], "time", **how)
        return real(*args, **more)

    monkeypatch.setattr(portable_form, "make_plan", meanwhile)
    vz.append(refs, urls[2], "time", **how)
    assert vz.open(refs, **how)["time"][...].tolist() == [*range(18)]


def test_several_writers_of_several_objects_are_refused(bucket, options, put):
    urls = [put(f"{bucket}/{i}.h5", hdf5(6 * i)) for i in range(2)]
    refs, how = f"{bucket}/refs.parq", {"storage_options": options}
    vz.virtualize(urls[0], **how).publish(refs, **how)
    with pytest.raises(AccessError, match="single_writer"):
        vz.append(refs, urls[1], "time", **how)
    assert vz.open(refs, **how)["time"].shape == (6,)
    vz.append(refs, urls[1], "time", single_writer=True, **how)
    assert vz.open(refs, **how)["time"][...].tolist() == [*range(12)]


@pytest.mark.parametrize("name", ["x.json", "x.parq", "x.zarr", "array"])
def test_no_bucket_is_made(options, name, tmp_path):
    """Its name may be a typing error, and then somebody else's tomorrow."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(4)
    group, bucket = vz.virtualize(tmp_path / "a.h5"), f"s3://b{uuid.uuid4().hex}"

    def write():
        if name == "array":
            vz.create_array(f"{bucket}/a", shape=(2,), dtype="i4", storage_options=options)
        else:
            group.publish(f"{bucket}/{name}", storage_options=options)

    with pytest.raises((SourceError, WriteError), match="bucket does not exist"):
        write()
    fs = fsspec.filesystem("s3", **options)
    fs.invalidate_cache()
    assert bucket.removeprefix("s3://") not in [each.strip("/") for each in fs.ls("")]
