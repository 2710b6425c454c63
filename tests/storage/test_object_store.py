"""Objects in S3 through `obstore`: one request for a small object, exact names, and errors that say which ones."""

from __future__ import annotations

import gc
import os
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.concurrency import REQUESTS, requests_at_once
from icesize.errors import ArgumentError
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.storage import kept_files, object_store
from icesize.storage.object_store import PART_BYTES, ObjectStore, Upload, has_plain_key
from icesize.storage.store_settings import AZURE as AZURE_NAMES
from icesize.storage.store_settings import GCS as GCS_NAMES
from icesize.storage.store_settings import S3 as S3_NAMES
from icesize.storage.store_settings import store_settings
from icesize.storage.stores import StoreSettingsError
from icesize.storage.table_storage import STORAGE, Storage
from icesize.table.storage.shared_location import other_tables_among
from tests.support.examples import examples
from tests.support.object_store import keys
from tests.support.tables import arrow, make_table

UNIQUE = "00000-01234567-89ab-cdef-0123-456789abcdef.metadata.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without profiles, and no variables with credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def io(endpoint: str) -> FileIO:
    """PyIceberg's FileIO with keys for the server, and nothing that the client lacks."""
    keys_of = {"s3.access-key-id": "key", "s3.secret-access-key": "hidden-in-texts-17", "s3.region": "us-east-1"}
    return load_file_io({"s3.endpoint": endpoint, **keys_of})


@pytest.fixture
def storage(io: FileIO) -> Storage:
    return Storage(io)


def test_files_in_s3_go_to_the_client(storage: Storage, bucket: str) -> None:
    """All spellings of a location have a client, and a key that it would misread goes through PyIceberg's FileIO."""
    for scheme in ("s3", "s3a", "s3n"):
        assert isinstance(storage.store(f"{scheme}://{bucket}/t/a"), ObjectStore)
        assert storage.why_through_file_io(f"{scheme}://{bucket}/t/a") is None
        assert not isinstance(storage.store(f"{scheme}://{bucket}/t//a"), ObjectStore)
    assert storage.why_through_file_io("/tmp/a") is None


@given(st.text(st.sampled_from("ab/.%#?* \x01é"), min_size=1, max_size=8))
@examples(200)
def test_the_client_keeps_each_plain_key(key: str) -> None:
    """A key that passes the check is what the client reads, and each other one is rejected or changed by it."""
    from obstore.store import MemoryStore

    store = MemoryStore()
    try:
        obstore.put(store, key, b"1")
        stored = [each["path"] for page in obstore.list(store) for each in page]
    except Exception:  # the client rejects the key
        stored = []
    assert has_plain_key(f"s3://bucket/{key}") == (stored == [key])


def test_a_small_object_is_one_request(storage: Storage, client: Any, bucket: str) -> None:
    """Parts begin at their size, and both ways store all bytes."""
    parts = list[int]()
    for size in (0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 7):
        location, data = f"s3://{bucket}/t/{size}", os.urandom(size)
        with storage.create(location) as stream:
            for start in range(0, size, 3_000_000):
                stream.write(data[start : start + 3_000_000])
            assert stream.tell() == size
        assert (storage.fetch(location), storage.size(location)) == (data, size)
        assert b"".join(storage.pieces(location, size, PART_BYTES)) == data
        assert storage.tail(location, size, min(5, size)) == data[size - min(5, size) :]
        _, _, number = client.head_object(Bucket=bucket, Key=f"t/{size}")["ETag"].strip('"').partition("-")
        parts.append(int(number or 0))
    assert parts == [0, 0, 0, 1, 3]


@pytest.mark.parametrize("size", [10, 2 * PART_BYTES + 10])
def test_an_upload_that_is_not_closed_leaves_no_object(storage: Storage, client: Any, bucket: str, size: int) -> None:
    """Neither one that is dropped, nor one that is abandoned, or whose block fails: their parts are gone, too."""
    client.put_object(Bucket=bucket, Key="other", Body=b"")
    abandoned = storage.create(f"s3://{bucket}/t/abandoned")
    abandoned.write(b"x" * size)
    abandoned.abandon()
    abandoned.close()
    with suppress(ValueError), storage.create(f"s3://{bucket}/t/failed") as failed:
        failed.write(b"x" * size)
        raise ValueError
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    dropped: Upload | None = storage.create(f"s3://{bucket}/t/dropped")
    assert dropped is not None
    dropped.write(b"x" * size)
    dropped = None
    gc.collect()
    assert keys(client, bucket) == ["other"]


