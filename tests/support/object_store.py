"""An S3 server in this process, and buckets in it: fixtures, which tests/conftest.py makes known."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

ARROW, FSSPEC = "pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"
_buckets = (f"bucket-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server that forgets everything."""
    from moto.server import ThreadedMotoServer  # takes a second, which only these tests need

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["", ARROW, FSSPEC], ids=["obstore", "pyarrow", "fsspec"])
def properties(request: pytest.FixtureRequest, endpoint: str) -> dict[str, str]:
    """What a catalog tells about the storage."""
    file_io = {"py-io-impl": request.param} if request.param else {}
    return {
        **file_io,
        "s3.endpoint": endpoint,
        "s3.access-key-id": "key",
        "s3.secret-access-key": "hidden-in-texts-17",
        "s3.region": "us-east-1",
    }


@pytest.fixture
def client(endpoint: str) -> Any:
    """A client of the store, which icesize does not know of."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )


@pytest.fixture
def bucket(client: Any) -> str:
    """An empty bucket of this test's own."""
    name = next(_buckets)
    client.create_bucket(Bucket=name)
    return name


def keys(client: Any, bucket: str) -> list[str]:
    """What is stored, without the empty objects that PyArrow leaves for folders."""
    return [o["Key"] for o in client.list_objects_v2(Bucket=bucket)["Contents"] if not o["Key"].endswith("/")]
