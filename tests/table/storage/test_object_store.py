"""Listing, unfinished uploads and orphan files in S3, through both of PyIceberg's FileIOs, on a server in this process.

Files there have no folders, times of the server's clock, and names that are only text.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table

from icesize.environment import Environment
from icesize.errors import TableError
from icesize.maintenance.jobs import restore
from icesize.maintenance.jobs.restore import Copy, copy_files
from icesize.maintenance.verify.storage import size_of
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.storage.table_storage import Storage
from icesize.table.cleanup.checkpoints import read_checkpoint
from icesize.table.cleanup.orphans import DAY_MS, OrphanReport, OrphanSearch
from icesize.table.manifests.entries import ADDED, DataFileSchema, Entry
from icesize.table.storage.bulk_delete import delete_all
from icesize.table.storage.listing import incomplete_uploads, list_files, storage_now_ms
from tests.support.object_store import keys
from tests.support.tables import append, ids_of, make_table, write


@pytest.fixture
def io(properties: dict[str, str]) -> FileIO:
    return load_file_io(properties)


def test_a_look_at_one_object_is_another_one_than_the_listing(client: Any, bucket: str, io: FileIO) -> None:
    """An object that was written after the listing is there, and one that was deleted is not."""
    location = f"s3://{bucket}/lake/t"
    for name in ("old", "gone"):
        client.put_object(Bucket=bucket, Key=f"lake/t/data/{name}", Body=b"123")
    assert len(list(list_files(io, location))) == 2
    client.put_object(Bucket=bucket, Key="lake/t/data/new", Body=b"12345")
    client.delete_object(Bucket=bucket, Key="lake/t/data/gone")
    sizes = [size_of(Storage.of(io), f"{location}/data/{name}") for name in ("old", "new", "gone", "never")]
    assert sizes == [3, 5, None, None]


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_objects_are_listed(client: Any, bucket: str, io: FileIO, scheme: str) -> None:
    """Every object below the location with its bytes and time; markers of folders are no files, `t2` is not `t`."""
    objects = {"a.txt": 1, "data/k=1/b.parquet": 2, "data/k=a b%2F/c+d=.parquet": 3, "metadata/v1.metadata.json": 4}
    for name, size in objects.items():
        client.put_object(Bucket=bucket, Key=f"lake/t/{name}", Body=b"x" * size)
    for name in ("lake/t/", "lake/t/empty/", "lake/t/data/", "lake/t2/other", "lake/tother"):
        client.put_object(Bucket=bucket, Key=name, Body=b"")
    location = f"{scheme}://{bucket}/lake/t"
    found = list(list_files(io, location))
    assert {file.location: file.size_bytes for file in found} == {f"{location}/{k}": v for k, v in objects.items()}
    stored = client.head_object(Bucket=bucket, Key="lake/t/a.txt")["LastModified"].timestamp() * 1000
    assert {abs(file.modified_ms - stored) < 60_000 for file in found} == {True}
    assert Storage.of(io).inspect(f"{location}/a.txt").modified_ms == next(
        f.modified_ms for f in found if f.location.endswith("a.txt")
    )


def test_a_second_listing_is_not_remembered(client: Any, bucket: str, io: FileIO) -> None:
    """fsspec caches what it listed; an old answer would make files of a new commit look like gone, or there."""
    location = f"s3://{bucket}/t"
    client.put_object(Bucket=bucket, Key="t/data/a", Body=b"1")
    assert [f.location for f in list_files(io, location)] == [f"{location}/data/a"]
    client.put_object(Bucket=bucket, Key="t/data/b", Body=b"1")
    client.delete_object(Bucket=bucket, Key="t/data/a")
    assert [f.location for f in list_files(io, location)] == [f"{location}/data/b"]


def test_more_objects_than_one_answer_has(bucket: str, io: FileIO) -> None:
    """S3 answers with at most 1,000 names."""
    for i in range(1_005):
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, f"t/data/{i:05}", b"")
    assert len({f.location for f in list_files(io, f"s3://{bucket}/t")}) == 1_005


def test_a_missing_bucket_or_folder_is_an_error(bucket: str, io: FileIO) -> None:
    """Nothing found where a table should be is a wrong location, not an empty one."""
    for location in (f"s3://{bucket}/none", "s3://there-is-none/t"):
        with pytest.raises(TableError, match="Cannot list"):
            list(list_files(io, location))


def test_the_clock_of_the_store(client: Any, bucket: str, io: FileIO) -> None:
    """The probe is dated by the store and does not stay."""
    client.put_object(Bucket=bucket, Key="t/a", Body=b"1")
    before = client.head_object(Bucket=bucket, Key="t/a")["LastModified"].timestamp() * 1000
    assert storage_now_ms(io, f"s3://{bucket}/t", lambda: "x") >= before
    assert keys(client, bucket) == ["t/a"]


def test_unfinished_uploads_are_counted(client: Any, bucket: str, io: FileIO) -> None:
    """Those below the location, and none is aborted."""
    assert incomplete_uploads(io, f"s3a://{bucket}/t") == 0
    for key in ("t/data/a", "t/data/b", "t2/c"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    assert incomplete_uploads(io, f"s3a://{bucket}/t") == 2
    assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 3


def test_uploads_that_cannot_be_counted(io: FileIO) -> None:
    """A bucket that does not answer is no reason to fail: the number is unknown."""
    assert incomplete_uploads(io, "s3://there-is-none/t") is None


def test_objects_are_deleted(client: Any, bucket: str, io: FileIO) -> None:
    """By each scheme; one that is gone already counts as deleted."""
    names = [f"t/{i}" for i in range(20)]
    for name in names:
        client.put_object(Bucket=bucket, Key=name, Body=b"1")
    locations = [f"s3a://{bucket}/{name}" for name in names[:-1]] + [f"s3://{bucket}/t/gone"]
    assert delete_all(locations, io, Environment()) == {}
    assert keys(client, bucket) == ["t/19"]


def test_checkpoints_in_a_store(client: Any, bucket: str, properties: dict[str, str]) -> None:
    """A reader's position is read with the settings of the table's own storage."""
    offset = '{"version":1,"snapshot_id":77,"position":1,"scan_all_files":false}'
    for name, text in {"metadata": "{}", "offsets/0": f"v1\n{{}}\n{offset}", "commits/0": "v1\n{}"}.items():
        client.put_object(Bucket=bucket, Key=f"checkpoints/q/{name}", Body=text.encode())
    assert read_checkpoint(f"s3a://{bucket}/checkpoints/q/", properties).positions == (77,)
    with pytest.raises(TableError, match="it has no 'offsets' and no 'metadata'"):
        read_checkpoint(f"s3a://{bucket}/checkpoints", properties)


def test_the_store_copies_by_itself(client: Any, bucket: str, io: FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the names of partitions; where it cannot, the bytes are read and written."""
    names = ["k=a b%2F/c+d=.bin", "k=%C3%BC/ü.bin", "plain.bin"]
    for name in names:
        client.put_object(Bucket=bucket, Key=f"t/{name}", Body=name.encode())

    def copied(folder: str) -> list[bytes]:
        made = [Copy(_entry(f"s3://{bucket}/t/{n}", len(n.encode())), f"s3a://{bucket}/{folder}/{n}") for n in names]
        copy_files(io, Uncommitted(Storage(io), "s1-0"), made)
        return [client.get_object(Bucket=bucket, Key=f"{folder}/{n}")["Body"].read() for n in names]

    def read(*_: object) -> Iterator[bytes]:
        raise AssertionError("read, though the store can copy")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "pieces", read)
        assert copied("by-store") == [name.encode() for name in names]
    monkeypatch.setattr(restore, "split", lambda location: (location, "", ""))
    assert copied("piece-by-piece") == [name.encode() for name in names]


