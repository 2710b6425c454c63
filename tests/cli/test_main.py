"""The command line on real catalogs, filled by PyIceberg; no Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.table import Table

import icesize
from icesize import failpoints
from icesize.cli.main import main
from icesize.environment import Environment, WorkLimits
from icesize.errors import CommitConflict, CommitStateUnknown, EngineUnavailable
from icesize.maintenance.verify.checkup import Check
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.merge import merge
from icesize.planning.plan import MergeTask
from icesize.sized_table import SizedTable
from icesize.spark.engine import launch
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.records.ledger import LedgerEntry
from tests.support import tables
from tests.support.command_line import Run
from tests.support.row_deletes import delete_rows

KINDS = ("a", "b", "c")
FILES = 8


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Eight appends of three kinds, partitioned by kind: 24 small files, 240 rows."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path))
    for i in range(FILES):
        firsts = {kind: 30 * i + 10 * j for j, kind in enumerate(KINDS)}
        made.append(pa.concat_tables(tables.arrow(range(first, first + 10), kind) for kind, first in firsts.items()))
    return made


def reloaded(tmp_path: Path) -> Table:
    return tables.sqlite_catalog(tmp_path).load_table("db.t")


def python(*arguments: str) -> Sequence[str]:
    return [sys.executable, *arguments]


def test_inspect_shows_totals_bars_and_the_worst_partitions(table: Table, run: Run) -> None:
    """inspect prints totals, a bar for small files, the worst partitions and the advice to compact."""
    result = run("inspect")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("lake.db.t  snapshot ")
    assert lines[1].startswith("3 partitions  24 files  ")
    assert lines[1].endswith("  240 rows")
    assert lines[2].startswith("small files (< 384 MiB)  24 ")
    assert any(line.startswith("  kind=a and 2 more partitions  8 small files of 8 each, ") for line in lines)
    assert lines[-1] == (
        "! 3 partitions with more than 6 mergeable small files: `icesize compact` would merge 24 files into 3"
    )
    assert "\x1b" not in result.stdout


def test_inspect_and_plan_print_the_dictionaries_of_the_api(table: Table, run: Run, tmp_path: Path) -> None:
    """--json prints exactly what the API's to_dict gives, and nothing else on standard output."""
    sized = icesize.open(None, "lake.db.t", catalog=tables.sqlite_catalog(tmp_path))
    as_api = json.loads(json.dumps(sized.inspect().to_dict()))
    assert json.loads(run("inspect", "--json").stdout) == as_api
    plan = json.loads(run("plan", "--json").stdout)
    assert plan == {**sized.plan().to_dict(), "cluster_plan": None}
    assert {(g["partition"], g["files"], g["outputs"]) for g in plan["groups"]} == {(f"kind={k}", 8, 1) for k in KINDS}
    assert {path for g in plan["groups"] for path in g["input_files"]} == set(tables.live_paths(reloaded(tmp_path)))


def test_inspect_tells_what_scans_cost_at_a_price(table: Table, run: Run) -> None:
    """Files opened and requests now and after a compaction; a local table has a price only as an option."""
    lines = run("inspect").stdout.splitlines()
    assert [line for line in lines if "requests" in line] == [
        "a full scan opens 24 files, takes 9 ms to plan, sends 57 requests",
        "  after a compaction 3 files, takes 1 ms to plan, sends 8 requests",
    ]
    assert "57 requests, 285.00 USD per 1,000 scans" in run("inspect", "--price-per-1000-requests", "5").stdout
    cost = json.loads(run("inspect", "--json").stdout)["cost"]
    assert (cost["now"]["requests"], cost["then"]["data_files"]) == (57, 3)
    assert (cost["now"]["usd"], cost["price_per_1000_requests"]) == (None, None), "local disks charge nothing"
    cost = json.loads(run("inspect", "--json", "--price-per-1000-requests", "5").stdout)["cost"]
    assert cost["now"]["usd"] == pytest.approx(57 * 5 / 1000)
    assert run("inspect", "--price-per-1000-requests", "-1").exit_code == 2