def test_a_failed_file_is_never_stored(
    storage: Storage, lake: SqlCatalog, bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose writing fails cost no request that stores something."""

    class Unfinished:
        def write(self, data: bytes) -> None: ...
        def close(self) -> None:
            pytest.fail("stored")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(ObjectStore, "writer", lambda *_: Unfinished())

    def fail() -> None:
        raise OSError("no answer")

    settings = WriteSettings.of(make_table(lake).metadata, storage.properties, 2**29)
    settings = replace(settings, table_location=f"s3://{bucket}/t")
    with failpoints.armed("writing", fail), pytest.raises(OSError, match="no answer"):
        write_rows([arrow([1])], settings, FileNames("s-1", 0, 7))
    assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def test_parquet_is_read_and_written(storage: Storage, bucket: str) -> None:
    """By pyarrow, whole and in ranges."""
    location, table = f"s3://{bucket}/t/a.parquet", pa.table({"a": range(300_000), "b": ["x" * 90] * 300_000})
    with storage.create(location) as stream:
        pq.write_table(table, stream, compression="none", use_dictionary=False, row_group_size=100_000)
    assert storage.size(location) > 3 * PART_BYTES
    with storage.stream(location) as stream:
        assert pq.ParquetFile(stream).read_row_group(1).equals(table.slice(100_000, 100_000))
    with storage.open(location, storage.size(location)) as stream:
        assert pq.read_table(stream).equals(table)


def test_empty_objects_are_read(storage: Storage, client: Any, bucket: str) -> None:
    """A store has no range of an empty object, and none behind the end of another one."""
    client.put_object(Bucket=bucket, Key="t/empty", Body=b"")
    location = f"s3://{bucket}/t/empty"
    with storage.stream(location) as stream:
        assert stream.read() == b""
    assert (storage.fetch(location), storage.tail(location, 0, 0), storage.range(location, 0, 5)) == (b"", b"", b"")
    client.put_object(Bucket=bucket, Key="t/short", Body=b"12")
    assert [storage.range(f"s3://{bucket}/t/short", start, 5) for start in (1, 2, 3)] == [b"2", b"", b""]


def test_many_objects_are_deleted_by_one_request(storage: Storage, client: Any, bucket: str) -> None:
    """One that is gone already counts as deleted."""
    names = [f"s3://{bucket}/t/{number}" for number in range(5)]
    for name in names:
        client.put_object(Bucket=bucket, Key=name.removeprefix(f"s3://{bucket}/"), Body=b"1")
    client.put_object(Bucket=bucket, Key="t/stays", Body=b"1")
    assert storage.store(names[0]).delete([*names, f"s3://{bucket}/t/gone"]) == {}
    assert keys(client, bucket) == ["t/stays"]


def test_a_bucket_that_does_not_exist_is_asked_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that rejects the credentials: a request for each file would get the same answer."""
    asked, delete = list[int](), obstore.delete
    monkeypatch.setattr(obstore, "delete", lambda client, names: asked.append(len(names)) or delete(client, names))
    names = [f"s3://there-is-none/t/{number}" for number in range(5)]
    failed = storage.store(names[0]).delete(names)
    assert (asked, [*failed]) == ([5], names)
    assert all(isinstance(error, StoreSettingsError) for error in failed.values())


def test_the_owner_of_a_metadata_file_needs_its_beginning(storage: Storage, client: Any, bucket: str) -> None:
    """An expiry looks at each metadata file beside the table's: whole ones would take the place of those it needs."""
    location = f"s3://{bucket}/t/metadata/{UNIQUE}"
    text = b'{"format-version": 2, "table-uuid": "A", "snapshots": [' + b" " * 100_000 + b"]}"
    client.put_object(Bucket=bucket, Key=f"t/metadata/{UNIQUE}", Body=text)
    assert other_tables_among(storage, "b", [location], lambda *_: False) == {"a": [location]}
    assert storage.kept_files.size(location) is None


def test_a_missing_bucket_is_no_missing_file(storage: Storage) -> None:
    """Its files may all be there, behind another address."""
    with pytest.raises(OSError, match="the bucket s3://there-is-none does not exist") as raised:
        storage.fetch("s3://there-is-none/t/a")
    assert not isinstance(raised.value, FileNotFoundError)


def test_a_missing_object_is_a_missing_file(storage: Storage, bucket: str) -> None:
    """By each way to it."""
    location = f"s3://{bucket}/t/none"
    for read in (storage.fetch, storage.stream, storage.size, storage.inspect):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            read(location)
    assert (storage.exists(location), storage.missing([location])) == (False, [location])


def test_names_that_the_client_cannot_express_are_listed_once(storage: Storage, bucket: str) -> None:
    """A listing that meets one goes on through PyIceberg's FileIO, from the same place on."""
    names = [f"t/{number:04}" for number in range(1_003)]
    for name in (*names, "t/zz//x", "t/zzz"):
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, name, b"1")
    found = [each.location.removeprefix(f"s3://{bucket}/") for each in storage.list(f"s3://{bucket}/t")]
    assert sorted(found) == sorted([*names, "t/zz//x", "t/zzz"])


