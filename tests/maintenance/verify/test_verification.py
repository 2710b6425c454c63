"""Metadata that contradict each other are found; those of every writer that keeps to the specification are valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.typedef import TableVersion
from pyiceberg.types import StringType

import icesize
from icesize.maintenance.verify.v3_rules import overlapping
from icesize.maintenance.verify.verification import Verification, verify
from icesize.parquet.files.data_file import NewDeleteFile
from icesize.planning.deletes.delete_reach import plain_path
from icesize.planning.files import PartitionKey
from icesize.planning.upsert_rule import UpsertRule
from icesize.sized_table import SizedTable
from icesize.table.manifests.manifest_lists import manifests_in
from tests.support.breakages import changed, relist, write_list
from tests.support.command_line import run_in
from tests.support.delete_files import delete_positions
from tests.support.puffin import add_deletes, footer, vectors_in_puffin
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    append,
    arrow,
    compact,
    local,
    make_table,
    request_on,
    rewrite_manifests,
    run,
    small_files,
    write,
)
from tests.support.v3_tables import as_v3

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))


def opened(catalog: Catalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=catalog)


def found(verification: Verification) -> dict[str, list[str]]:
    """What is wrong, by rule."""
    return {
        finding.rule: [f.detail for f in verification.findings if f.rule == finding.rule]
        for finding in verification.findings
    }


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
    assert str(verification).startswith("lake.db.t: no errors (")
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
    # no reader uses the total of sizes, and Spark's `add_files` commits a wrong one
    assert [detail.split(" of ")[0] for detail in found(verification)["totals"]] == [
        "'total-records'", "'total-data-files'",
    ]  # fmt: skip
    assert not verification.is_valid


@pytest.mark.parametrize("version", [2, 3])
def test_manifests_of_format_v1_after_an_upgrade(mini: MiniRest, version: TableVersion) -> None:
    """Their entries have no sequence numbers, whether they are new or not, and nothing is wrong with that."""
    catalog = mini.catalog()
    make_table(catalog, properties={"format-version": "1"})
    for number in range(3):
        append(catalog, [number])
    table = rewrite_manifests(catalog)
    catalog.commit_table(table, (), (UpgradeFormatVersionUpdate(format_version=version),))
    assert opened(catalog).verify().findings == ()


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
    first, *_, rule, line = str(verification).splitlines()
    assert first == "lake.db.t: the table is damaged (3 manifests, 3 data files, 0 delete files)"
    assert rule.startswith("listed twice: 1 error. ")
    assert line == f"  {file.path}: the table lists it 2 times"
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


def test_many_deletes_in_a_table_with_upserts(lake: SqlCatalog) -> None:
    """More delete files than the policy allows are reported in a table with upserts, and are no error."""
    rule = {"icesize.upsert": UpsertRule((1,)).to_json(), "icesize.policy.max-delete-files": "2"}
    make_table(lake, properties=rule)
    append(lake, [1, 2, 3, 4], "a")
    table = append(lake, [5, 6], "a")
    first, second = (file.path for file in small_files(table, "a"))
    for number in range(2):
        delete_positions(lake.load_table("db.t"), {first: [number]}, A, granularity="file")
    assert opened(lake).verify().findings == ()
    delete_positions(lake.load_table("db.t"), {first: [2], second: [0]}, A)
    verification = opened(lake).verify()
    [finding] = verification.findings
    assert (finding.rule, finding.path, finding.is_error) == ("many deletes", first, False)
    assert finding.detail == "3 delete files may apply to a data file, more than 2 ('max-delete-files')"
    with lake.load_table("db.t").transaction() as change:
        change.remove_properties("icesize.upsert")
    assert opened(lake).verify().findings == ()


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


def upgraded(catalog: SqlCatalog) -> Table:
    """A table with four files of rows from before its upgrade to format v3, and one of rows since."""
    table = make_table(catalog)
    run(catalog, request_on(table, [write(table, [1]), write(table, [2])]), table)
    append(catalog, [3], "a")
    append(catalog, [4], "b")
    delete_rows(catalog, small_files(catalog.load_table("db.t"), "a")[0])
    as_v3(catalog)
    return append(catalog, [5, 6, 7], "b")


@pytest.mark.parametrize("footer_of", [footer, partial(footer, compressed=True), partial(footer, padding=100_000)])
def test_tables_of_format_v3_are_valid(lake: SqlCatalog, footer_of: Callable[[list[dict[str, Any]]], bytes]) -> None:
    """An upgraded table, with merges, and with vectors that share a Puffin file whatever its footer is like."""
    table = upgraded(lake)
    assert opened(lake).verify().findings == ()
    compact(lake, "b")
    assert opened(lake).verify().findings == ()
    first, second, *_ = small_files(lake.load_table("db.t"))
    add_deletes(lake, vectors_in_puffin(table, {first: [0], second: [0]}, footer_of))
    verification = opened(lake).verify()
    assert (verification.findings, verification.delete_files) == ((), 3)


def test_a_table_without_rows_since_its_upgrade_is_valid(lake: SqlCatalog) -> None:
    """No row has an id yet, which is no contradiction."""
    make_table(lake)
    append(lake, [1])
    as_v3(lake)
    assert opened(lake).verify().findings == ()


def test_row_ids_that_files_share(lake: SqlCatalog) -> None:
    """Rows of two files have the same ids, or ids that the table gives to the next rows again."""
    table = upgraded(lake)
    # the last manifest is that of the two oldest files, which have the ids 5 and 6
    first, second, _ = small_files(table, "a")
    relist(table, lambda manifests: [*manifests[:-1], changed(manifests[-1], first_row_id=4)])
    verification = opened(lake).verify()
    assert found(verification) == {"row ids": ["its row ids from 4 on are also those of another file"]}
    assert [finding.path for finding in verification.findings] == [first.path]
    relist(table, lambda manifests: [*manifests[:-1], changed(manifests[-1], first_row_id=6)])
    verification = opened(lake).verify()
    assert found(verification) == {"row ids": ["its row ids end at 7, the next one of the table is 7"]}
    assert [finding.path for finding in verification.findings] == [second.path]


def test_row_ids_of_snapshots(lake: SqlCatalog) -> None:
    """Snapshots take ids from the table's counter, one after the other, and each of them does since the upgrade."""
    upgraded(lake)
    table = append(lake, [8])
    older = [s.manifest_list for s in table.metadata.snapshots[-2:]]

    def details(**changes: Any) -> list[str]:
        *others, last = table.metadata.snapshots
        snapshots = [*others, last.model_copy(update=changes)]
        broken = verify("t", table.metadata.model_copy(update={"snapshots": snapshots}), table.io)
        assert {finding.path for finding in broken.findings} == {older[1]}
        return found(broken)["row ids"]

    assert details(first_row_id=3) == ["its row ids from 3 on are also those of another snapshot"]
    assert details(added_rows=2) == ["its row ids end at 8, the next one of the table is 8"]
    assert details(first_row_id=None) == ["it has no first row id, although an older snapshot has one"]
    gone = verify("t", table.metadata.model_copy(update={"next_row_id": None}), table.io)
    assert found(gone) == {"row ids": ["the metadata have no 'next-row-id'"]}


