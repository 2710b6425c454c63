"""Tests of the model of the rivals' benchmark: expected rows, and descriptions of failures."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rival_jobs import taker
from benchmarks.rival_model import (
    FIRST_INSERTED,
    INSERTED_V,
    KINDS,
    Attempt,
    Chooser,
    Differences,
    Statement,
    by_label,
    compare,
    expected_rows,
    failures,
    paths_in,
    reason_of,
    row_of,
)
from benchmarks.rival_report import RACE, counted, merges
from icesize.report import Report
from tests.support.tables import append, compact, live_paths, make_table, sqlite_catalog

PARTITIONS = 3
ERROR = """An error occurred while calling o55.sql.
: org.apache.spark.SparkException: Writing job aborted
\tat org.apache.spark.sql.Some.method(Some.java:1)
Caused by: org.apache.iceberg.exceptions.ValidationException: Missing required files to delete: \
file:///w/db/t/data/part=h1/a-1.parquet,file:/w/db/t/data/part=h1/b.parquet
\tat org.apache.iceberg.exceptions.ValidationException.check(ValidationException.java:49)
"""


def test_statements_do_what_their_sql_says() -> None:
    """UPDATE adds 1, MERGE adds 10 and inserts, DELETE removes; other rows stay."""
    landed = [
        Statement("UPDATE", "copy-on-write", "h1", (1, 4)),
        Statement("MERGE", "merge-on-read", "h1", (4,), (FIRST_INSERTED,)),
        Statement("DELETE", "merge-on-read", "h0", (0, 3)),
    ]
    rows = expected_rows(6, PARTITIONS, landed)
    assert {i: row[2] for i, row in rows.items()} == {1: 1, 2: 0, 4: 1 + INSERTED_V, 5: 0, FIRST_INSERTED: INSERTED_V}
    assert rows[1] == (1, "h1", 1, "356a192b7913b04c54574d18c28d46e6395428ab")


@given(st.integers(0, 2**32), st.integers(1, 5), st.lists(st.sampled_from(KINDS), max_size=12))
def test_chosen_statements_touch_live_rows_of_one_partition(seed: int, partitions: int, kinds: list[str]) -> None:
    """After any committed statements, the model can apply the next one, and no id is inserted twice."""
    chooser = Chooser(partitions, partitions, random.Random(seed))
    landed: list[Statement] = []
    inserted: list[int] = []
    for n, kind in enumerate(kinds):
        rows = expected_rows(1500, partitions, landed)
        statement = chooser.choose(kind, "copy-on-write", 1500)
        assert {rows[i][1] for i in statement.ids} == {statement.part}
        assert {row_of(i, partitions)[1] for i in statement.inserted} <= {statement.part}
        assert bool(statement.inserted) == (kind == "MERGE")
        inserted += statement.inserted
        if n % 3 != 2:
            chooser.landed(statement)
            landed.append(statement)
    assert len(inserted) == len(set(inserted))


def test_a_partition_without_rows_is_told() -> None:
    """A choice from a table without rows is an error, not an empty statement."""
    with pytest.raises(ValueError, match="partition h0: it has none"):
        Chooser(1, 1, random.Random(1)).choose("UPDATE", "copy-on-write", 0)


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_each_difference_has_its_name(missing: set[int], twice: set[int], altered: set[int]) -> None:
    """Missing, doubled, unknown and changed rows are reported as such; equal rows have no differences."""
    expected = {i: row_of(i, PARTITIONS) for i in range(31)}
    found = [row_of(i, PARTITIONS, int(i in altered)) for i in range(31) if i not in missing]
    found += [row_of(i, PARTITIONS, int(i in altered)) for i in twice - missing]
    differences = compare(expected, found)
    assert set(differences.lost) == missing
    assert set(differences.duplicated) == twice - missing
    assert set(differences.changed) == altered - missing
    assert differences.any == bool(missing or twice or altered)
    assert compare({}, [row_of(7, PARTITIONS)]) == Differences(resurrected=(7,))
    assert compare(expected, expected.values()) == Differences()


def test_reasons_are_the_same_for_the_same_cause() -> None:
    """A reason is Iceberg's own sentence without names of files; paths are plain, in all spellings of their scheme."""
    assert reason_of(ERROR) == "ValidationException: Missing required files to delete: FILE,FILE"
    assert paths_in(ERROR) == ("/w/db/t/data/part=h1/a-1.parquet", "/w/db/t/data/part=h1/b.parquet")
    traceback = (
        "Return Message: Traceback (most recent call last):\n  File x\nicesize.errors.TableError: gone\n\n\tat y"
    )
    assert reason_of(traceback) == "icesize.errors.TableError: gone"
    assert reason_of("") == "no message"
    assert reason_of("[PARSE] wrong\nmore") == "[PARSE] wrong"
    assert reason_of("x.Y: Cannot find snapshot 123456789") == "x.Y: Cannot find snapshot N"


