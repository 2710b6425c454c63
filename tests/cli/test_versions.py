"""The commands that keep, restore and remove versions, on a real catalog; no Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table

import icesize
from icesize.sized_table import SizedTable
from tests.support.command_line import Run, catalog_uri, on_a_terminal
from tests.support.tables import append, compact, data_files_on_disk, ids_of, local, make_table, sqlite_catalog, write

THREE_DAYS_S = 3 * 86_400


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Batches 1 and 2 into partition `a`, their merge, and a batch into `b`."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    append(catalog, [1], batch=0)
    append(catalog, [2], batch=1)
    compact(catalog)
    return append(catalog, [10], "b", batch=2)


@pytest.fixture
def sized(table: Table, tmp_path: Path) -> SizedTable:
    """The same, opened."""
    return icesize.open(None, "lake.db.t", catalog=sqlite_catalog(tmp_path))


def test_versions_are_listed_newest_first(sized: SizedTable, run: Run) -> None:
    """One line per version with its snapshot, what made it, and what is in it."""
    result = run("versions", "--partition", "kind=a")
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert " ".join(head.split()) == "partition snapshot time (UTC) operation files size rows written by"
    found = sized.versions({"kind": "a"})
    assert [line.split()[1] for line in lines] == [str(v.snapshot_id) for v in found]
    assert [line.split()[4] for line in lines] == ["replace", "append", "append"]
    assert [v.files for v in found] == [1, 2, 1]
    assert [v.rows for v in found] == [2, 2, 1]
    assert "s batch 1" in lines[1]
    everything = json.loads(run("versions", "--json").stdout)
    assert everything == [v.to_dict() for v in sized.versions()]
    assert [v["label"] for v in everything] == ["kind=b", "kind=a", "kind=a", "kind=a"]


def test_a_partition_that_never_was_is_named(table: Table, run: Run) -> None:
    """The error tells the nearest partition, or the fields that there are."""
    result = run("versions", "--partition", "kind=c")
    assert result.exit_code == 2
    assert "kind=c" in result.stderr
    assert run("versions", "--partition", "sort=a").exit_code == 2
    without = run("versions", "--partition", "kind")
    assert (without.exit_code, "Cannot find partition kind: expected FIELD=VALUE" in without.stderr) == (2, True)


TEXTS = (None, "null", '"null"', "", " ", "a/b", "a/kind=b", "a=b,c", 'say "ü"', "\n")


def test_what_inspect_prints_names_a_partition(tmp_path: Path, run: Run) -> None:
    """Each label is accepted by the command line, each label and mapping by Python: NULL and all texts come back."""
    catalog = sqlite_catalog(tmp_path)
    table = make_table(catalog)
    rows = [{"id": number, "kind": text} for number, text in enumerate(TEXTS)]
    for number in range(len(TEXTS) + 1):  # at least two files in each, and not as many as in another: none share a line
        table.append(pa.Table.from_pylist(rows[max(0, number - 1) :], schema=table.schema().as_arrow()))
    told = run("inspect").stdout
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    found = {text: sized.versions({"kind": text})[0] for text in TEXTS}
    assert {text: version.partition["kind"] for text, version in found.items()} == {text: text for text in TEXTS}
    assert len({version.label for version in found.values()}) == len(TEXTS)
    for text, version in found.items():
        assert f"\n  {version.label} " in told
        assert sized.versions(version.label) == sized.versions({"kind": text})
        listed = json.loads(run("versions", "--partition", version.label, "--limit", "1", "--json").stdout)
        assert listed == [version.to_dict()]


def test_null_and_the_text_null_are_two_partitions(tmp_path: Path, run: Run) -> None:
    """`restore` changes the one that is named, by Python and by the command line."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    append(catalog, [1], None)
    append(catalog, [2], "null")
    version = catalog.load_table("db.t").metadata.current_snapshot_id
    append(catalog, [3], None)
    append(catalog, [4], "null")
    icesize.open(None, "lake.db.t", catalog=catalog).restore({"kind": None}, version)
    assert ids_of(catalog) == [1, 2, 4]
    restored = run("restore", "--partition", 'kind="null"', "--snapshot", str(version), "--yes")
    assert (restored.exit_code, ids_of(catalog)) == (0, [1, 2]), restored.output


