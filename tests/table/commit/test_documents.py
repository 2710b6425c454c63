"""Metadata files of format v3 in catalogs of which PyIceberg writes the metadata: nothing of the document is lost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from icesize.table.commit.documents import document_of, dumped, merged
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import CommitLost, CommitRefused
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from tests.support.tables import NOW_MS, ids_of, local, make_table, two_files
from tests.support.v3_tables import as_v3, with_document

EXTRA = "x-unknown"
_STRING_MAPS = ("properties", "summary")


def set_to(value: str) -> SetPropertiesUpdate:
    return SetPropertiesUpdate(updates={"owner": value})


def ref_to(snapshot_id: int, name: str = "main", kind: SnapshotRefType = SnapshotRefType.BRANCH) -> TableUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name, type=kind, snapshot_id=snapshot_id,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip


def next_snapshot(metadata: TableMetadata, added_rows: int | None, **changed: Any) -> Snapshot:
    """A snapshot as a writer of format v3 adds it, with the manifests of the head."""
    head = metadata.snapshots[-1]
    facts = {
        "snapshot_id": max(s.snapshot_id for s in metadata.snapshots) + 1, "parent_snapshot_id": head.snapshot_id,
        "sequence_number": metadata.next_sequence_number(), "timestamp_ms": metadata.last_updated_ms + 1,
        "manifest_list": head.manifest_list, "summary": Summary(Operation.APPEND), "schema_id": 0,
        "first_row_id": getattr(metadata, "next_row_id", None), "added_rows": added_rows,
    }  # fmt: skip
    return Snapshot(**{**facts, **changed})


def commit(catalog: SqlCatalog, *updates: TableUpdate, planned_on: Table | None = None) -> Table:
    """The table after a commit by the committer; planned on the current state, or on an older one."""
    committer = PyIcebergCommitter(catalog, planned_on or catalog.load_table("db.t"), lambda: NOW_MS)
    loaded = Loaded(committer.table)
    committer.commit(loaded, loaded.staged(updates))
    return catalog.load_table("db.t")


def document(table: Table) -> dict[str, Any]:
    return dict(json.loads(local(table.metadata_location).read_bytes()))


def metadata_files(table: Table) -> set[str]:
    return {path.name for path in (local(table.location()) / "metadata").glob("*.metadata.json")}


def sprinkle(value: Any, name: str = "", place: str = "") -> Any:
    """The document with a field that no model knows in every object that is not a map of strings or of refs."""
    if isinstance(value, list):
        return [sprinkle(each, name, f"{place}/{json.dumps(each)}") for each in value]
    if not isinstance(value, dict) or name in _STRING_MAPS:
        return value
    inner = {key: sprinkle(each, key, f"{place}/{key}") for key, each in value.items()}
    return inner if name == "refs" else {**inner, EXTRA: {"at": place}}


def extras(value: Any) -> Iterator[str]:
    """The places of all unknown fields that are left in a document."""
    if isinstance(value, dict):
        if EXTRA in value:
            yield value[EXTRA]["at"]
        value = [each for key, each in value.items() if key != EXTRA]
    if isinstance(value, list):
        for each in value:
            yield from extras(each)


def stripped(value: Any) -> Any:
    """The document without unknown fields."""
    if isinstance(value, dict):
        return {key: stripped(each) for key, each in value.items() if key != EXTRA}
    return [stripped(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def v3(lake: SqlCatalog) -> SqlCatalog:
    """A catalog with a table of format v3 that has two snapshots, and unknown fields at every level."""
    two_files(lake)
    as_v3(lake)

    def sprinkled(metadata: dict[str, Any]) -> None:
        metadata.update(sprinkle(metadata))

    with_document(lake, sprinkled)
    return lake


def test_a_property_changes_only_itself(v3: SqlCatalog) -> None:
    """A commit changes the property, the time and the log of older files; every other field stays, known or not."""
    before = v3.load_table("db.t")
    was, after = document(before), commit(v3, set_to("me"))
    now = document(after)
    assert after.properties["owner"] == "me"
    changed = {key for key in {*was, *now} if was.get(key) != now.get(key)}
    assert changed == {"properties", "last-updated-ms", "metadata-log"}
    assert now["metadata-log"][-1]["metadata-file"] == before.metadata_location
    assert set(extras(was)) <= set(extras(now))
    assert ids_of(v3) == [1, 2]


def test_a_snapshot_advances_the_next_row_id(v3: SqlCatalog) -> None:
    """An added snapshot keeps its row ids, and the next one begins behind them; older snapshots keep unknown fields."""
    before = v3.load_table("db.t")
    snapshot = next_snapshot(before.metadata, 7)
    after = commit(v3, AddSnapshotUpdate(snapshot=snapshot), ref_to(snapshot.snapshot_id))
    now = document(after)
    assert now["next-row-id"] == 7
    assert (now["snapshots"][-1]["first-row-id"], now["snapshots"][-1]["added-rows"]) == (0, 7)
    assert now["snapshots"][:-1] == document(before)["snapshots"]
    assert now["refs"]["main"][EXTRA] == document(before)["refs"]["main"][EXTRA]
    assert after.metadata.current_snapshot_id == snapshot.snapshot_id


def test_expired_snapshots_leave_the_document(v3: SqlCatalog) -> None:
    """A removed snapshot goes with its fields; its child keeps its own, without the parent."""
    before = document(v3.load_table("db.t"))
    now = document(commit(v3, RemoveSnapshotsUpdate(snapshot_ids=[before["snapshots"][0]["snapshot-id"]])))
    (left,) = now["snapshots"]
    assert left == {key: value for key, value in before["snapshots"][1].items() if key != "parent-snapshot-id"}


def test_compressed_metadata_is_read(v3: SqlCatalog) -> None:
    """A table whose current metadata file Java has compressed takes a commit, and keeps unknown fields."""
    table = v3.load_table("db.t")
    location = table.metadata_location.replace(".metadata.json", ".gz.metadata.json")
    local(location).write_bytes(gzip.compress(local(table.metadata_location).read_bytes()))
    v3.drop_table("db.t")
    v3.register_table("db.t", location)
    assert document(commit(v3, set_to("me")))[EXTRA] == document(table)[EXTRA]


def test_an_encrypted_table_is_refused(v3: SqlCatalog) -> None:
    """A table with encryption keys is refused with the reason, and no file is written."""
    table = with_document(v3, lambda metadata: metadata.update({"encryption-keys": [{"key-id": "k"}]}))
    files = metadata_files(table)
    with pytest.raises(CommitRefused, match="the table is encrypted"):
        commit(v3, set_to("me"))
    assert metadata_files(v3.load_table("db.t")) == files


def test_an_update_that_was_lost_is_refused(v3: SqlCatalog) -> None:
    """A document that would be read with other values than the updated metadata is never written."""
    table = v3.load_table("db.t")
    updated = update_table_metadata(table.metadata, (set_to("me"),))
    other = {**document(table), "last-column-id": 99}
    with pytest.raises(CommitRefused, match=r"other values \(last-column-id\)"):
        document_of(table.metadata, updated, other, "db.t")
    unreadable = {**document(table), "current-schema-id": 99}
    with pytest.raises(CommitRefused, match="current-schema-id"):
        document_of(table.metadata, updated, unreadable, "db.t")


def test_a_snapshot_without_added_rows_is_refused(v3: SqlCatalog) -> None:
    """PyIceberg would drop the table's next row id, without which Java does not read the table."""
    snapshot = next_snapshot(v3.load_table("db.t").metadata, None)
    with pytest.raises(CommitRefused, match="next-row-id"):
        commit(v3, AddSnapshotUpdate(snapshot=snapshot))


