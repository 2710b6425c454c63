"""The command line of clustering on a real catalog; no Spark."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from icesize import failpoints
from icesize.cli.main import main
from tests.support import tables
from tests.support.command_line import Run
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import check, compact, ids_of, live_paths, make_table, operations, request_on, write

KINDS, FILES, ROWS = "ab", 6, 400
SIZES = ("--policy", "target-file-size-bytes=4000", "--policy", "small-file-limit-bytes=1500")


def fill(catalog: Catalog, files: int = FILES) -> list[int]:
    """Files of random ids in two partitions; all ids."""
    table, chance = catalog.load_table("db.t"), random.Random(files)
    written = [write(table, chance.sample(range(10**6), ROWS), kind) for kind in KINDS * files]
    tables.run(catalog, request_on(table, written), table)
    return ids_of(catalog)


@pytest.fixture
def ids(lake: SqlCatalog) -> list[int]:
    """A table of twelve files; its ids."""
    make_table(lake)
    return fill(lake)


def test_the_first_run_lays_out_and_the_second_has_nothing_to_do(lake: SqlCatalog, ids: list[int], run: Run) -> None:
    """Plan, snapshot, what queries open before and after; then the columns are known and all is in order."""
    first = run("cluster", "--by", "id", *SIZES)
    assert first.exit_code == 0, first.output
    table = lake.load_table("db.t")
    check(table)
    assert ids_of(lake) == ids
    plan_line, foreseen, snapshot_line, written_line, opened_line, remembered = first.stdout.splitlines()
    stored = "icesize.cluster.by=id, icesize.cluster.field-ids=1:id, sort order (id ASC NULLS FIRST)"
    assert remembered == f"! stored in the table: {stored}; `icesize cluster TABLE --forget` removes them"
    assert plan_line.startswith("cluster (sort by id): 2 partitions, 12 -> ")
    assert foreseen.startswith("  id: a query for one value opens ")
    assert "; after clustering, about 2.0" in foreseen
    files = len(live_paths(table))
    assert snapshot_line == f"snapshot {table.metadata.current_snapshot_id} replace  -12 +{files} files, rows unchanged"
    assert " written in " in written_line
    assert opened_line.startswith("  id: a query for one value opens 2.0 files (")
    assert "; before, a query for one value opens " in opened_line
    second = run("cluster", *SIZES)
    assert second.exit_code == 0
    plan_line, now = second.stdout.splitlines()
    assert plan_line == f"cluster (sort by id): nothing to cluster in {files} files"
    assert now.startswith("  id: a query for one value opens 2.0 files (")
    assert operations(lake.load_table("db.t")) == ["append", "replace"]


def test_json_has_only_the_report_on_stdout(ids: list[int], run: Run) -> None:
    """The report's keys are those of the API, under `clustering` what queries open; nothing else is printed."""
    result = run("cluster", "--by", "id, ts", "--strategy", "hilbert", "--json", *SIZES)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert (report["table"], report["operations"], report["files_removed"]) == ("lake.db.t", ["replace"], 12)
    clustering = report["clustering"]
    assert list(clustering) == ["columns", "strategy", "before", "after", "new_bytes", "amplification"]
    assert (clustering["columns"], clustering["strategy"]) == (["id", "ts"], "hilbert")
    keys = ["point_files", "point_bytes", "most_files", "range_files", "range_bytes"]
    for column in ("id", "ts"):
        before, after = (clustering[when][column] for when in ("before", "after"))
        assert list(before) == list(after) == keys
        assert after["point_files"] < before["point_files"]
    assert 0.5 < clustering["amplification"] <= 1.1
    again = json.loads(run("cluster", "--json", *SIZES).stdout)
    assert (again["snapshot_ids"], again["files_removed"]) == ([], 0)
    assert again["clustering"]["before"] == again["clustering"]["after"] == clustering["after"]


