"""Metadata that contradict each other are found; those of every writer that keeps to the specification are valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.types import StringType

import icesize
from icesize.maintenance.verify import Verification, verify
from icesize.planning.files import PartitionKey
from icesize.sized_table import SizedTable
from icesize.table.manifests.lists import manifests_in, write_list
from tests.support.command_line import run_in
from tests.support.delete_files import delete_positions
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import append, arrow, compact, make_table, request_on, run, small_files, write

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))


def opened(catalog: SqlCatalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=catalog)


def found(verification: Verification) -> dict[str, list[str]]:
    """What is wrong, by rule."""
    return {
        finding.rule: [f.detail for f in verification.findings if f.rule == finding.rule]
        for finding in verification.findings
    }


def relist(table: Table, change: Callable[[list[ManifestFile]], Sequence[ManifestFile]]) -> None:
    """Write the manifest list of the newest snapshot again, with other manifests."""
    head = table.metadata.current_snapshot()
    assert head is not None
    write_list(
        table.metadata, table.io, head.manifest_list, change(manifests_in(head, table.io)),
        snapshot_id=head.snapshot_id, parent_id=head.parent_snapshot_id, sequence_number=head.sequence_number or 0,
    )  # fmt: skip


def changed(manifest: ManifestFile, **values: Any) -> ManifestFile:
    """The manifest as a list with other values would name it."""
    places = {"sequence_number": 4, "min_sequence_number": 5, "added_files_count": 7, "added_rows_count": 10}
    places["partitions"] = 13
    parts = [manifest[place] for place in range(len(manifest))]
    for name, value in values.items():
        assert parts[places[name]] == getattr(manifest, name)
        parts[places[name]] = value
    return ManifestFile(*parts)


@pytest.mark.parametrize("version", ["1", "2"])
def test_tables_of_all_writers_are_valid(lake: SqlCatalog, version: str) -> None:
    """Appends of icesize and PyIceberg, merges, deletes of another engine, another spec, and a table without files."""
    table = make_table(lake, properties={"format-version": version})
    assert opened(lake).verify() == Verification("lake.db.t", None, 0, 0, 0, ())
    table.append(arrow([1]))
    append(lake, [2, 3], "a")
    append(lake, [4], "b")
    if version == "2":
        delete_rows(lake, small_files(lake.load_table("db.t"), "a")[0])
        delete_ids(lake, small_files(lake.load_table("db.t"), "b")[0], [4])
    verification = opened(lake).verify()
    assert (verification.findings, verification.is_valid) == ((), True)
    assert str(verification).startswith("lake.db.t: the metadata are valid (")
    assert (verification.files, verification.delete_files) == (3, 2 if version == "2" else 0)
    compact(lake, "a")
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("id", "bucket[2]", "id_bucket")
    append(lake, [5], "a")
    assert opened(lake).verify().findings == ()


def test_counts_that_the_manifest_does_not_have(lake: SqlCatalog) -> None:
    """Files and rows of a manifest, and totals of the snapshot, are counted."""
    make_table(lake)
    append(lake, [1, 2])
    table = append(lake, [3])
    relist(table, lambda manifests: [changed(manifests[0], added_files_count=7, added_rows_count=8), *manifests[1:]])
    assert found(opened(lake).verify()) == {
        "manifest counts": [
            "the manifest list has 7 added files, the manifest 1",
            "the manifest list has 8 added rows, the manifest 1",
        ]
    }
    relist(table, lambda manifests: manifests[1:])
    verification = opened(lake).verify()
    assert [detail.split(" of ")[0] for detail in found(verification)["totals"]] == [
        "'total-data-files'", "'total-records'", "'total-files-size'",
    ]  # fmt: skip
    assert not verification.is_valid


def test_sequence_numbers_that_contradict_each_other(lake: SqlCatalog) -> None:
    """A manifest is not newer than its snapshot, and its files are not older than the listed minimum."""
    make_table(lake)
    table = append(lake, [1])
    relist(table, lambda manifests: [changed(manifests[0], sequence_number=5, min_sequence_number=9)])
    details = found(opened(lake).verify())["sequence numbers"]
    assert details == [
        "its sequence number is 5, that of the snapshot 1",
        "a file has the number 5, below the listed minimum 9",
    ]


@pytest.mark.parametrize(
    ("summary", "detail"),
    [
        (PartitionFieldSummary(False, False, b"b", b"c"), "partition field 'kind': 'a' is below the lower bound 'b'"),
        (PartitionFieldSummary(False, False, b"A", b"B"), "partition field 'kind': 'a' is above the upper bound 'B'"),
    ],
)
def test_partition_values_outside_of_their_bounds(
    lake: SqlCatalog, summary: PartitionFieldSummary, detail: str
) -> None:
    """A query for the partition would skip the manifest."""
    make_table(lake)
    table = append(lake, [1], "a")
    relist(table, lambda manifests: [changed(manifests[0], partitions=[summary])])
    assert found(opened(lake).verify()) == {"partition values": [detail]}


def test_null_partitions_that_the_manifest_list_denies(lake: SqlCatalog) -> None:
    """A query for NULL would skip the manifest."""
    table = make_table(lake)
    run(lake, request_on(table, [write(table, [1], None)]), table)  # type: ignore[arg-type]
    text = to_bytes(StringType(), "a")
    relist(
        lake.load_table("db.t"),
        lambda manifests: [changed(manifests[0], partitions=[PartitionFieldSummary(False, False, text, text)])],
    )
    expected = ["partition field 'kind': by the manifest list, no value is NULL"]
    assert found(opened(lake).verify()) == {"partition values": expected}


def test_files_and_manifests_that_are_listed_twice(lake: SqlCatalog) -> None:
    """Their rows count twice."""
    make_table(lake)
    table = append(lake, [1])
    file = write(table, [2])
    run(lake, request_on(table, [file]), table)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [file]), table)
    verification = opened(lake).verify()
    assert found(verification) == {"listed twice": ["the table lists it 2 times"]}
    assert [finding.path for finding in verification.findings] == [file.path]
    assert str(verification).splitlines() == [
        "lake.db.t: the metadata contradict each other (3 manifests, 3 data files, 0 delete files)",
        "listed twice: 1 finding",
        f"  {file.path}: the table lists it 2 times",
    ]
    table = lake.load_table("db.t")
    relist(table, lambda manifests: [*manifests, manifests[0]])
    assert found(opened(lake).verify())["manifest list"] == ["the manifest list names it 2 times"]


def test_deletes_that_reach_nothing(lake: SqlCatalog) -> None:
    """One of a file that is gone is harmless; one in another partition than its file deletes nothing."""
    make_table(lake)
    append(lake, [1], "a")
    table = append(lake, [2], "b")
    delete_positions(table, {"file:///gone.parquet": [0]}, A)
    verification = opened(lake).verify()
    assert found(verification) == {"dangling deletes": ["it applies to no live data file"]}
    assert verification.is_valid
    delete_positions(lake.load_table("db.t"), {small_files(table, "a")[0].path: [0]}, B)
    verification = opened(lake).verify()
    assert found(verification)["deletes of another partition"] == [
        "it is in partition b of spec 0, its data file in a of 0"
    ]
    assert not verification.is_valid


def test_refs_and_schemas_that_are_not_there(lake: SqlCatalog) -> None:
    """A ref names a snapshot, and a snapshot a schema."""
    make_table(lake)
    append(lake, [1])
    table = lake.load_table("db.t")
    metadata = table.metadata
    head = metadata.snapshots[0].model_copy(update={"schema_id": 9})
    refs = {**metadata.refs, "gone": SnapshotRef(snapshot_id=7, snapshot_ref_type="branch")}
    broken = metadata.model_copy(update={"snapshots": [head], "refs": refs})
    assert found(verify("lake.db.t", broken, table.io)) == {
        "references": [
            "the ref 'gone' names snapshot 7, which is not there",
            "the snapshot has schema 9, which is not there",
        ]
    }


def test_the_command_says_it_by_its_exit_code(lake: SqlCatalog, tmp_path: Path) -> None:
    """0 for a valid table, 4 for one that is not; JSON has the findings."""
    run_command = run_in(tmp_path)
    make_table(lake)
    table = append(lake, [1])
    assert run_command("verify").exit_code == 0
    relist(table, lambda manifests: [changed(manifests[0], added_rows_count=8)])
    done = run_command("verify", "--json")
    assert (done.exit_code, [each["rule"] for each in json.loads(done.stdout)["findings"]]) == (4, ["manifest counts"])
    assert "the manifest list has 8 added rows, the manifest 1" in run_command("verify").stdout