@pytest.mark.parametrize("rows", [0, 5])
def test_numbers_that_another_branch_took_are_a_lost_race(v3: SqlCatalog, rows: int) -> None:
    """A snapshot planned before another branch moved on is lost, also if that one brought no rows."""
    table = v3.load_table("db.t")
    ours, theirs = next_snapshot(table.metadata, 3), next_snapshot(table.metadata, rows, snapshot_id=1)
    commit(v3, AddSnapshotUpdate(snapshot=theirs), ref_to(1, "audit"))
    with pytest.raises(CommitLost, match="sequence number"):
        commit(v3, AddSnapshotUpdate(snapshot=ours), planned_on=table)
    later = ours.model_copy(update={"sequence_number": 99, "first_row_id": -1})
    with pytest.raises(CommitLost, match="first row id"):
        commit(v3, AddSnapshotUpdate(snapshot=later), planned_on=table)


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_upgrade_before_the_commit_is_a_lost_race(lake: SqlCatalog, snapshot: bool) -> None:
    """A commit planned on format v2 is planned anew on v3; nothing of it is visible."""
    table = two_files(lake)
    as_v3(lake)
    added = next_snapshot(table.metadata, None)
    with pytest.raises(CommitLost):
        commit(lake, AddSnapshotUpdate(snapshot=added) if snapshot else set_to("me"), planned_on=table)