def test_plan_shows_merges_and_clustering(lake: SqlCatalog, ids: list[int], run: Run) -> None:
    """`plan` says both, changes nothing, and --json has the clustering beside the merges; null where none is wanted."""
    assert json.loads(run("plan", "--json", *SIZES).stdout)["cluster_plan"] is None
    assert "cluster" not in run("plan", *SIZES).stdout
    # a budget of nothing only has the columns remembered
    remembered = run("cluster", "--by", "id", "--budget-bytes", "0", *SIZES)
    assert remembered.exit_code == 0
    before = lake.load_table("db.t").metadata_location
    shown = run("plan", *SIZES)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("plan: ")
    (head,) = [number for number, line in enumerate(lines) if line.startswith("cluster (sort by id): 2 partitions")]
    assert " and 1 more merge  " in lines[head + 1]
    planned = json.loads(run("plan", "--json", *SIZES).stdout)
    assert {"snapshot_id", "groups", "skipped", "notes"} <= planned.keys()
    clustering = planned["cluster_plan"]
    assert {group["partition"]: group["files"] for group in clustering["groups"]} == {"kind=a": 6, "kind=b": 6}
    assert clustering["clustering"].keys() == {
        "strategy", "columns", "full", "before", "expected_point_files", "new_bytes", "amplification",
    }  # fmt: skip
    assert (clustering["clustering"]["columns"], clustering["clustering"]["full"]) == (["id"], [False, False])
    assert lake.load_table("db.t").metadata_location == before


def test_a_budget_and_a_filter_choose_partitions(lake: SqlCatalog, ids: list[int], run: Run) -> None:
    """What does not fit is told and left for later; partitions that the filter does not name stay."""
    half = run("cluster", "--by", "id", "--budget-bytes", "35000", *SIZES)
    assert half.exit_code == 0, half.output
    assert half.stdout.startswith("cluster (sort by id): 1 partition, 6 -> ")
    assert "! a budget of 34.2 KiB is too small to cluster 1 partition" in half.stdout
    assert half.stdout.count("is too small to cluster") == 1
    other = run("cluster", "--where", "kind = 'c'", *SIZES)
    assert other.exit_code == 0
    assert "nothing to cluster" in other.stdout
    rest = run("cluster", "--json", *SIZES)
    assert json.loads(rest.stdout)["partitions_touched"] == 1
    assert ids_of(lake) == ids


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--by", "id", "--strategy", "z-order"), 2, "Invalid value for '--strategy'"),
        (("--by", "id", "--budget-bytes", "-1"), 2, "Invalid value for '--budget-bytes'"),
        (("--by", "id", "--forget"), 2, "--forget goes without --by, --strategy, --where and --budget-bytes"),
        (("--by", "idd"), 1, "icesize: Cannot cluster 'lake.db.t' by 'idd': the table has no such column, the nearest"),
        (("--by", "id,id"), 1, "icesize: Cannot cluster 'lake.db.t' by 'id': it is named twice"),
        (("--by", " "), 1, "icesize: Cannot cluster 'lake.db.t': no column is named"),
        (("--by", "kind"), 1, "icesize: Cannot cluster 'lake.db.t' by 'kind': partition columns are equal in all rows"),
        ((), 1, "icesize: Cannot cluster 'lake.db.t': neither the argument 'by' nor the table's property"),
    ],
)
def test_what_cannot_be_done_is_told(
    lake: SqlCatalog, ids: list[int], run: Run, options: tuple[str, ...], code: int, message: str
) -> None:
    """Wrong usage is 2, a table that it cannot be done to is 1 with one line; nothing is changed or remembered."""
    before = lake.load_table("db.t").metadata_location
    result = run("cluster", *options, *SIZES)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    assert lake.load_table("db.t").metadata_location == before


def test_a_clustering_that_others_undo_ends_with_1(lake: SqlCatalog, ids: list[int], run: Run) -> None:
    """Nothing was committed although there was something to do: exit code 1, and why."""

    def rivals() -> None:
        if operations(lake.load_table("db.t")) == ["append"]:
            for kind in KINDS:
                compact(lake, kind)

    with failpoints.armed("files-written", rivals):
        result = run("cluster", "--by", "id", *SIZES)
    assert result.exit_code == 1
    assert "nothing was committed" in result.stdout
    assert result.stdout.count("! merge of 6 files dropped: another writer removed a file of it") == 2
    assert ids_of(lake) == ids


def test_an_unknown_outcome_ends_with_3(mini: MiniRest) -> None:
    """The catalog stays away after it was asked: exit code 3, one line with the run to look for."""
    catalog = mini.catalog("lake")
    make_table(catalog, properties={"icesize.cluster.by": "id"})
    fill(catalog)

    def go_away() -> None:
        # what the first swap stores are columns and order; the second one is the clustering
        mini.fail_next_commit(*[Fault(503)] * 30)

    command = ["cluster", "lake.db.t", "--catalog-uri", mini.uri, "--policy", "commit-deadline-ms=1", *SIZES]
    with failpoints.armed("files-written", go_away):
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("icesize: Commit state unknown: ")
    assert "icesize.run-id=" in result.stderr


