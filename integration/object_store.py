"""A real S3 server, and networks before it that fail: a TCP proxy (Toxiproxy) and one that knows S3's errors.

All are processes on free loopback ports that live as long as a `with` block.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import requests

from integration import s3_proxy
from integration.go_tools import toxiproxy, versitygw
from integration.s3_proxy import CONTROL, Trouble
from integration.servers import free_ports, running

ACCESS_KEY, SECRET_KEY, REGION = "access", "not-so-secret", "us-east-1"


@dataclass(frozen=True)
class ObjectStore:
    """An S3 server that keeps each object as a file: `folder/bucket/key`. `endpoint` is its URL."""

    endpoint: str
    folder: Path
    log: Path

    def properties(self, endpoint: str = "") -> dict[str, str]:
        """What a PyIceberg catalog is told about it; `endpoint` is that of a proxy to go through."""
        return {
            "s3.endpoint": endpoint or self.endpoint,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": REGION,
        }

    def java_properties(self) -> dict[str, str]:
        """The same for Iceberg's Java side."""
        keys = {k: v for k, v in self.properties().items() if k != "s3.region"}
        io = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
        return keys | io | {"client.region": REGION}

    def client(self) -> Any:
        """A boto3 client of the server itself."""
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION, **keys)

    def sizes(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Location and bytes of every object below the prefix, without the empty ones that stand for folders."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        objects = (each for page in pages for each in page.get("Contents", ()))
        return {f"s3://{bucket}/{o['Key']}": o["Size"] for o in objects if not o["Key"].endswith("/")}

    def uploads(self, bucket: str) -> list[str]:
        """Keys of multipart uploads that nobody finished."""
        return [each["Key"] for each in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    def age(self, bucket: str, seconds: int) -> None:
        """Make every object so much older than it is; ages of objects are those of the files here."""
        for path in (self.folder / bucket).rglob("*"):
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    def empty(self, bucket: str) -> None:
        """Remove every object and every unfinished upload of a bucket."""
        client = self.client()
        for upload in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ()):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [{"Key": o["Key"]} for page in pages for o in page.get("Contents", ())]
        for first in range(0, len(keys), 1000):
            client.delete_objects(Bucket=bucket, Delete={"Objects": keys[first : first + 1000], "Quiet": True})


@contextmanager
def object_store(folder: Path, access_log: Path | None = None) -> Iterator[ObjectStore]:
    """An empty S3 server (versitygw), which can log its requests.

    Raises `GoToolUnavailableError` when it cannot be built.
    """
    [port], data, log = free_ports(1), folder / "s3", folder / "versitygw.log"
    data.mkdir()
    # without --keep-alive: what is left of an upload in chunks would be read as the next request
    command = [str(versitygw()), "--port", f"127.0.0.1:{port}", "--health", "/health"]
    command += [*(["--access-log", str(access_log)] if access_log else []), "posix"]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    endpoint = f"http://127.0.0.1:{port}"
    with running([*command, str(data)], log, lambda: requests.get(f"{endpoint}/health", timeout=5), keys):
        yield ObjectStore(endpoint, data, log)


@dataclass(frozen=True)
class ObjectStoreProxy:
    """Goes before an S3 server and answers chosen requests with 503 SlowDown or with a reset."""

    endpoint: str

    def trouble(self, *troubles: Trouble) -> None:
        """From now on these troubles, and no others; none: all is well."""
        requests.put(f"{self.endpoint}{CONTROL}", json=[asdict(each) for each in troubles], timeout=10)

    def seen(self, method: str = "") -> list[tuple[str, str, str]]:
        """Method, path with query, and trouble ("" for none) of each request since `trouble` was called last."""
        answer = requests.get(f"{self.endpoint}{CONTROL}", timeout=10).json()
        return [(m, path, trouble) for m, path, trouble in answer if method in ("", m)]


@contextmanager
def object_store_proxy(folder: Path, upstream: str) -> Iterator[ObjectStoreProxy]:
    """A proxy before the server at the URL `upstream`."""
    [port] = free_ports(1)
    command = [sys.executable, s3_proxy.__file__, str(port), upstream.removeprefix("http://")]
    proxy = ObjectStoreProxy(f"http://127.0.0.1:{port}")
    with running(command, folder / "s3-proxy.log", proxy.trouble):
        yield proxy


@dataclass(frozen=True)
class Toxiproxy:
    """Client of a Toxiproxy server; `api` is its URL."""

    api: str

    def proxy(self, name: str, upstream: str) -> ToxicProxy:
        """A new TCP proxy before the server at the URL `upstream`."""
        body = {"name": name, "listen": "127.0.0.1:0", "upstream": upstream.removeprefix("http://")}
        made = requests.post(f"{self.api}/proxies", json=body, timeout=10)
        made.raise_for_status()
        return ToxicProxy(f"{self.api}/proxies/{name}", f"http://{made.json()['listen']}")


@dataclass(frozen=True)
class ToxicProxy:
    """One TCP proxy; clients go to `endpoint`."""

    api: str
    endpoint: str

    def add(self, kind: str, stream: str = "downstream", **attributes: int) -> None:
        """Spoil all connections, also those that are open: a toxic of Toxiproxy with its attributes.

        `latency` (latency, jitter in ms), `bandwidth` (rate in kB/s), `slow_close` (delay in ms), `timeout` (in ms, 0
        for ever), `reset_peer` (timeout in ms), `limit_data` (bytes). `upstream` is what the client sends.
        """
        body: dict[str, Any] = {"name": f"{kind}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
        requests.post(f"{self.api}/toxics", json=body, timeout=10).raise_for_status()

    def heal(self) -> None:
        """Remove all toxics."""
        for toxic in requests.get(f"{self.api}/toxics", timeout=10).json():
            requests.delete(f"{self.api}/toxics/{toxic['name']}", timeout=10).raise_for_status()


@contextmanager
def toxiproxy_server(folder: Path) -> Iterator[Toxiproxy]:
    """A Toxiproxy without proxies. Raises `GoToolUnavailableError` when it cannot be built."""
    [port] = free_ports(1)
    command = [str(toxiproxy()), "-host", "127.0.0.1", "-port", str(port)]
    client = Toxiproxy(f"http://127.0.0.1:{port}")
    with running(command, folder / "toxiproxy.log", lambda: requests.get(f"{client.api}/version", timeout=5)):
        yield client