@pytest.mark.parametrize("version", [2, 3])
def test_a_lost_swap_leaves_one_metadata_file(lake: SqlCatalog, version: int) -> None:
    """A rival between reading and the swap wins; as on v2, the file of the loser is all that stays."""
    two_files(lake)
    table = as_v3(lake) if version == 3 else lake.load_table("db.t")

    class Rival(SqlCatalog):
        def load_table(self, identifier: Any) -> Table:
            current = super().load_table(identifier)
            commit(lake, set_to("them"))
            return current

    slow = Rival("lake", **lake.properties)
    files = metadata_files(table)
    with pytest.raises(CommitLost):
        commit(slow, set_to("me"), planned_on=table)
    slow.close()
    assert lake.load_table("db.t").properties["owner"] == "them"
    assert len(metadata_files(table) - files) == 2


def snapshot_step(metadata: TableMetadata, rows: int) -> tuple[TableUpdate, ...]:
    snapshot = next_snapshot(metadata, rows)
    return AddSnapshotUpdate(snapshot=snapshot), ref_to(snapshot.snapshot_id)


def column_step(metadata: TableMetadata, number: int) -> tuple[TableUpdate, ...]:
    schema, field_id = metadata.schema(), 100 + number
    if field_id in schema.field_ids:
        return ()
    columns = *schema.fields, NestedField(field_id, f"c{number}", LongType())
    new = Schema(*columns, schema_id=max(s.schema_id for s in metadata.schemas) + 1)
    return AddSchemaUpdate(schema_=new), SetCurrentSchemaUpdate()


def spec_step(metadata: TableMetadata, buckets: int) -> tuple[TableUpdate, ...]:
    number = max(metadata.specs()) + 1
    field = PartitionField(1, 1000 + number, BucketTransform(2 + buckets), f"b{number}")
    return AddPartitionSpecUpdate(spec=PartitionSpec(field, spec_id=number)), SetDefaultSpecUpdate(spec_id=-1)


def order_step(metadata: TableMetadata, _: int) -> tuple[TableUpdate, ...]:
    order = SortOrder(SortField(source_id=1), order_id=len(metadata.sort_orders) + 1)
    return (AddSortOrderUpdate(sort_order=order),)


def chosen(metadata: TableMetadata, number: int) -> int:
    return metadata.snapshots[number % len(metadata.snapshots)].snapshot_id


def expiry_step(metadata: TableMetadata, number: int) -> tuple[TableUpdate, ...]:
    gone = chosen(metadata, number)
    return () if gone == metadata.current_snapshot_id else (RemoveSnapshotsUpdate(snapshot_ids=[gone]),)


def statistics_step(metadata: TableMetadata, number: int) -> tuple[TableUpdate, ...]:
    """Statistics of a snapshot that has none; otherwise they are removed."""
    one = chosen(metadata, number)
    if any(each.snapshot_id == one for each in metadata.statistics):
        return (RemoveStatisticsUpdate(snapshot_id=one),)
    facts = {"snapshot-id": one, "statistics-path": f"s{one}", "file-size-in-bytes": 9}
    return (
        SetStatisticsUpdate(
            statistics=StatisticsFile(**facts, **{"file-footer-size-in-bytes": 1, "blob-metadata": []})
        ),
    )


