"""Object stores for one test module: S3 (versitygw), Azure (Azurite) and Google Cloud Storage (fake-gcs-server).

Clients go through a proxy that counts requests, answers chosen ones as an overloaded store does, or drops them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from pyarrow.fs import AzureFileSystem

from icesize.storage.table_storage import Storage
from integration.go_tools import KEPT, GoToolUnavailableError, fake_gcs_server
from integration.object_store import ObjectStore, ObjectStoreProxy, object_store, object_store_proxy
from integration.servers import free_ports, running

BUCKET = "lake"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The only account of Azurite, with its published key."""
_AZURITE = "3.37.0"


@dataclass(frozen=True)
class CloudStore:
    """An object store with an empty bucket `BUCKET`.

    Attributes:
        root: The location of the bucket.
        properties: What a PyIceberg catalog needs to reach the store through the proxy.
        proxy: The proxy before the store.
        server: The S3 server itself, if the store is one.
    """

    root: str
    properties: Mapping[str, str]
    proxy: ObjectStoreProxy
    server: ObjectStore | None = None

    def storage(self, **changed: str) -> Storage:
        """A storage with these properties; names of changed ones have `_` for `.` and `-`."""
        own = {key.replace(".", "_").replace("-", "_"): key for key in self.properties}
        return Storage({**self.properties, **{own[name]: value for name, value in changed.items()}}, self.root)

    def requests(self) -> dict[str, int]:
        """The number of requests by method since this was called last."""
        counts = Counter(method for method, _, _ in self.proxy.seen())
        self.proxy.trouble()
        return dict(counts)


@contextmanager
def s3(folder: Path) -> Iterator[CloudStore]:
    """An S3 server."""
    with object_store(folder) as server, object_store_proxy(folder, server.endpoint) as proxy:
        server.client().create_bucket(Bucket=BUCKET)
        yield CloudStore(f"s3://{BUCKET}", server.properties(proxy.endpoint), proxy, server)


@contextmanager
def azure(folder: Path) -> Iterator[CloudStore]:
    """Azure's emulator. Raises `GoToolUnavailableError` if npm cannot install it."""
    [port] = free_ports(1)
    options = ["--silent", "--loose", "--skipApiVersionCheck", "--location", str(folder / "azurite")]
    command = [str(azurite()), "--blobPort", f"{port}", *options]
    endpoint = f"http://127.0.0.1:{port}"
    with _emulator(command, folder / "azurite.log", endpoint), object_store_proxy(folder, endpoint) as proxy:
        place = proxy.endpoint.removeprefix("http://")
        address = {f"{name}_storage_authority": place for name in ("blob", "dfs")}
        plain = {f"{name}_storage_scheme": "http" for name in ("blob", "dfs")}
        AzureFileSystem(account_name=AZURE_ACCOUNT, account_key=AZURE_KEY, **address, **plain).create_dir(BUCKET)
        properties = {
            "adls.account-name": AZURE_ACCOUNT,
            "adls.account-key": AZURE_KEY,
            "adls.blob-storage-authority": place,
            "adls.blob-storage-scheme": "http",
        }
        yield CloudStore(f"abfss://{BUCKET}@{AZURE_ACCOUNT}.dfs.core.windows.net", properties, proxy)


@contextmanager
def gcs(folder: Path) -> Iterator[CloudStore]:
    """An emulator of Google Cloud Storage. Raises `GoToolUnavailableError` if it cannot be built."""
    [port] = free_ports(1)
    upstream = f"http://127.0.0.1:{port}"
    with object_store_proxy(folder, upstream) as proxy:
        # the server answers by the name in the request, which is the proxy's
        public = proxy.endpoint.removeprefix("http://")
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", f"{port}", "-public-host", public]
        command = [str(fake_gcs_server()), *place, "-backend", "memory"]
        with _emulator(command, folder / "gcs.log", f"{upstream}/_internal/healthcheck"):
            made = requests.post(f"{upstream}/storage/v1/b?project=p", json={"name": BUCKET}, timeout=10)
            made.raise_for_status()
            properties = {
                "gcs.service.host": proxy.endpoint,
                "gcs.oauth2.token": "a-token-of-nobody",
                "gcs.oauth2.token-expires-at": "4102444800000",
            }
            yield CloudStore(f"gs://{BUCKET}", properties, proxy)


@contextmanager
def _emulator(command: list[str], log: Path, url: str) -> Iterator[None]:
    """A server that is killed at the end, because it would take 20 s for it."""
    with running(command, log, lambda: requests.get(url, timeout=5)) as server:
        yield
        server.kill()


@contextmanager
def gcs_xml(folder: Path) -> Iterator[CloudStore]:
    """A stand-in for the XML API of Google Cloud Storage, which no emulator has: S3 (moto), with other headers."""
    [port] = free_ports(1)
    upstream = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-p", f"{port}"]
    with running(command, folder / "moto.log", lambda: requests.get(upstream, timeout=5)):
        requests.put(f"{upstream}/{BUCKET}", timeout=10).raise_for_status()
        with object_store_proxy(folder, upstream) as proxy:
            yield CloudStore(f"gs://{BUCKET}", {"gcs.service.host": proxy.endpoint}, proxy)


STORES: Mapping[str, Callable[[Path], AbstractContextManager[CloudStore]]] = {
    "s3": s3, "azure": azure, "gcs": gcs, "gcs-xml": gcs_xml,
}  # fmt: skip


def azurite() -> Path:
    """Return the program of Azurite, which npm installs if it is not kept here."""
    home = KEPT / f"azurite-{_AZURITE}"
    if not home.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            raise GoToolUnavailableError("Cannot install Azurite: 'npm' is not on PATH.")
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, f"azurite@{_AZURITE}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if done.returncode:
                raise GoToolUnavailableError(f"Cannot install Azurite: 'npm install' ended with {done.returncode}.")
            Path(folder).rename(home)
            Path(folder).mkdir()
    return home / "node_modules" / ".bin" / "azurite-blob"