def test_a_forked_process_gets_an_error(storage: Storage, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests would hang."""
    assert not storage.exists(f"s3://{bucket}/a")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(OSError, match="this process was forked"):
        storage.exists(f"s3://{bucket}/a")


def test_a_pickled_storage_has_no_connections(storage: Storage, bucket: str) -> None:
    """Another process makes its own, from the same properties."""
    with storage.create(f"s3://{bucket}/a") as stream:
        stream.write(b"1")
    again: Storage = pickle.loads(pickle.dumps(storage))
    assert (again.properties, again.fetch(f"s3://{bucket}/a")) == (storage.properties, b"1")


def test_pyiceberg_makes_a_storage_of_properties(io: FileIO, bucket: str) -> None:
    """Its own property does not stay among those of the table."""
    made = load_file_io({**io.properties, "py-io-impl": STORAGE})
    assert isinstance(made, Storage)
    assert made.properties == io.properties
    with made.new_output(f"s3://{bucket}/b").create() as stream:
        stream.write(b"12")
    file = made.new_input(f"s3://{bucket}/b")
    assert (len(file), file.exists(), file.open().read()) == (2, True, b"12")
    with pytest.raises(FileExistsError, match="it exists"):
        made.new_output(f"s3://{bucket}/b").create()
    made.delete(f"s3://{bucket}/b")
    assert not made.new_input(f"s3://{bucket}/b").exists()


def test_metadata_files_are_read_once(storage: Storage, client: Any, bucket: str) -> None:
    """What was read or written is kept, up to a number of bytes; without that memory, files are read again, once."""
    location = f"s3://{bucket}/t/metadata/{UNIQUE}"
    with storage.create(location) as stream:
        stream.write(b"{}")
    client.delete_object(Bucket=bucket, Key=f"t/metadata/{UNIQUE}")
    assert storage.new_input(location).open().read() == b"{}"
    with pytest.raises(FileNotFoundError):
        storage.without_memory().new_input(location).open()
    client.put_object(Bucket=bucket, Key=f"t/metadata/{UNIQUE}", Body=b"[]")
    again = storage.without_memory()
    assert again.new_input(location).open().read() == b"[]"
    client.delete_object(Bucket=bucket, Key=f"t/metadata/{UNIQUE}")
    assert again.new_input(location).open().read() == b"[]"
    other = f"s3://{bucket}/t/metadata/v1.metadata.json"
    for text in (b"1", b"2"):
        client.put_object(Bucket=bucket, Key="t/metadata/v1.metadata.json", Body=text)
        assert storage.new_input(other).open().read() == text


def test_kept_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used ones are dropped first."""
    monkeypatch.setattr(kept_files, "KEPT_BYTES", 10)
    kept, read = kept_files.KeptFiles(), list[str]()

    def fetch(location: str) -> bytes:
        read.append(location)
        return b"12345"

    for location in ("a", "b", "a", "c", "a", "b"):
        assert kept.get(location, fetch) == b"12345"
    assert read == ["a", "b", "c", "b"]
    kept.put("large", b"x" * 11)
    kept.get("a", fetch)
    assert read[4:] == ["a"]


S3 = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "eu-west-1"}
AZURE = {"adls.account-key": "key"}