def _entry(path: str, size_bytes: int) -> Entry:
    return Entry(
        ADDED, None, None, None, path, "ORC", (), 1, size_bytes, False, None, None, b"", DataFileSchema("", "")
    )


@pytest.fixture
def lake_in_store(tmp_path: Path, bucket: str, properties: dict[str, str]) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{bucket}/lake", **properties)
    catalog.create_namespace("db")
    yield catalog
    catalog.close()


def search(catalog: SqlCatalog, dry_run: bool) -> OrphanReport:
    return OrphanSearch("lake.db.t", lambda: catalog.load_table("db.t")).run(dry_run=dry_run)


def test_orphans_in_a_store(client: Any, bucket: str, lake_in_store: SqlCatalog) -> None:
    """What nobody committed is found and deleted when old, uploads are reported, and the rows are all there."""
    make_table(lake_in_store)
    append(lake_in_store, [1])
    table = append(lake_in_store, [2])
    left = write(table, [9]).path
    key = left.removeprefix(f"s3://{bucket}/")
    client.create_multipart_upload(Bucket=bucket, Key=key + ".2")
    report = search(lake_in_store, dry_run=False)
    assert (report.files_found, report.too_recent, report.incomplete_uploads, report.notes) == (0, 1, 1, ())
    for stored in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys.values():
        stored.last_modified -= timedelta(days=4)
    report = search(lake_in_store, dry_run=True)
    assert (report.files_found, report.files_deleted, report.examples) == (1, 0, (left,))
    before = set(keys(client, bucket))
    report = search(lake_in_store, dry_run=False)
    assert (report.files_found, report.files_deleted, report.files_failed, report.too_recent) == (1, 1, 0, 0)
    assert before - set(keys(client, bucket)) == {key}
    assert ids_of(lake_in_store) == [1, 2]