def test_inspect_tells_what_filters_open_and_what_to_cluster_by(table: Table, run: Run, tmp_path: Path) -> None:
    """Filters come from options and from a file, in which blank lines and comments are none."""
    asked = tmp_path / "filters.txt"
    asked.write_text("# of the dashboard\n\nid = 7\nkind = 'a'\n", encoding="utf-8")
    result = run("inspect", "--filter", "id = 7", "--filters", str(asked))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "kind = 'a'  opens 8 of 24 files" in lines
    assert "id = 7  opens 1 of 24 files" in lines
    document = json.loads(run("inspect", "--json", "--filters", str(asked)).stdout)
    assert [(use["text"], use["files"], use["times"]) for use in document["filters"]] == [
        ("id = 7", 1, 1), ("kind = 'a'", 8, 1),
    ]  # fmt: skip
    assert run("inspect", "--filter", "nosuch = 1").exit_code == 2


def test_inspect_recommends_columns_that_filters_ask_for(run: Run, tmp_path: Path) -> None:
    """Ids that lie in every file are worth clustering by; the command is told, and works as it is."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path), properties={"write.target-file-size-bytes": "2000"})
    for i in range(8):
        made.append(tables.arrow(range(i, 4000, 8), "a"))
    [told] = [line for line in run("inspect", "--filter", "id = 7").stdout.splitlines() if "single values" in line]
    assert told.startswith("! 1 of 1 filter selects single values of id, in 8.0 of 48 files on average, about ")
    assert told.endswith("`icesize cluster lake.db.t --by id`")
    assert run("cluster", "--by", "id").exit_code == 0
    after = run("inspect", "--filter", "id = 7").stdout
    assert "id = 7  opens 1 of " in after
    assert "icesize cluster" not in after


def test_what_if_replays_the_history_under_other_policies(table: Table, run: Run, tmp_path: Path) -> None:
    """One line for the present policy and one for each other; sizes as people write them; nothing is changed."""
    result = run("plan", "--what-if", "max-small-files=2", "--what-if", "target-file-size-bytes=1KiB,max-small-files=4")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("lake.db.t: the newest 8 batches replayed, ")
    assert lines[0].endswith(" in 3 partitions")
    names = ["current", "max-small-files 2", "target-file-size-bytes 1KiB, max-small-files 4"]
    assert [line.split("  ")[0] for line in lines[2:]] == names
    document = json.loads(run("plan", "--json", "--what-if", "max-small-files=2").stdout)
    present, two = document["replayed"]
    assert (present["small_files_max"], two["small_files_max"]) == (6, 2)
    assert two["write_amplification"] > present["write_amplification"] > 1
    sized = icesize.open(None, "lake.db.t", catalog=tables.sqlite_catalog(tmp_path))
    assert json.loads(json.dumps(sized.compare_policies({"max-small-files": 2}).to_dict())) == document
    assert tables.operations(reloaded(tmp_path)) == ["append"] * FILES


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--what-if", "max-small-files"], "expected KEY=VALUE"),
        (["--what-if", "max-smal-files=2"], "did you mean 'max-small-files'?"),
        (["--what-if", "max-small-files=2", "--where", "kind = 'a'"], "--what-if is about the whole table"),
    ],
)
def test_what_if_refuses_what_it_cannot_replay(table: Table, run: Run, options: list[str], complaint: str) -> None:
    """No pair, no such key, a part of the table: wrong usage, with the reason."""
    result = run("plan", *options)
    assert (result.exit_code, complaint in result.stderr) == (2, True), result.output


def test_plan_changes_nothing(table: Table, run: Run, tmp_path: Path) -> None:
    """plan prints what compact would do and leaves the table alone."""
    result = run("plan")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("plan: 3 partitions, 24 -> 3 files, ")
    assert "  kind=a and 2 more merges  8 -> 1 file each, " in result.stdout
    assert tables.operations(reloaded(tmp_path)) == ["append"] * FILES


def test_compact_prints_the_plan_and_then_the_snapshot(table: Table, run: Run, tmp_path: Path) -> None:
    """compact merges in one replace commit, keeps the rows, and finds nothing to do the second time."""
    first = run("compact")
    assert first.exit_code == 0, first.output
    after = reloaded(tmp_path)
    plan_line, foreseen, snapshot_line, written = first.stdout.splitlines()
    assert plan_line.startswith("plan: 3 partitions, 24 -> 3 files, ")
    assert plan_line.endswith(" decoded)")
    assert foreseen == "decoded: 24 files (tiny)"
    head = after.metadata.current_snapshot_id
    assert snapshot_line == f"snapshot {head} replace  -24 +3 files, rows unchanged"
    assert re.fullmatch(r"[\d.]+ KiB written in [\d.]+ s", written)
    assert len(tables.live_paths(after)) == 3
    assert tables.ids_of(tables.sqlite_catalog(tmp_path)) == list(range(240))
    assert run("compact").stdout == "plan: nothing to merge in 3 files\n"


def test_compact_where_takes_wholly_matching_partitions(table: Table, run: Run, tmp_path: Path) -> None:
    """--where limits the work to partitions that match as a whole."""
    result = run("compact", "--where", "kind = 'a'")
    assert result.exit_code == 0
    assert " -8 +1 file, rows unchanged" in result.stdout
    assert len(tables.live_paths(reloaded(tmp_path))) == 17


def test_compact_into_the_current_spec(table: Table, run: Run, tmp_path: Path) -> None:
    """--into-current-spec moves the rows of old partitions, then merges; a preview changes nothing."""
    with table.update_spec() as update:
        update.remove_field("kind").add_field("id", "bucket[2]", "by_id")
    preview = run("compact", "--into-current-spec", "--dry-run").stdout.splitlines()[0]
    assert preview.startswith("plan to move rows to the current partition spec: 3 partitions, 24 -> 3 files, ")
    result = run("compact", "--into-current-spec")
    assert result.exit_code == 0, result.output
    assert " -30 +8 files, rows unchanged" in result.stdout
    after = reloaded(tmp_path)
    assert {file.partition.spec_id for file in tables.small_files(after)} == {1}
    assert tables.ids_of(tables.sqlite_catalog(tmp_path)) == list(range(240))
    assert run("compact", "--into-current-spec").stdout == "plan: nothing to merge in 2 files\n"


def test_compact_json_has_only_the_report_on_stdout(table: Table, run: Run) -> None:
    """With --json the report is the only thing on standard output; the plan goes to standard error."""
    result = run("compact", "--json")
    report = json.loads(result.stdout)
    assert (report["files_removed"], report["files_added"], report["operations"]) == (24, 3, ["replace"])
    assert result.stderr == ""


def test_policy_options_win_over_the_table(table: Table, run: Run) -> None:
    """--policy sets keys of the size policy; a limit of 0 turns merging off and says so once."""
    result = run("compact", "--policy", "small-file-limit-bytes=0")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "plan: nothing to merge in 24 files"
    assert result.stdout.count("merging is off: 'small-file-limit-bytes' is 0") == 1
    assert json.loads(run("inspect", "--json", "--policy", "max-small-files=9").stdout)["max_small_files"] == 9


def test_files_ineligible_are_named_with_a_warning(table: Table, run: Run, tmp_path: Path) -> None:
    """Files with pending deletes are named by partition and reason, with a warning when they are more than k."""
    catalog = tables.sqlite_catalog(tmp_path)
    with catalog.load_table("db.t").transaction() as change:
        change.set_properties({"icesize.policy.apply-deletes": "false"})
    for input_file in tables.small_files(reloaded(tmp_path), "b"):
        delete_rows(catalog, input_file)
    inspected, planned = run("inspect").stdout, run("plan").stdout
    assert "ineligible\n  kind=b  8 files (HAS_DELETES)" in inspected
    assert "! 1 partition with more than 6 ineligible small files: icesize cannot merge them" in inspected
    assert "ineligible: 8 small files\n  kind=b  8 files (HAS_DELETES)" in planned
    assert "! kind=b: 8 small files are ineligible (HAS_DELETES 8), more than 'max-small-files' (6)" in planned


def test_streams_are_listed_and_forgotten(table: Table, run: Run, tmp_path: Path) -> None:
    """streams lists the ledger, --forget removes one entry, and an unknown stream is an error."""
    assert run("streams").stdout == "no stream has committed to lake.db.t\n"
    tables.append(tables.sqlite_catalog(tmp_path), range(300, 310), batch=7)
    assert run("streams").stdout == "s  query q  batch 7\n"
    entry = {"stream_id": "s", "query_id": "q", "batch_id": 7, "retired": [], "branch": "main"}
    assert json.loads(run("streams", "--json").stdout) == [entry]
    unknown = run("streams", "--forget", "x")
    assert (unknown.exit_code, unknown.stderr) == (
        1, "icesize: Cannot forget stream 'x': 'lake.db.t' has no such stream\n",
    )  # fmt: skip
    told = "stream 's' of lake.db.t (query q, batch 7)\n"
    assert run("streams", "--forget", "s", "--dry-run").stdout == f"would forget {told}"
    assert json.loads(run("streams", "--forget", "s", "--dry-run", "--json").stdout) == []
    assert json.loads(run("streams", "--json").stdout) == [entry]
    assert run("streams", "--dry-run").exit_code == 2
    assert run("streams", "--forget", "s").stdout == f"forgot {told}"
    assert json.loads(run("streams", "--json").stdout) == []


@pytest.mark.parametrize(
    ("code", "command", "name", "message"),
    [
        (1, ["inspect"], "lake.db.tt", "Cannot find table 'lake.db.tt'; did you mean 't'?"),
        (1, ["inspect"], "lake.db.orders", "Cannot find table 'lake.db.orders'; 'db' has t"),
        (1, ["inspect"], "lake.dx.t", "Cannot find table 'lake.dx.t': there is no namespace 'dx'"),
        (1, ["plan"], "lake.t", "Cannot find table 'lake.t': expected CATALOG.NAMESPACE.TABLE"),
        (2, ["plan", "--where", "hour = 'h1'"], "lake.db.t", "partition fields are kind"),
        (2, ["compact", "--where", "kind like '%a'"], "lake.db.t", "Cannot read the filter \"kind like '%a'\""),
        (2, ["versions", "--partition", "sort=a"], "lake.db.t", "the table is partitioned by kind"),
        (2, ["remove-orphan-files", "--older-than", "1h"], "lake.db.t", "24"),
        (2, ["expire-snapshots", "--retain-last", "0"], "lake.db.t", "1"),
        (2, ["compact", "--policy", "max-files=3"], "lake.db.t", "unknown policy key 'max-files': did you mean 'max-s"),
        (2, ["compact", "--policy", "max-small-files=0"], "lake.db.t", "'max-small-files' (0) must be >= 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_no_traceback(
    table: Table, run: Run, code: int, command: list[str], name: str, message: str
) -> None:
    """Unknown tables and namespaces are exit code 1; columns, partitions and policy keys are usage, which is 2."""
    result = run(*command, name=name)
    assert result.exit_code == code
    assert message.replace('"', "'") in result.stderr.replace('"', "'")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("time", ["soon", "2d"])
def test_a_rule_that_cannot_be_is_wrong_usage(table: Table, run: Run, time: str) -> None:
    """Deletes are remembered for a time, and only if events have an order."""
    done = run("rekey", "--key", "id", "--tombstones", time)
    assert done.exit_code == 2
    assert "'tombstones' needs 'order_by'" in done.stderr or "'soon' is not a duration" in done.stderr


@pytest.mark.parametrize("given", [["--partition", ""], ["--partition", "kind=a", "--partition", " "]])
def test_an_empty_partition_is_wrong_usage(table: Table, run: Run, given: list[str]) -> None:
    """A shell variable that is not set names no partition, and not the whole table."""
    for command in (["versions"], ["restore", "--as-of", "2999-01-01", "--yes"]):
        result = run(*command, *given)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--partition is empty: give FIELD=VALUE, or leave it out for an unpartitioned table" in result.stderr


@pytest.mark.parametrize(
    ("where", "mark"),
    [
        ("kind = 'a' and", 14),
        ("kind ~ 'a'", 5),
        ("kind = 'a' or or", 16),
        ("kind = 'a' nd id = 1", 11),
        ("kind = 'a' and (id > 3 or kind in ('a' 'b'))", 39),
        ("(kind = 'a'", 11),
        ("kind = 'a", 9),
        ("", 0),
    ],
)
def test_a_broken_filter_is_marked_where_it_breaks(table: Table, run: Run, where: str, mark: int) -> None:
    """A caret under the place from which on nothing can be read, within a condition too; no grammar; exit code 2."""
    result = run("compact", "--where", where)
    assert result.exit_code == 2
    first, text, caret = result.stderr.splitlines()
    assert first.startswith("icesize: Cannot read the filter from the mark on; conditions are like kind = 'a'")
    assert (text, caret) == (f"  {where}", "  " + " " * mark + "^")


@pytest.mark.parametrize("command", ["inspect", "plan", "compact"])
def test_a_filter_that_chooses_nothing_warns(table: Table, run: Run, command: str) -> None:
    """A typing error in a cron line would look like work that is done: exit code 0, and a warning."""
    result = run(command, "--where", "kind = 'x'")
    assert result.exit_code == 0
    assert result.stderr == ("icesize: warning: no partition matches the filter as a whole; nothing was chosen\n")
    told = json.loads(run(command, "--where", "kind = 'x'", "--json").stdout)
    assert "no partition matches the filter as a whole" in told.get("notes", told.get("advice"))
    assert run(command, "--where", "kind = 'a'").stderr == ""


def test_an_unknown_catalog_says_where_catalogs_come_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A catalog that nothing names, and a database file that is not there, are told; no file is made."""
    monkeypatch.chdir(tmp_path)
    unknown = CliRunner().invoke(main, ["inspect", "nowhere.db.t"])
    assert unknown.exit_code == 1
    assert "Cannot open catalog 'nowhere'" in unknown.stderr
    assert "--catalog-uri" in unknown.stderr
    absent = CliRunner().invoke(main, ["inspect", "lake.db.t", "--catalog-uri", f"sqlite:///{tmp_path}/no.db"])
    assert absent.stderr == f"icesize: Cannot open catalog 'lake': there is no file '{tmp_path}/no.db'\n"
    assert list(tmp_path.iterdir()) == []