def test_restore_asks_first(sized: SizedTable, tmp_path: Path) -> None:
    """No answer, no restore; the question says what it means for streaming readers."""
    first = str(sized.versions({"kind": "a"})[-1].snapshot_id)
    options = ["--catalog-uri", catalog_uri(tmp_path), "--partition", "kind=a", "--snapshot", first]
    code, said = on_a_terminal(["restore", "lake.db.t", *options], "n\n")
    assert code == 1
    assert f"to snapshot {first}, 2 -> 1 row? Streaming readers of this table will stop at the" in said
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 2, 10]


def test_restore_with_yes_makes_the_partition_what_it_was(sized: SizedTable, run: Run, tmp_path: Path) -> None:
    """One overwrite; the other partition stays, and the report names the stream whose rows are gone."""
    first = str(sized.versions({"kind": "a"})[-1].snapshot_id)
    result = run("restore", "--partition", "kind=a", "--snapshot", first, "--yes")
    assert result.exit_code == 0, result.output
    head = sqlite_catalog(tmp_path).load_table("db.t").metadata.current_snapshot_id
    assert result.stdout.splitlines()[0] == f"snapshot {head} overwrite  -1 +1 file, 2 -> 1 row"
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 10]
    assert "'s'" in result.stdout


def test_a_dry_run_of_a_restore_asks_and_changes_nothing(sized: SizedTable, run: Run, tmp_path: Path) -> None:
    """It tells files and rows, before and after; as JSON under their keys."""
    first = str(sized.versions({"kind": "a"})[-1].snapshot_id)
    result = run("restore", "--partition", "kind=a", "--snapshot", first, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "would be committed: -1 +1 file, 2 -> 1 row"
    told = json.loads(run("restore", "--partition", "kind=a", "--snapshot", first, "--dry-run", "--json").stdout)
    assert (told["rows_before"], told["rows_after"], told["snapshot_ids"]) == (2, 1, [])
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 2, 10]


@pytest.mark.parametrize("snapshot", ["12345", "-1"])
def test_restore_of_an_unknown_snapshot_is_refused(table: Table, run: Run, snapshot: str, tmp_path: Path) -> None:
    """Expired or foreign ids change nothing."""
    result = run("restore", "--partition", "kind=a", "--snapshot", snapshot, "--yes")
    assert result.exit_code == 1
    assert snapshot in result.stderr
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 2, 10]


def test_expire_snapshots_shows_what_goes_and_why_others_stay(table: Table, run: Run) -> None:
    """A dry run and the real one tell the same numbers; --json prints the API's keys."""
    told = run("expire-snapshots", "--keep-versions", "1", "--older-than", "0d", "--dry-run")
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0] == "would expire 3 of 4 snapshots"
    assert "kept: head of branch 'main'" in told.stdout
    kept = [int(line.split()[0]) for line in told.stdout.splitlines() if " kept: " in line]
    assert sum(kept) == 1
    done = json.loads(run("expire-snapshots", "--keep-versions", "1", "--older-than", "0d", "--json").stdout)
    assert (len(done["snapshot_ids_expired"]), done["dry_run"]) == (3, False)
    assert done["files_deleted"]["data_files"] == 2
    assert len(data_files_on_disk(table)) == 2


def test_young_snapshots_stay_whatever_versions_are_asked_for(table: Table, run: Run) -> None:
    """Each is counted once, though several rules keep it."""
    told = run("expire-snapshots", "--keep-versions", "1")
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0] == "expired 0 of 4 snapshots"
    assert lines[1:3] == [
        "  3 kept: on branch 'main' and younger than 5 days",
        "  1 kept: head of branch 'main'",
    ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--older-than", "5 parsecs"), 2, "'5 parsecs' is not an age such as 3d, 12h or 30m, or a time such as"),
        (("--older-than", "2100-01-01"), 2, "must not lie in the future"),
        (("--keep-versions", "0"), 2, "'keep-versions' (0) must be >= 1"),
        (("--reader", "/no/such/checkpoint"), 1, "/no/such/checkpoint"),
    ],
)
def test_senseless_rules_are_told(
    table: Table, run: Run, options: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    """A clear sentence, and nothing expires."""
    result = run("expire-snapshots", *options)
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (code, True), result.output
    assert len(sqlite_catalog(tmp_path).load_table("db.t").metadata.snapshots) == 4


def test_orphans_are_shown_before_they_are_deleted(table: Table, run: Run) -> None:
    """Without --delete nothing goes; a file younger than a day cannot be asked for."""
    orphan = local(write(table, [99]).path)
    old_s = orphan.stat().st_mtime - THREE_DAYS_S - 3_600
    os.utime(orphan, (old_s, old_s))
    told = run("remove-orphan-files")
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0].startswith("1 orphan file, ")
    assert told.stdout.splitlines()[0].endswith("delete with `icesize remove-orphan-files TABLE --delete`")
    assert orphan.exists()
    refused = run("remove-orphan-files", "--older-than", "1h", "--delete")
    assert refused.exit_code == 2
    assert "must be >= 24 h" in refused.stderr
    done = json.loads(run("remove-orphan-files", "--delete", "--json").stdout)
    assert (done["files_deleted"], orphan.exists()) == (1, False)