UPDATES: dict[str, Callable[[TableMetadata, int], tuple[TableUpdate, ...]]] = {
    "set": lambda _, number: (SetPropertiesUpdate(updates={f"k{number % 3}": str(number)}),),
    "unset": lambda metadata, _: (RemovePropertiesUpdate(removals=list(metadata.properties)[:1]),),
    "snapshot": snapshot_step,
    "tag": lambda metadata, number: (ref_to(chosen(metadata, number), f"t{number % 2}", SnapshotRefType.TAG),),
    "untag": lambda _, number: (RemoveSnapshotRefUpdate(ref_name=f"t{number % 2}"),),
    "expire": expiry_step,
    "column": column_step,
    "spec": spec_step,
    "order": order_step,
    "statistics": statistics_step,
}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(UPDATES)), st.integers(0, 5)), max_size=6)


def applied(metadata: TableMetadata, *steps: tuple[str, int]) -> TableMetadata:
    """The metadata after updates, each in a metadata file of its own."""
    for kind, number in steps:
        updates = UPDATES[kind](metadata, number)
        metadata = update_table_metadata(metadata, updates, metadata_location="file:/older.metadata.json")
    return metadata


def made() -> TableMetadata:
    """Metadata of format v3 with a snapshot, a nested column, a default, and a property."""
    point = {"type": "struct", "fields": [{"id": 3, "name": "x", "required": False, "type": "double"}]}
    fields = [
        {"id": 1, "name": "id", "required": True, "type": "long", "initial-default": 7},
        {"id": 2, "name": "points", "required": False,
         "type": {"type": "list", "element-id": 4, "element": point, "element-required": False}},
    ]  # fmt: skip
    return TableMetadataUtil.parse_obj(
        {
            "format-version": 3, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "file:/t",
            "last-sequence-number": 1, "last-updated-ms": NOW_MS, "last-column-id": 4, "next-row-id": 5,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}], "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}], "default-spec-id": 0, "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0, "properties": {"a": "x"},
            "current-snapshot-id": 1,
            "snapshots": [
                {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": NOW_MS, "manifest-list": "m", "schema-id": 0,
                 "summary": {"operation": "append"}, "first-row-id": 0, "added-rows": 5},
            ],
        }
    )  # fmt: skip


IDS = {
    "snapshots": "snapshot-id", "schemas": "schema-id", "partition-specs": "spec-id", "sort-orders": "order-id",
    "statistics": "snapshot-id",
}  # fmt: skip


@given(STEPS, STEPS)
def test_the_document_follows_the_model(before: list[tuple[str, int]], steps: list[tuple[str, int]]) -> None:
    """After any updates the document is read as PyIceberg's model, and what remains keeps its unknown fields."""
    base = applied(made(), *before)
    updated = applied(base, *steps)
    loaded = sprinkle(dumped(base))
    text = document_of(base, updated, loaded, "db.t")
    now = json.loads(text)
    assert TableMetadataUtil.parse_raw(text) == updated
    assert stripped(now) == dumped(updated)
    assert loaded == sprinkle(dumped(base)), "the loaded document stays as it was"
    assert now[EXTRA] == loaded[EXTRA]
    for name, key in IDS.items():
        old = {each[key]: each for each in loaded.get(name, ())}
        assert all(each[EXTRA] == old[each[key]][EXTRA] for each in now.get(name, ()) if each[key] in old), name
    assert all(ref[EXTRA] == loaded["refs"][name][EXTRA] for name, ref in now["refs"].items() if name in loaded["refs"])
    for schema in now["schemas"]:
        columns = [field for field in schema["fields"] if field["id"] < 100]
        assert all(EXTRA in each for each in (*columns, columns[1]["type"]["element"]["fields"][0])), "also new schemas"


def test_defaults_of_the_model_are_not_added() -> None:
    """A value that the document lacks and no update changed stays absent, whatever the models make of it."""
    base = made()
    document = {key: value for key, value in dumped(base).items() if key not in ("refs", "statistics")}
    updated = applied(base, ("set", 1))
    now = merged(dumped(base), dumped(updated), document)
    assert "refs" not in now
    assert "statistics" not in now
    assert now["properties"] == {"a": "x", "k1": "1"}


def test_a_table_without_snapshots_takes_a_commit(lake: SqlCatalog) -> None:
    """A table that has no snapshot, and no refs in its document, is read with the change."""
    make_table(lake)
    as_v3(lake)
    assert commit(lake, set_to("me")).properties["owner"] == "me"