def test_attempts_are_counted_by_kind() -> None:
    """Successes are counted by kind with their share, failures by kind, culprit and reason."""
    attempts = [Attempt("UPDATE", 1.0), Attempt("UPDATE", 2.0, True, "gone", "icesize"), Attempt("DELETE", 1.0)]
    assert by_label(attempts) == {"DELETE": "1 of 1 (100.0 %)", "UPDATE": "1 of 2 (50.0 %)"}
    assert failures(attempts) == {"UPDATE, icesize: gone": 1}
    result = counted(attempts)
    assert (result["tried"], result["ok"], result["lost_to"]) == (3, 2, {"icesize": 1})
    assert (result["known_tried"], result["known_ok"], result["known_lost_to"]) == (1, 0, {"icesize": 1})


def test_statements_touch_no_more_partitions_than_they_may() -> None:
    """Statements on two of three partitions leave the third unchanged."""
    chooser = Chooser(PARTITIONS, 2, random.Random(5))
    assert {chooser.choose("UPDATE", "copy-on-write", 600).part for _ in range(50)} == {"h0", "h1"}


def test_merges_are_counted_by_what_became_of_them() -> None:
    """A merge that lost a race counts as rewritten for a rebase; one whose files another writer changed does not."""
    reports = [
        Report(files_removed=3),
        Report(conflicts=(f"merge of 2 files dropped: {RACE}",), skipped={"CONTESTED": 4}),
        Report(files_removed=2, conflicts=("merge of 3 files dropped: another writer removed a file of it",)),
        Report(
            notes=("part=h1: 4 small files are ineligible (CONTESTED 4)", "part=h2: 5 small files are ineligible (A 5)")
        ),
    ]
    result = merges([report.to_dict() for report in reports])
    assert (result["tried"], result["landed"], result["files_removed"]) == (3, 2, 5)
    assert result["conflicts"] == {RACE: 1, "another writer removed a file of it": 1}
    assert (result["rewritten_for_a_rebase"], result["contested"]) == (1, 1)
    assert result["notes"] == {"N small files are ineligible (...)": 2}


def test_who_took_a_file_is_told_by_its_snapshot(tmp_path: Path) -> None:
    """The remover of a file is icesize's merge, another writer, or none."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    for number in (1, 2):
        table = append(catalog, [number])
    known = {s.snapshot_id for s in table.metadata.snapshots}
    old = [path.removeprefix("file://") for path in live_paths(table)]
    table = compact(catalog)
    (merged,) = (path.removeprefix("file://") for path in live_paths(table))
    assert taker(table, known, old) == "icesize"
    assert taker(table, known, [merged]) == "nobody"
    assert taker(table, {s.snapshot_id for s in table.metadata.snapshots}, old) == "nobody"
    table.delete("id = 1")
    assert taker(catalog.load_table("db.t"), known, [merged]) == "others"
    catalog.close()