def test_a_location_is_trusted_on_request(table: Table, run: Run, tmp_path: Path) -> None:
    """A table that cannot be read may have files here: what another writer left stays, and the page says why."""
    left = local(table.location()) / "data" / "left.parquet"
    left.write_bytes(b"left")
    os.utime(left, (0, 0))
    other = sqlite_catalog(tmp_path).create_table("db.other", table.schema())
    local(other.metadata_location).unlink()
    said = run("remove-orphan-files", "--delete")
    assert (said.exit_code, left.exists()) == (0, True)
    assert "1 table cannot be read, the first is db.other: " in " ".join(said.stdout.split())
    done = json.loads(run("remove-orphan-files", "--delete", "--trust-location", "--json").stdout)
    assert (done["files_deleted"], left.exists()) == (1, False)


def test_manifests_are_rewritten_once(table: Table, run: Run, tmp_path: Path) -> None:
    """Two manifests become one; a second call has nothing to do."""
    first = json.loads(run("rewrite-manifests", "--json").stdout)
    assert (first["manifests_before"], first["manifests_after"]) == (2, 1)
    assert run("rewrite-manifests").stdout.startswith("nothing to do in lake.db.t")
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 2, 10]


def test_maintain_does_all_in_one_pass(table: Table, run: Run, tmp_path: Path) -> None:
    """Merges, manifests, expiry and a dry run of orphan cleanup; a second pass finds nothing to do."""
    append(sqlite_catalog(tmp_path), [3], batch=3)
    done = json.loads(run("maintain", "--policy", "max-small-files=1", "--json").stdout)
    assert [merge["files_removed"] for merge in done["merges"]] == [2]
    assert (done["failed"], done["not_started"], done["orphans"]["dry_run"]) == ({}, [], True)
    assert ids_of(sqlite_catalog(tmp_path)) == [1, 2, 3, 10]
    again = run("maintain")
    assert again.exit_code == 0
    assert again.stdout.splitlines()[:2] == ["small files", "no merge of small files is due"]


def test_maintain_tells_what_failed(table: Table, run: Run, tmp_path: Path) -> None:
    """A step that fails makes exit code 1; the others ran."""
    with table.transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    sqlite_catalog(tmp_path).create_table("db.other", table.schema(), location=table.location())
    result = run("maintain")
    assert result.exit_code == 1
    assert "! expiry failed: Cannot delete files of 'lake.db.t': 'db.other' has the same location" in result.stdout
    assert "! 1 metadata file of another table" in result.stdout


def test_maintain_leaves_out_what_the_table_forbids(table: Table, run: Run) -> None:
    """`gc.enabled=false` is no failure: nothing is deleted, the rest is done."""
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    result = run("maintain")
    assert result.exit_code == 0
    assert "! expiry left out: Cannot delete files" in result.stdout
    assert "! orphans left out: Cannot delete files" in result.stdout


def test_maintain_within_no_time_leaves_everything(table: Table, run: Run) -> None:
    """What there was no budget for is named."""
    result = run("maintain", "--budget-seconds", "0")
    assert result.exit_code == 0
    steps = "merges, rewritten_deletes, deletes, manifests, expiry, orphans"
    assert f"no budget left for: {steps}; the next pass resumes" in result.stdout