ODD_VALUES = ("a*b", "*", "a[b]c", "a%2Ab", "a b", "a+b", "a%b", "ü€", "a'b", "a;b&c=d", "a{b}", "~!$(),-_.")
"""Values of partitions as Java and others spell them in folders: Java leaves `*` as it is."""


def test_orphans_of_odd_partitions_go_and_nothing_else(client: Any, bucket: str, lake_in_store: SqlCatalog) -> None:
    """Each is deleted by exactly its name; files that match it as a pattern stay, and so do names with ? or #."""
    make_table(lake_in_store)
    table = append(lake_in_store, [1])
    prefix = table.location().removeprefix(f"s3://{bucket}/") + "/data/kind="
    odd = {f"{prefix}{value}/x.parquet" for value in ODD_VALUES}
    young = {f"{prefix}aXb/x.parquet", f"{prefix}abc/x.parquet"}
    unaddressable = {f"{prefix}a?b/x.parquet", f"{prefix}a#b/x.parquet"}
    for key in odd | young | unaddressable:
        client.put_object(Bucket=bucket, Key=key, Body=b"1")
    for key, stored in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys.items():
        stored.last_modified -= timedelta(days=4 * (key not in young))
    before = set(keys(client, bucket))
    report = search(lake_in_store, dry_run=False)
    assert (report.files_deleted, report.files_failed, report.too_recent) == (len(odd), 0, len(young))
    assert before - set(keys(client, bucket)) == odd
    assert any("2 files left alone: by a name with ? or # in it" in note for note in report.notes)


def test_spark_and_pyiceberg_spell_one_store(lake_in_store: SqlCatalog) -> None:
    """A location that begins with `s3a` lists the files that metadata spells with `s3`: none of them is an orphan."""
    make_table(lake_in_store)
    table = append(lake_in_store, [1])
    location = table.location().replace("s3://", "s3a://")
    moved = table.metadata.model_copy(update={"location": location})
    spelt = Table(table._identifier, moved, table.metadata_location, table.io, table.catalog)
    far = Environment(now_ms=lambda: 10_000 * DAY_MS)
    report = OrphanSearch("lake.db.t", lambda: spelt, far).run()
    assert len(list(list_files(table.io, location))) == 5
    assert (report.files_found, report.too_recent) == (0, 0)