def test_looking_at_a_database_does_not_make_a_catalog_of_it(tmp_path: Path) -> None:
    """A database without Iceberg's tables is reported, not filled with them."""
    (tmp_path / "other.db").touch()
    result = CliRunner().invoke(main, ["inspect", "lake.db.t", "--catalog-uri", f"sqlite:///{tmp_path}/other.db"])
    assert result.exit_code == 1
    assert "no such table" in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "other.db").stat().st_size == 0


def test_a_catalog_that_does_not_answer_is_one_line() -> None:
    """No connection is the world's fault, so no traceback."""
    result = CliRunner().invoke(main, ["inspect", "lake.db.t", "--catalog-uri", "http://127.0.0.1:1/"])
    assert result.exit_code == 1
    assert "ConnectionError" in result.stderr
    assert result.stderr.count("\n") == 1


def test_catalog_properties_choose_the_type(table: Table, tmp_path: Path) -> None:
    """--catalog-property reaches PyIceberg: type by hand, address by property, and a wrong scheme is wrong usage."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    by_hand = ["--catalog-property", "type=sql", "--catalog-property", f"uri={uri}"]
    assert CliRunner().invoke(main, ["inspect", "lake.db.t", *by_hand]).exit_code == 0
    wrong = CliRunner().invoke(main, ["inspect", "lake.db.t", "--catalog-uri", "ftp://x"])
    assert wrong.exit_code == 2
    assert "cannot infer the catalog's type from the scheme 'ftp'" in wrong.stderr


@pytest.mark.parametrize(
    "options", [["--policy", "secret"], ["--catalog-property", "=secret"], ["--conf", "secret"], ["--no-such"], []]
)
def test_wrong_usage_is_exit_code_2(options: list[str]) -> None:
    """What does not parse is exit code 2, and values are not repeated."""
    arguments = ["compact", "lake.db.t", *options] if options else ["compact"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_an_unknown_outcome_is_exit_code_3(table: Table, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that may be visible has an exit code of its own; what was committed before it is shown."""

    def lost(*args: object, **options: object) -> None:
        error = CommitStateUnknown("Commit state unknown: timeout")
        error.report = Check("reading", "ok", "snapshot 7")
        raise error

    monkeypatch.setattr(SizedTable, "compact", lost)
    result = run("compact")
    lines = ["icesize: Commit state unknown: timeout", "icesize: done before that: reading: ok: snapshot 7"]
    assert (result.exit_code, result.stderr.splitlines()) == (3, lines)