@pytest.mark.parametrize(
    ("location", "given", "config"),
    [
        ("s3://b/t", S3, {"access_key_id": "k", "secret_access_key": "s", "region": "eu-west-1"}),
        ("s3a://b/t", {**S3, "s3.session-token": "t"}, {"session_token": "t"}),
        ("s3://b/t", {"client.access-key-id": "c", **S3}, {"access_key_id": "k"}),
        ("s3://b/t", {"client.access-key-id": "c", "client.secret-access-key": "d", "client.region": "x"},
         {"access_key_id": "c", "secret_access_key": "d", "region": "x"}),
        ("s3://b/t", {**S3, "s3.endpoint": "http://h:1/"}, {"endpoint": "http://h:1"}),
        ("s3://b/t", {**S3, "s3.endpoint": "h:1"}, {"endpoint": "https://h:1"}),
        ("s3://b/t", {**S3, "s3.endpoint": "https://h", "s3.force-virtual-addressing": "true"},
         {"endpoint": "https://b.h", "virtual_hosted_style_request": True}),
        ("s3://b/t", {"s3.anonymous": "true", "s3.region": "x"}, {"skip_signature": True}),
        ("gs://b/t", {"gcs.oauth2.token": "t", "gcs.service.host": "https://restricted.googleapis.com"},
         {"bearer_token": "t", "base_url": "https://restricted.googleapis.com"}),
        ("abfss://c@a.dfs.core.windows.net/t", AZURE, {"account_name": "a", "account_key": "key"}),
        ("wasb://c@a.blob.core.windows.net/t", {"adls.sas-token": "s"}, {"account_name": "a", "sas_key": "s"}),
        ("abfs://c@a.dfs.core.windows.net/t",
         {"adls.sas-token.a.dfs.core.windows.net": "s", "adls.sas-token.b.dfs.core.windows.net": "o"},
         {"sas_key": "s"}),
        ("abfs://c@a.dfs.core.windows.net/t",
         {**AZURE, "adls.blob-storage-authority": "127.0.0.1:1", "adls.blob-storage-scheme": "http"},
         {"endpoint": "http://127.0.0.1:1/a"}),
    ],
)  # fmt: skip
def test_properties_are_mapped(location: str, given: dict[str, str], config: dict[str, object]) -> None:
    """Each property of PyIceberg that the client has, with the preference that PyIceberg gives to it."""
    found = store_settings(location, given)
    assert not isinstance(found, str)
    assert dict(found.config).items() >= config.items()
    assert (found.container, "k" in repr(found)) == (location.split("/")[2].partition("@")[0], False)


@pytest.mark.parametrize(
    ("location", "names", "given"),
    [
        ("s3://b/t", S3_NAMES, {"s3.endpoint": "http://h:1"}),
        ("gs://b/t", GCS_NAMES, {}),
        ("abfss://c@a.dfs.core.windows.net/t", AZURE_NAMES, AZURE),
    ],
    ids=["s3", "gcs", "azure"],
)
def test_each_property_is_mapped(location: str, names: dict[str, str], given: dict[str, str]) -> None:
    """Each line of the table in docs/catalogs.md: the setting gets a value, and a note stands for no setting."""
    values = {"gcs.service.host": "https://a.googleapis.com", "adls.account-name": "a"}
    for key, name in names.items():
        found = store_settings(location, {**given, key: values.get(key, "1")})
        assert not isinstance(found, str), key
        settings = dict(found.config) | dict(found.client)
        assert name.startswith("(") or name in settings, key


def test_azure_needs_no_location() -> None:
    """PyIceberg would choose PyArrow if it does not know where the table lies: the client is used, also by a copy."""
    storage, location = Storage(AZURE), "abfss://c@a.dfs.core.windows.net/t"
    again: Storage = pickle.loads(pickle.dumps(storage))
    for each in (storage, again, storage.without_memory()):
        assert each.why_through_file_io(location) is None
        assert not each.cannot_open(f"{location}//a")
    assert Storage({}).why_through_file_io(location) == "its credentials come from the machine"


