"""Where buckets are: what is committed goes where reads come from, however that is configured."""

from __future__ import annotations

import zipfile

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from virtualzarr.errors import AccessError
from virtualzarr.stores.location import Location
from virtualzarr.stores.s3 import S3Transport
from virtualzarr.stores.s3_sessions import note_environment
from virtualzarr.stores.url_file_systems import filesystem

pytest.importorskip("obstore")
pytest.importorskip("s3fs")

IN_PROFILE = "[profile work]\nregion = here\nendpoint_url = {url}\n"
IN_SERVICES = "[profile work]\nservices = ours\n[services ours]\ns3 =\n  endpoint_url = {url}\n"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize("chain", ["", "simplecache::", "blockcache::", "zip://a.h5::"])
def test_the_environment_is_looked_at_again(tmp_path, monkeypatch, chain):
    """fsspec keeps its file systems, which have looked at it once."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    name = "a.zip" if chain.startswith("zip") else "a.h5"
    with running() as one, running() as two:
        for number, server in enumerate((one, two)):
            with h5py.File(tmp_path / "a.h5", "w") as file:
                file["v"] = np.full(4, number)
            with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
                archive.write(tmp_path / "a.h5", "a.h5")
            server.store(f"bucket/{name}", (tmp_path / name).read_bytes(), {})
        for number in (0, 1, 0):
            monkeypatch.setenv("AWS_ENDPOINT_URL", (one, two)[number].url)
            opened = vz.open(f"{chain}s3://bucket/{name}")
            assert opened["v"][...].tolist() == [number] * 4


def test_each_endpoint_is_tried_before_anything_is_committed(tmp_path, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
    with running() as strict, running() as careless:
        careless.is_strict = False
        monkeypatch.setenv("AWS_ENDPOINT_URL", strict.url)
        vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time", allowed="*")
        monkeypatch.setenv("AWS_ENDPOINT_URL", careless.url)
        with pytest.raises(AccessError, match="whether or not conditions hold"):
            vz.create_dataset("s3://bucket/feed", tmp_path / "0.h5", "time", allowed="*")


def test_other_threads_may_change_the_environment(monkeypatch):
    class Environment(dict):
        def __iter__(self):
            self.pop("AWS_PROFILE", None)  # as another thread does, right after
            return iter(["AWS_PROFILE", "HOME"])

    monkeypatch.setattr(
        "virtualzarr.stores.s3_sessions.os.environ", Environment(AWS_PROFILE="work")
    )
    for _ in range(2):
        note_environment()


def test_descriptions_of_services_are_read_once(monkeypatch, tmp_path):
    """But for sessions that have others of their own."""
    loaders = pytest.importorskip("botocore.loaders")
    load, read = loaders.JSONFileLoader.load_file, []
    monkeypatch.setattr(
        loaders.JSONFileLoader, "load_file",
        lambda self, path: read.append(path) or load(self, path),
    )  # fmt: skip

    def connect(port):
        options = {"key": "key", "secret": "secret", "endpoint_url": f"http://127.0.0.1:{port}"}
        fs, _ = filesystem(Location("s3://bucket", options))
        return S3Transport(fs).connect()

    assert connect(1) == "http://127.0.0.1:1"
    read.clear()
    assert connect(2) == "http://127.0.0.1:2"
    assert not read
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    connect(3)
    assert read


@pytest.mark.parametrize(
    ("config", "variables", "options"),
    [
        (IN_PROFILE, {}, {"profile": "work"}),
        (IN_PROFILE, {}, {"credentials": {"s3://bucket": {"profile": "work"}}}),
        (IN_SERVICES, {}, {"profile": "work"}),
        (IN_PROFILE, {"AWS_PROFILE": "work"}, {}),
        (IN_PROFILE, {"AWS_PROFILE": "work"}, {"key": "key", "secret": "secret"}),
        ("", {"AWS_ENDPOINT_URL": "{url}", **KEYS}, {}),
        (
            "",
            {"AWS_ENDPOINT_URL_S3": "{url}", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", **KEYS},
            {},
        ),
        ("", {"AWS_ENDPOINT_URL": "{url}"}, {"anon": True}),
        ("", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", **KEYS}, {"endpoint_url": "{url}"}),
        (
            IN_PROFILE.format(url="http://127.0.0.1:9"),
            {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", **KEYS},
            {"profile": "work", "client_kwargs": {"endpoint_url": "{url}"}},
        ),
    ],
)
def test_what_is_committed_goes_where_reads_come_from(
    tmp_path, monkeypatch, config, variables, options
):
    for name in ("AWS_PROFILE", *KEYS):
        monkeypatch.delenv(name, raising=False)
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
    with running() as server:

        def fill(values):
            return {
                name: fill(value) if isinstance(value, dict)
                else value.format(url=server.url) if isinstance(value, str) else value
                for name, value in values.items()
            }  # fmt: skip

        (tmp_path / "config").write_text(config.format(url=server.url))
        (tmp_path / "credentials").write_text(
            "[work]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        )
        for name, value in {
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": "here",
            **fill(variables),
        }.items():
            monkeypatch.setenv(name, value)
        access = {"storage_options": fill(options)}
        server.store("bucket/0.h5", (tmp_path / "0.h5").read_bytes(), {})
        dataset = vz.create_dataset("s3://bucket/feed", "s3://bucket/0.h5", "time", **access)
        assert "bucket/feed/head" in server.objects
        assert dataset.group["time"][...].tolist() == [*range(4)]
        receipt = vz.open("s3://bucket/0.h5", **access).publish("s3://bucket/r.json", **access)
        assert receipt.notes == ()