def test_a_manifest_without_row_ids(lake: SqlCatalog) -> None:
    """Rows of a snapshot with row ids have some."""
    table = upgraded(lake)
    head = table.metadata.current_snapshot()
    assert head is not None
    write_list(table, head, manifests_in(head, table.io, table.metadata.specs()), version=2)
    expected = ["it has no first row id, although the snapshot has one"] * 4
    assert found(opened(lake).verify()) == {"row ids": expected}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=12))
def test_ranges_overlap_if_they_share_an_id(ranges: list[tuple[int, int]]) -> None:
    """Without the ranges that are found, no two share an id; none is found if no two do."""
    first, rows = (np.array([each[place] for each in ranges], np.int64) for place in (0, 1))
    places = set(overlapping(first, rows).tolist())

    def ids(chosen: Iterable[int]) -> list[int]:
        return [number for at in chosen for number in range(ranges[at][0], sum(ranges[at]))]

    left, every = ids(set(range(len(ranges))) - places), ids(range(len(ranges)))
    assert len(left) == len(set(left))
    assert bool(places) == (len(every) > len(set(every)))


def test_a_position_delete_file_of_format_v3(lake: SqlCatalog) -> None:
    """Delete files from before the upgrade may stay; a snapshot of format v3 may not add one."""
    table = upgraded(lake)
    file = small_files(table, "b")[0]
    add_deletes(lake, [NewDeleteFile(f"{file.path}-deletes", 1, 1, file.partition, deletes_of=file.path)])
    table = lake.load_table("db.t")
    verification, added_by = verify("t", table.metadata, table.io), table.metadata.current_snapshot_id
    assert found(verification) == {"position delete files": [f"snapshot {added_by} of format v3 added it"]}
    assert [finding.path for finding in verification.findings] == [f"{file.path}-deletes"]