def test_times_and_proxies_are_mapped() -> None:
    """PyIceberg's are numbers of seconds; without them, a request may take ten minutes, and stall for one."""
    given = {**S3, "s3.connect-timeout": "1.5", "s3.request-timeout": "7", "s3.proxy-uri": "http://p:1"}
    found = store_settings("s3://b/t", given)
    assert not isinstance(found, str)
    wanted = {"connect_timeout": "1500ms", "read_timeout": "7000ms", "timeout": "600s", "proxy_url": "http://p:1"}
    assert dict(found.client) == {**wanted, "allow_http": False}


@pytest.mark.parametrize(
    ("location", "given", "why"),
    [
        ("s3://b/t", {**S3, "py-io-impl": "own.IO"}, "'py-io-impl' is own.IO"),
        ("s3://b/t", {**S3, "s3.signer": "S3V4RestSigner"}, "'s3.signer' has no counterpart"),
        ("s3://b/t", {**S3, "s3.remote-signing-enabled": "true"}, "the catalog signs the requests"),
        ("s3://b/t", {**S3, "s3.remote-signing-enabled": True}, "the catalog signs the requests"),
        ("s3://b/t", {**S3, "s3.role-arn": "arn"}, "'s3.role-arn' has no counterpart"),
        ("s3://b/t", {**S3, "client.profile-name": "p"}, "'client.profile-name' has no counterpart"),
        ("s3://b/t", {**S3, "s3.request-timeout": "soon"}, "'soon' is no number of seconds"),
        ("gs://b/t", {"gcs.endpoint": "http://x"}, "'gcs.endpoint' has no counterpart"),
        ("gs://b/t", {"gcs.service.host": "http://127.0.0.1:4443"}, "'127.0.0.1' is no host of Google"),
        ("abfs://c@a.dfs.core.windows.net/t", {}, "its credentials come from the machine"),
        ("abfs://c@a.dfs.core.windows.net/t", {**AZURE, "adls.account-name": "b"}, "name no account, or two"),
        ("abfs://c@a.own.net/t", AZURE, "'a.own.net' is no address of Azure"),
        ("oss://b/t", S3, "the scheme 'oss' has no client"),
        ("hdfs://n:1/t", {}, "the scheme 'hdfs' has no client"),
    ],
)  # fmt: skip
def test_other_settings_need_the_file_io(location: str, given: dict[str, str], why: str) -> None:
    """Nothing is left out silently: a property without a counterpart is named."""
    found = store_settings(location, given)
    assert isinstance(found, str)
    assert why in found


def test_credentials_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are the client's own way, too; profiles are not."""
    region = {"s3.region": "x"}
    assert not isinstance(store_settings("s3://b/t", region), str)
    (tmp_path / ".aws").mkdir()
    assert store_settings("s3://b/t", region) == "its credentials come from a profile"
    assert not isinstance(store_settings("s3://b/t", S3), str)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert not isinstance(store_settings("s3://b/t", region), str)


def test_a_file_io_of_another_make_stays(endpoint: str) -> None:
    """A subclass may do anything with the bytes."""

    class Own(PyArrowFileIO):
        pass

    storage = Storage(Own({**S3, "s3.endpoint": endpoint}))
    assert storage.why_through_file_io("s3://b/t") == "its FileIO is Own"


@pytest.mark.parametrize("base", [PyArrowFileIO, FsspecFileIO])
def test_a_file_io_of_another_make_deletes(base: type[PyArrowFileIO] | type[FsspecFileIO]) -> None:
    """In its own way, one file after the other."""
    deleted = list[str]()

    class Own(base):  # type: ignore[misc,valid-type]
        def delete(self, location: str) -> None:
            deleted.append(location)

    names = [f"s3://b/{number}" for number in range(3)]
    assert Storage(Own(S3)).discard(names) == {*names}
    assert deleted == names


def test_the_number_of_requests_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no positive number is an error."""
    assert requests_at_once() == 64
    monkeypatch.setenv(REQUESTS, "8")
    assert requests_at_once() == 8
    for value in ("0", "-1", "many", ""):
        monkeypatch.setenv(REQUESTS, value)
        with pytest.raises(ArgumentError, match="ICESIZE_REQUESTS must be a positive number"):
            requests_at_once()


def test_the_client_is_shared(storage: Storage, io: FileIO, bucket: str) -> None:
    """A table that is loaded again has the connections of the last load."""
    before = object_store.client.cache_info().misses
    for _ in range(3):
        Storage(io).exists(f"s3://{bucket}/a")
    assert object_store.client.cache_info().misses - before <= 1