def test_a_lost_race_is_exit_code_1_and_leaves_nothing(table: Table, run: Run, tmp_path: Path) -> None:
    """An error before the commit removes the merged files."""
    before = tables.data_files_on_disk(table)

    def lose() -> None:
        raise CommitConflict("Cannot commit to 'lake.db.t': other writers committed first")

    with failpoints.armed("before-swap", lose):
        result = run("compact")
    assert result.exit_code == 1
    assert result.stderr == "icesize: Cannot commit to 'lake.db.t': other writers committed first\n"
    assert tables.data_files_on_disk(table) == before


def test_merges_that_all_failed_are_exit_code_1(table: Table, run: Run) -> None:
    """A compaction that could commit nothing names the damaged files and is no success."""
    for path in tables.live_paths(table.refresh()):
        tables.local(path).write_bytes(b"x" * tables.local(path).stat().st_size)
    result = run("compact")
    assert result.exit_code == 1
    assert result.stderr.startswith("icesize: Cannot compact 'lake.db.t': every merge failed, and its files are ")
    assert result.stderr.count("merge of 8 files in 'kind=") == 3
    assert result.stderr.count("\n") == 1
    assert json.loads(run("plan", "--json").stdout)["groups"], "the plan is as before"


def interrupt_main() -> None:
    """Ctrl-C, as the terminal sends it."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_ctrl_c_after_the_swap_names_the_snapshot(table: Table, run: Run) -> None:
    """Interrupted when the commit was in: exit code 130, and which snapshot it is."""
    with failpoints.armed("after-swap", interrupt_main):
        result = run("compact")
    assert result.exit_code == 130
    head = table.refresh().current_snapshot()
    assert head is not None
    assert tables.operations(table) == ["append"] * FILES + ["replace"]
    assert result.stderr == f"icesize: interrupted: snapshot {head.snapshot_id} was committed\n"
    assert tables.data_files_on_disk(table) >= set(tables.live_paths(table))


@pytest.mark.parametrize(
    ("point", "told", "left"),
    [("before-swap", "nothing was committed", 1), ("after-swap", "the change was committed", 0)],
)
def test_ctrl_c_says_whether_a_stream_is_forgotten(table: Table, run: Run, point: str, told: str, left: int) -> None:
    """Changes without a snapshot are told as well."""
    tables.append(table.catalog, range(300, 310), batch=7)
    with failpoints.armed(point, interrupt_main):
        result = run("streams", "--forget", "s")
    assert (result.exit_code, result.stderr) == (130, f"icesize: interrupted: {told}\n")
    assert len(json.loads(run("streams", "--json").stdout)) == left


def test_ctrl_c_while_the_catalog_is_asked_says_how_to_find_out(
    table: Table, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog was asked and did not answer: unknown, and the run id to look for; nothing is deleted."""
    before = tables.data_files_on_disk(table)

    def hang(committer: PyIcebergCommitter, loaded: object, staged: object) -> None:
        interrupt_main()

    monkeypatch.setattr(PyIcebergCommitter, "commit", hang)
    result = run("compact")
    assert result.exit_code == 130
    assert result.stderr.startswith("icesize: interrupted: outcome unknown: Look for a snapshot whose summary has")
    assert len(tables.data_files_on_disk(table) - before) == len(KINDS)


