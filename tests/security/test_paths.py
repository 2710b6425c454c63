"""Only what is proven to be the table's is deleted: links, other spellings, and folders of others below its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.errors import TableError
from icesize.storage.locations import is_inside
from icesize.table.catalog.access_errors import brief
from icesize.table.cleanup.expired_files import due_files
from icesize.table.cleanup.journal import JOURNAL, Journal
from icesize.table.cleanup.may_delete import OUTSIDE, Others, own_folders
from icesize.table.storage.reachable import Reachable
from tests.support.tables import append, check, local, make_table, two_files


@pytest.mark.parametrize(
    "location",
    [
        "s3://other/w/t/1.parquet", "s3://bucket/w/t2/1.parquet", "s3://bucket/w/t/../t2/1.parquet",
        "s3://bucket/w/%74/1.parquet", "s3://bucket/w/t%2F1.parquet", "gs://bucket/w/t/1.parquet",
        "s3://bucket@evil/w/t/1.parquet", "file:///w/t/1.parquet", "s3://bucket/w/t", "s3://bucket/W/t/1.parquet",
    ],
)  # fmt: skip
def test_what_is_not_the_tables(location: str) -> None:
    """Another authority, scheme, letter or encoding is another place, whatever a server would make of it."""
    assert not is_inside(location, "s3://bucket/w/t")
    assert is_inside("s3a://bucket/w/t/1.parquet", "s3://bucket/w/t")


def test_an_expiry_does_not_delete_what_a_journal_names_outside(lake: SqlCatalog, tmp_path: Path) -> None:
    """A journal is a file that somebody may have changed: paths beside the table are counted and left."""
    table = two_files(lake)
    uuid = str(table.metadata.table_uuid)
    beside = (f"{table.location()}2/data/1.parquet", f"{table.location()}/../t2/1.parquet", "s3://bucket/1.parquet")
    journal = Journal(uuid, files=(*beside, f"{table.location()}/data/gone.parquet"))
    kept = Reachable()
    kept.add(table.metadata, table.metadata_location, table.io)
    due, deletions, _ = due_files(table, journal, kept, lambda table: Others())
    assert own_folders(table) == [table.location()]
    assert deletions.stay == {OUTSIDE: 3}
    assert [path for path in beside if path in due] == []
    assert f"{table.location()}/data/gone.parquet" in due


def test_orphan_cleanup_does_not_follow_a_link_out_of_the_table(lake: SqlCatalog, tmp_path: Path) -> None:
    """Linked folders and files inside of the location: neither they nor what they lead to is deleted."""
    table = two_files(lake)
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "1.parquet").write_text("not ours")
    data = local(table.location()) / "data"
    (data / "linked").symlink_to(outside)
    (data / "linked.parquet").symlink_to(outside / "1.parquet")
    (data / "orphan.parquet").write_text("left")
    for path in (outside / "1.parquet", data / "orphan.parquet"):
        os.utime(path, (0, 0))
    report = icesize.open(None, "db.t", catalog=lake).remove_orphan_files(dry_run=False)
    assert (report.files_deleted, (data / "orphan.parquet").exists()) == (1, False)
    assert (outside / "1.parquet").read_text() == "not ours"
    assert (data / "linked").is_symlink()
    assert (data / "linked.parquet").is_symlink()
    check(lake.load_table("db.t"))


def test_a_journal_of_a_later_release_stops_the_expiry(lake: SqlCatalog) -> None:
    """What it lists would be forgotten: refused by name and version, nothing expired, the journal untouched."""
    make_table(lake)
    for number in range(3):
        append(lake, [number])
    table = lake.load_table("db.t")
    path = local(table.location()) / "metadata" / "later.json"
    path.write_text(json.dumps({"version": 2, "everything": "else"}))
    with table.transaction() as transaction:
        transaction.set_properties({JOURNAL: f"file://{path}"})
    with pytest.raises(TableError, match=r"journal .*later\.json.*version 2.*newer icesize"):
        icesize.open(None, "db.t", catalog=lake).expire_snapshots(retain_last=1)
    table = lake.load_table("db.t")
    assert (len(table.metadata.snapshots), table.properties[JOURNAL]) == (3, f"file://{path}")
    assert path.exists()


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("AWS Error ACCESS_DENIED during PutObject operation: Access Denied", "write (s3:PutObject)"),
        ("AWS Error ACCESS_DENIED during CreateMultipartUpload operation: no", "write (s3:PutObject)"),
        ("AWS Error ACCESS_DENIED during HeadObject operation: no", "read (s3:GetObject"),
        ("An error occurred (AccessDenied) when calling the GetObject operation: no", "read (s3:GetObject)"),
        ("An error occurred (AccessDenied) when calling the DeleteObject operation: no", "delete (s3:DeleteObject)"),
        ("AWS Error ACCESS_DENIED during ListObjectsV2 operation: no", "list (s3:ListBucket)"),
        ("me@x does not have Permission 'storage.objects.delete' denied", "delete (storage.objects.delete)"),
    ],
)
def test_storage_that_refuses_names_the_missing_right(text: str, right: str) -> None:
    """Put, get, delete and list, in the words of PyArrow, boto3 and Google; also behind fsspec's own error."""
    assert f"the right to {right}" in brief(OSError(text))
    hidden = PermissionError("Access Denied")
    hidden.__cause__ = RuntimeError(text)
    assert f"the right to {right}" in brief(hidden)
    assert "the right to" not in brief(OSError("AWS Error SLOW_DOWN during PutObject operation"))
