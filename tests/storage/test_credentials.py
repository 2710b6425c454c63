"""Credentials of object stores: given ones are all that a client sends, and those that expire are renewed in time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from icesize.storage.credentials import Credentials, renew_by
from icesize.storage.kept_files import KeptFiles
from icesize.storage.object_store import ObjectStore
from icesize.storage.store_settings import StoreSettings, store_settings

LATER_MS = 4_102_444_800_000
AZURE = "abfss://c@a.dfs.core.windows.net/t/x"
KEY = "bm8gc2VjcmV0"


@pytest.fixture
def requests() -> Iterator[list[str]]:
    """What a server was asked for, with the headers; its address is the first entry."""
    seen = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path} {self.headers}")
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.append(f"127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield seen
    server.shutdown()
    server.server_close()
    thread.join()


def vended(kind: str, address: str, token: str, expires_ms: int) -> tuple[str, dict[str, str]]:
    """A location, and what a REST catalog vends for it."""
    if kind == "s3":
        keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": token}
        place = {"s3.endpoint": f"http://{address}", "s3.region": "x", "client.refresh-credentials-endpoint": "/v1/c"}
        return "s3://b/t/x", {**keys, **place, "s3.session-token-expires-at-ms": str(expires_ms)}
    host = "a.dfs.core.windows.net"
    place = {"adls.blob-storage-authority": address, "adls.blob-storage-scheme": "http"}
    return AZURE, {
        **place,
        f"adls.sas-token.{host}": f"sv=1&sig={token}",
        f"adls.sas-token-expires-at-ms.{host}": str(expires_ms),
    }


def ask(location: str, properties: Mapping[str, str]) -> None:
    """Read an object that does not exist."""
    settings = store_settings(location, properties)
    assert isinstance(settings, StoreSettings), settings
    with suppress(FileNotFoundError):
        ObjectStore(settings, KeptFiles()).read(location)


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_credentials_are_renewed_before_they_expire(requests: list[str], kind: str) -> None:
    """The catalog is asked once, from five minutes before that time on; then requests have the new ones."""
    loads = list[int]()
    location, old = vended(kind, requests[0], "early-token", round(time.time() * 1000) + 60_000)
    _, new = vended(kind, requests[0], "later-token", LATER_MS)

    def reload() -> dict[str, str]:
        loads.append(1)
        return new

    renew_by(location, old, reload)
    for _ in range(3):
        ask(location, old)
    assert (len(loads), len(requests)) == (1, 4)
    assert all("later-token" in each and "early-token" not in each for each in requests[1:])


def test_a_client_is_renewed_however_many_tables_are_loaded_after_it(requests: list[str]) -> None:
    """A long merge has its client, while batches and other tables load new credentials of their own."""
    location, old = vended("s3", requests[0], "early-token", round(time.time() * 1000) + 60_000)
    _, new = vended("s3", requests[0], "later-token", LATER_MS)
    renew_by(location, old, lambda: new)
    settings = store_settings(location, old)
    assert isinstance(settings, StoreSettings)
    renewed = Credentials(settings)
    for number in range(100):
        _, other = vended("s3", requests[0], f"token-{number}", LATER_MS)
        renew_by(location, other, lambda: pytest.fail("asked"))
    assert renewed()["token"] == "later-token"


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_credentials_stay_without_newer_ones(requests: list[str], kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Until the store rejects them: a worker has no catalog, a catalog may not answer, and most have much time left."""
    location, far = vended(kind, requests[0], "far-token", LATER_MS)
    _, near = vended(kind, requests[0], "near-token", round(time.time() * 1000) + 60_000)
    _, lost = vended(kind, requests[0], "lost-token", round(time.time() * 1000) + 60_001)

    def reload() -> dict[str, str]:
        raise OSError("no answer with secret-in-text")

    renew_by(location, far, lambda: pytest.fail("asked"))
    renew_by(location, lost, reload)
    for properties, token in ((far, "far-token"), (near, "near-token"), (lost, "lost-token")):
        ask(location, properties)
        assert token in requests[-1]
    assert "Cannot renew the credentials of the storage: OSError" in caplog.text
    assert "secret-in-text" not in caplog.text


def test_tokens_of_google_expire() -> None:
    """Their time is read as well; a value that is no number is none."""
    location, given = "gs://b/t", {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": str(LATER_MS)}
    found, other = (
        store_settings(location, given),
        store_settings(location, {**given, "gcs.oauth2.token-expires-at": ""}),
    )
    assert isinstance(found, StoreSettings)
    assert isinstance(other, StoreSettings)
    assert (found.expires_ms, other.expires_ms) == (LATER_MS, None)


def test_variables_do_not_replace_given_credentials(requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The client alone would send the token of the environment with the keys of the table, and prefer its Azure key."""
    for name, value in {
        "AWS_SESSION_TOKEN": "hers", "AWS_SKIP_SIGNATURE": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_TOKEN": "hers", "GOOGLE_SKIP_SIGNATURE": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    place = {"s3.endpoint": f"http://{requests[0]}", "s3.region": "x"}
    ask("s3://b/t/x", {**place, "s3.access-key-id": "mine", "s3.secret-access-key": "s"})
    ask(*vended("azure", requests[0], "mine", LATER_MS))
    google = (("base_url", f"http://{requests[0]}"), ("bearer_token", "mine"))
    with suppress(FileNotFoundError):
        ObjectStore(StoreSettings("gs", "b", google, (("allow_http", True),)), KeptFiles()).read("gs://b/x")
    wanted = ("Credential=mine/", "sig=mine", "Bearer mine")
    assert [word in request and "hers" not in request for word, request in zip(wanted, requests[1:], strict=True)] == [
        True, True, True,
    ]  # fmt: skip


def test_variables_are_used_without_given_credentials(requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of S3 in the environment sign requests, with their token."""
    for name, value in (("ACCESS_KEY_ID", "hers"), ("SECRET_ACCESS_KEY", "s"), ("SESSION_TOKEN", "token-of-hers")):
        monkeypatch.setenv(f"AWS_{name}", value)
    ask("s3://b/t/x", {"s3.endpoint": f"http://{requests[0]}", "s3.region": "y"})
    assert "Credential=hers/" in requests[1]
    assert "token-of-hers" in requests[1]