@pytest.mark.parametrize("point", ["planned", "files-written", "before-swap"])
def test_ctrl_c_is_one_clean_line_and_leaves_nothing(table: Table, run: Run, point: str) -> None:
    """Interrupted before the commit: exit code 130, one line, the table and its folder as they were."""
    before = tables.data_files_on_disk(table)
    with failpoints.armed(point, interrupt_main):
        result = run("compact")
    assert result.exit_code == 130
    assert result.stderr == "icesize: interrupted: nothing was committed\n"
    assert tables.data_files_on_disk(table) == before
    assert tables.operations(table.refresh()) == ["append"] * FILES


def test_ctrl_c_while_merging_removes_what_was_merged(table: Table, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of the merges: groups that had finished are removed, too."""
    before, merged = tables.data_files_on_disk(table), []

    def merge_then_interrupt(task: MergeTask, settings: WriteSettings, names: FileNames, threads: int) -> MergeResult:
        outcome = merge(task, settings, names, threads)
        merged.append(outcome)
        if len(merged) == 1:
            interrupt_main()
        return outcome

    monkeypatch.setattr("icesize.parquet.rewriting.threads.merge", merge_then_interrupt)
    result = run("compact")
    assert result.exit_code == 130
    assert len(merged) >= 1
    assert tables.data_files_on_disk(table) == before


def test_more_than_a_gibibyte_is_merged_in_rounds(table: Table, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound compact commits more than once, and says what it did in sum."""
    limits = WorkLimits(bytes_without_spark=1000)
    monkeypatch.setattr("icesize.cli.options.Environment", partial(Environment, limits=limits))
    result = run("compact", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert len(report["snapshot_ids"]) == 3
    assert (report["files_removed"], report["files_added"]) == (24, 3)


def test_no_java_is_one_sentence_that_says_what_works(table: Table, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asked for on a machine without Java: no traceback, and what works without it."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = run("compact", "--master", "local[1]")
    assert result.exit_code == 1
    assert result.stderr.startswith("icesize: Cannot start Spark: there is no Java runtime in JAVA_HOME or on PATH")
    assert "Without Spark `icesize compact` works in its own process" in result.stderr
    assert result.stderr.count("\n") == 1
    with pytest.raises(EngineUnavailable, match="install Java 17"):
        launch.start_session("x")


@pytest.mark.slow
def test_compact_with_spark_merges_in_a_session_of_its_own(table: Table, tmp_path: Path) -> None:
    """--master starts Spark, the catalog still comes from --catalog-uri, and the outcome is the same."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    spark = ("--master", "local[1]", "--conf", "spark.ui.enabled=false")
    command = python("-m", "icesize", "compact", "lake.db.t", "--catalog-uri", uri, *spark)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("plan: 3 partitions, 24 -> 3 files, ")
    assert " replace  -24 +3 files, rows unchanged" in done.stdout
    assert tables.ids_of(tables.sqlite_catalog(tmp_path)) == list(range(240))


def test_master_and_remote_exclude_each_other() -> None:
    """One Spark at a time."""
    result = CliRunner().invoke(main, ["compact", "lake.db.t", "--master", "local", "--remote", "sc://x"])
    assert result.exit_code == 2
    assert "--master and --remote exclude each other" in result.stderr


def test_help_and_version_import_nothing_heavy() -> None:
    """--help and --version load neither pyspark nor pyarrow nor pyiceberg nor rich."""
    code = (
        "import sys; from icesize.cli.main import main\n"
        "for option in ('--help', '--version'):\n"
        "    main([option], standalone_mode=False)\n"
        "print(sorted({'pyspark', 'pyarrow', 'pyiceberg', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "compact" in done.stdout


@pytest.mark.engine
@pytest.mark.parametrize("command", ["inspect", "compact"])
def test_a_command_that_moves_nothing_loads_only_what_it_needs(table: Table, tmp_path: Path, command: str) -> None:
    """Importing is most of what these take: no Spark, nothing that merges, sorts, clusters or restores."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    sized = icesize.open(None, "lake.db.t", catalog=tables.sqlite_catalog(tmp_path))
    sized.compact()
    rooms = ("parquet.row_groups", "parquet.rewriting", "parquet.writing", "parquet.ordering", "table.cleanup", "spark")
    code = (
        "import sys; from icesize.cli.main import main\n"
        f"main([{command!r}, 'lake.db.t', '--catalog-uri', {uri!r}], standalone_mode=False)\n"
        "jobs = {'icesize.maintenance.jobs.clustering', 'icesize.maintenance.jobs.restore'}\n"
        "heavy = ({'pyspark'} | jobs) & set(sys.modules)\n"
        f"rooms = {[f'icesize.{room}' for room in rooms]}\n"
        "print(sorted(heavy | {m for m in sys.modules if any(m == r or m.startswith(r + '.') for r in rooms)}))"
    )
    done = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_of_its_own_works_and_ends_cleanly(table: Table, tmp_path: Path, number: signal.Signals) -> None:
    """python -m icesize is the command line; Ctrl-C and SIGTERM end a waiting compact with one line and 130 or 143."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    command = python("-m", "icesize", "compact", "lake.db.t", "--catalog-uri", uri)
    waiting = os.environ | failpoints.for_child(f"planned=wait:{tmp_path}/go")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": waiting}
    # shells start what runs in their background with SIGINT ignored, and children inherit that
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("plan: 3 partitions, 24 -> 3 files")
        child.send_signal(number)
        _, errors = child.communicate()
    assert child.returncode == 128 + number
    assert errors == "icesize: interrupted: nothing was committed\n"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " replace  -24 +3 files, rows unchanged" in done.stdout
    assert done.stderr == ""


def test_dry_runs_find_the_catalog_that_spark_would_have(table: Table, tmp_path: Path) -> None:
    """`--conf spark.sql.catalog...` names it without a start of Spark; a database that is not there is not made."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        ".warehouse": f"file://{tmp_path}/warehouse",
    }

    def run(command: str, *more: str, **others: str) -> Result:
        pairs = {**settings, **others}.items()
        conf = [word for key, value in pairs for word in ("--conf", f"spark.sql.catalog.lake{key}={value}")]
        return CliRunner().invoke(main, [command, "lake.db.t", "--dry-run", *more, *conf])

    for command, more in (("compact", ()), ("maintain", ()), ("cluster", ("--by", "id"))):
        result = run(command, *more)
        assert result.exit_code == 0, result.output
    assert "24 -> 3 files" in run("compact").stdout
    missing = run("compact", **{".uri": f"jdbc:sqlite:{tmp_path}/none.db"})
    assert (missing.exit_code, (tmp_path / "none.db").exists()) == (1, False)
    assert "Cannot open catalog 'lake': there is no file" in missing.stderr


def test_a_branch_is_named(table: Table, run: Run, tmp_path: Path) -> None:
    """--branch names the branch that a command reads and commits to; several tables have no branch in common."""
    head = table.metadata.current_snapshot_id
    assert "there is none. Create it: ALTER TABLE lake.db.t" in run("compact", "--branch", "audit").stderr
    table.manage_snapshots().create_branch(head, "audit").commit()
    assert run("compact", "--branch", "audit").exit_code == 0
    assert (
        json.loads(run("inspect", "--branch", "audit", "--json").stdout)["files"]
        < json.loads(run("inspect", "--json").stdout)["files"]
    )
    after = tables.sqlite_catalog(tmp_path).load_table("db.t").metadata
    assert after.current_snapshot_id == head
    assert after.refs["audit"].snapshot_id != head
    refused = run("scan", "--branch", "audit", name="lake")
    assert (refused.exit_code, "--branch needs one table" in refused.stderr) == (2, True)


def test_streams_of_branches_are_listed(table: Table, run: Run) -> None:
    """streams names the branch of an entry if one is on another branch than main."""
    entries = (LedgerEntry("s", "q", 7), LedgerEntry("s", "q", 9, branch="audit"))
    with table.transaction() as changed:
        changed.set_properties({entry.key: entry.to_json() for entry in entries})
    assert run("streams").stdout == "s  query q  batch 9  branch audit\ns  query q  batch 7\n"
