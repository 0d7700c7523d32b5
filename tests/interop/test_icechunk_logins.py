"""Repositories of Icechunk in object stores, with the credentials of their prefix."""

import pickle

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.logins import HERE, SECRET, expire_keys
from tests.stores.test_credentials import shown
from virtualzarr.errors import UnsupportedError, VirtualZarrError
from virtualzarr.references.icechunk.logins import find_login
from virtualzarr.stores.location import Location

pytest.importorskip("icechunk", minversion="2.0.5")
pytest.importorskip("s3fs")
DATA = np.arange(24, dtype="i4").reshape(4, 6)


@pytest.fixture
def give_keys(monkeypatch):
    """Return keys that expire at once, so that they are asked for again and again."""
    monkeypatch.setattr(
        "tests.stores.logins.issued.options",
        lambda count: {"key": f"key{count}", "secret": SECRET, "token": "t", "expires_at": 0},
    )


def options_for(server, prefix="s3://bucket/repo.icechunk"):
    return {
        "endpoint_url": server.url, "region": "here", "allow_http": True, "force_path_style": True,
        "credentials": {prefix: f"{HERE}:give_token"},
    }  # fmt: skip


def test_repositories_are_written_and_read_by_keys_that_are_renewed(give_keys, tmp_path):
    with running() as server:
        counts = expire_keys(server, 1000)
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("a", data=DATA, chunks=(2, 3))
        vz.virtualize(tmp_path / "x.h5").publish(
            "s3://bucket/repo.icechunk", storage_options=options_for(server)
        )
        opened = vz.open(
            "s3://bucket/repo.icechunk", storage_options=options_for(server), allowed="*"
        )
        assert np.array_equal(opened["a"][...], DATA)
        assert len(counts) > 1
        assert {key[:3] for key in counts} == {"key"}
        secret = SECRET.encode()
        assert secret not in b"".join(server.objects.values())
        assert secret not in pickle.dumps(opened)
        location = Location.of("s3://bucket/repo.icechunk", options_for(server))
        assert secret not in pickle.dumps(find_login(location, "s3"))
        # They are for no other repository.
        counts.clear()
        with pytest.raises(VirtualZarrError) as raised:
            vz.open("s3://bucket/other.icechunk", storage_options=options_for(server))
        assert SECRET not in shown(raised.value)
        assert not any(key.startswith("key") for key in counts)


def test_options_of_prefixes_are_those_of_storage(monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    for names, expected in (
        ({"anon": True, "requester_pays": True}, {"anonymous": True, "requester_pays": True}),
        (
            {"anon": True, "client_kwargs": {"endpoint_url": "http://x", "region_name": "y"}},
            {"anonymous": True, "endpoint_url": "http://x", "region": "y", "allow_http": True,
             "force_path_style": True},
        ),
    ):  # fmt: skip
        target = Location.of("s3://a/r.icechunk", {"credentials": {"s3://a": names}})
        assert find_login(target, "s3") == expected
    target = Location.of("gs://a/r.icechunk", {"credentials": {"gs://a": {"token": "env:TOKEN"}}})
    settings = find_login(target, "gs")
    assert settings["get_credentials"]().bearer == SECRET
    assert SECRET.encode() not in pickle.dumps(settings["get_credentials"])
    target = Location.of("s3://a/r.icechunk", {"credentials": {"s3://a": {"profile": "work"}}})
    with pytest.raises(UnsupportedError, match="the credentials profile"):
        find_login(target, "s3")