def test_maintain_clusters_and_shows_it(lake: SqlCatalog, run: Run) -> None:
    """A pass over a table that is to be clustered prints the snapshot and what queries open; the next has none."""
    properties = {
        "icesize.cluster.by": "id",
        "write.target-file-size-bytes": "4000",
        "icesize.policy.small-file-limit-bytes": "1500",
    }
    make_table(lake, properties=properties)
    ids = fill(lake)
    first = run("maintain")
    assert first.exit_code == 0, first.output
    assert "no merge of small files is due" in first.stdout
    assert " replace  -12 +" in first.stdout
    assert "  id: a query for one value opens 2.0 files (" in first.stdout
    assert ids_of(lake) == ids
    fill(lake, 3)
    report = json.loads(run("maintain", "--json").stdout)
    (clustering,) = report["clusterings"]
    assert clustering["clustering"]["columns"] == ["id"]
    assert report["failed"] == {}
    assert json.loads(run("maintain", "--json").stdout)["clusterings"] == []
    check(lake.load_table("db.t"))


def test_what_moves_nothing_says_why_and_what_it_remembers(lake: SqlCatalog, run: Run) -> None:
    """Small partitions: a dry run changes nothing, the command itself the table and no file; --forget removes them."""
    make_table(lake)
    fill(lake, 1)
    before = lake.load_table("db.t").metadata_location
    nothing = "! nothing moves: 2 partitions of one file"
    for extra in ((), ("--strategy", "zorder")):
        dry = run("plan", "--by", "id,ts", *extra, *SIZES)
        assert (dry.exit_code, lake.load_table("db.t").metadata_location) == (0, before)
        assert "nothing to cluster in 2 files" in dry.stdout
        assert dry.stdout.splitlines()[-1] == nothing
    done = run("cluster", "--by", "id", *SIZES).stdout.splitlines()
    assert done[-2] == nothing
    assert done[-1].startswith(
        "! stored in the table: icesize.cluster.by=id, icesize.cluster.field-ids=1:id, sort order"
    )
    remembered = lake.load_table("db.t").metadata_location
    would = run("cluster", "--forget", "--dry-run")
    assert lake.load_table("db.t").metadata_location == remembered
    forgotten = run("cluster", "--forget")
    assert would.stdout == forgotten.stdout.replace("forgot", "would forget").replace("removed", "would remove")
    assert forgotten.exit_code == 0
    line, note = forgotten.stdout.splitlines()
    assert line == (
        "forgot the clustering of lake.db.t: removed icesize.cluster.by=id, icesize.cluster.field-ids=1:id, "
        "sort order (id ASC NULLS FIRST)"
    )
    assert note.startswith("! keep the columns it was sorted by (id): ")
    table = lake.load_table("db.t")
    assert (table.sort_order().is_unsorted, "icesize.cluster.by" in table.properties) == (True, False)
    again = run("cluster", "--forget")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "Cannot forget the clustering of 'db.t'" in again.stderr
    run("cluster", "--by", "id", "--strategy", "zorder", *SIZES)
    told = json.loads(run("cluster", "--forget", "--json").stdout)
    assert (told["removed"][0], told["notes"]) == ("icesize.cluster.by=id", [])
    assert operations(table) == ["append"]


def test_plans_by_other_columns_change_nothing(lake: SqlCatalog, ids: list[int], run: Run) -> None:
    """`plan --by` is the dry run of `cluster --by`; what cannot be done is told as there."""
    before = lake.load_table("db.t").metadata_location
    shown = run("plan", "--by", "id, ts", "--strategy", "hilbert", *SIZES)
    assert "cluster (hilbert by id, ts): 2 partitions, 12 -> " in shown.stdout
    planned = json.loads(run("plan", "--by", "ts", "--json", *SIZES).stdout)["cluster_plan"]
    assert (planned["clustering"]["columns"], planned["clustering"]["strategy"]) == (["ts"], "sort")
    assert lake.load_table("db.t").metadata_location == before
    alone = run("plan", "--strategy", "sort", *SIZES)
    assert (alone.exit_code, "--strategy needs --by" in alone.stderr) == (2, True)
    wrong = run("plan", "--by", "idd", *SIZES)
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "Cannot cluster 'lake.db.t' by 'idd': the table has no such column" in wrong.stderr