def test_vectors_that_their_puffin_file_does_not_have(lake: SqlCatalog) -> None:
    """A reader of the manifest reads other bytes, or deletes other rows, than the writer meant."""
    table = upgraded(lake)
    first, _, second, third, other = small_files(table)
    vectors = vectors_in_puffin(table, {first: [0], second: [0], third: [0]})
    vectors[0] = replace(vectors[0], rows=2, content_size_bytes=9)
    vectors[1] = replace(vectors[1], content_offset=(vectors[1].content_offset or 0) + 1)
    vectors[2] = replace(vectors[2], deletes_of=other.path)
    size = vectors[0].content_size_bytes
    add_deletes(lake, vectors)
    verification = opened(lake).verify()
    actual = vectors_in_puffin(table, {first: [0]})[0].content_size_bytes
    assert found(verification) == {
        "deletion vectors": [
            f"the deletion vector of {first.path}: its 'length' is {actual}, in the manifest {size}; "
            "its 'cardinality' is 1, in the manifest 2",
            f"the deletion vector of {second.path}: none begins at byte {vectors[1].content_offset}",
            f"the deletion vector of {other.path}: its 'referenced-data-file' is "
            f"{plain_path(third.path)}, in the manifest {plain_path(other.path)}",
        ]
    }
    assert {finding.path for finding in verification.findings} == {vectors[0].path}
    assert not verification.is_valid


def test_two_vectors_of_one_file(lake: SqlCatalog) -> None:
    """A reader finds one of them, and shows rows that the other one deletes; one listed twice is found, too."""
    table = upgraded(lake)
    file = small_files(table, "b")[0]
    one, other = (vectors_in_puffin(table, {file: [0]})[0] for _ in range(2))
    add_deletes(lake, [one, other])
    assert found(opened(lake).verify()) == {"deletion vectors": ["it has 2 deletion vectors"]}
    add_deletes(lake, [one])
    assert found(opened(lake).verify()) == {
        "listed twice": ["the table lists it 2 times"], "deletion vectors": ["it has 3 deletion vectors"],
    }  # fmt: skip


def test_vectors_of_another_partition_and_of_no_file(lake: SqlCatalog) -> None:
    """A vector has the partition of its data file; one whose data file is gone is harmless."""
    table = upgraded(lake)
    file = small_files(table, "b")[0]
    add_deletes(lake, [replace(each, partition=A) for each in vectors_in_puffin(table, {file: [0]})])
    expected = ["it is in partition a of spec 0, its data file in b of 0"]
    assert found(opened(lake).verify()) == {"deletes of another partition": expected}
    compact(lake, "a")
    gone = small_files(table, "a")[0]
    add_deletes(lake, vectors_in_puffin(table, {gone: [0]}))
    assert found(opened(lake).verify())["dangling deletes"] == ["it applies to no live data file"]


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (None, "it is not there"),
        (b"", "its footer is damaged (ValueError)"),
        (b"PFA1" + bytes(12), "its footer is damaged (ValueError)"),
        (b"PFA1" + b"\xff\xff\xff\x7f" + bytes(4) + b"PFA1", "its footer is damaged (ValueError)"),
        (footer([])[4:], "its footer is damaged (ValueError)"),
        (footer([{"type": "deletion-vector-v1"}]), "its footer is damaged (KeyError)"),
        (b"PFA1" + b"?" + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"PFA1", "its footer is damaged (JSONDecodeError)"),
        (b"PFA1" + b"?" + bytes([1, 0, 0, 0, 1, 0, 0, 0]) + b"PFA1", "its footer is damaged (ValueError)"),
    ],
)
def test_puffin_files_that_cannot_be_read(lake: SqlCatalog, data: bytes | None, detail: str) -> None:
    """A missing or damaged Puffin file is a finding for itself; the other files are verified nevertheless."""
    table = upgraded(lake)
    (vector,) = vectors_in_puffin(table, {small_files(table, "b")[0]: [0]})
    add_deletes(lake, [vector])
    path = local(vector.path)
    path.unlink() if data is None else path.write_bytes(data)
    assert found(opened(lake).verify())["deletion vectors"] == [detail]


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
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["severity"], finding["is_error"], bool(finding["advice"])) == ("error", True, True)
    assert (json.loads(done.stdout)["snapshots"], json.loads(done.stdout)["stored_files"]) == (1, 3)
