"""What makes the command line pleasant: help in sections with examples, sizes, dry runs, questions, limits, logs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table

import icesize
from icesize.cli.main import main
from icesize.environment import Environment, WorkLimits
from icesize.units import format_bytes, parse_bytes, parse_ms, time_of
from tests.support import tables
from tests.support.command_line import Run, catalog_uri, on_a_terminal

FILES = 8


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Eight small files of one partition, one append each."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path))
    for first in range(FILES):
        made.append(tables.arrow(range(10 * first, 10 * first + 10), "a"))
    return made


def _on_disk(table: Table) -> set[str]:
    return tables.data_files_on_disk(table) | tables.metadata_files_on_disk(table)


def test_the_help_has_each_command_once_in_a_section() -> None:
    """No command is missing from the sections of --help, and none is cut short."""
    told = CliRunner().invoke(main, ["--help"]).stdout
    lines = [line.split()[0] for line in told.splitlines() if line.startswith("  ") and line.split()]
    assert [lines.count(name) for name in main.commands] == [1] * len(main.commands)
    assert "..." not in told.partition("Inspect:")[2]


@pytest.mark.parametrize("name", sorted(main.commands))
def test_examples_of_the_help_are_command_lines_that_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each --help ends with examples, and each of them is accepted by the parser."""
    command = main.commands[name]
    text = CliRunner().invoke(main, [name, "--help"]).stdout
    examples = [line.strip() for line in text.partition("Examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        line = example.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0]
        program, called, *arguments = shlex.split(line)
        assert program == "icesize"
        assert main.commands[called].make_context(called, arguments, resilient_parsing=False).command.name == called
    assert command.short_help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_completes(shell: str) -> None:
    """The script names the program; commands, options and policy keys are completed."""
    script = CliRunner().invoke(main, ["completion", shell]).stdout
    assert "_ICESIZE_COMPLETE" in script
    environment = {**os.environ, "_ICESIZE_COMPLETE": "bash_complete", "COMP_CWORD": "4"}
    words = "icesize compact lake.db.t --policy max-s"
    done = subprocess.run(
        [sys.executable, "-m", "icesize"], env={**environment, "COMP_WORDS": words}, capture_output=True, text=True
    )
    assert "plain,max-small-files=\nplain,max-snapshots=" in done.stdout


@given(size=st.integers(0, 2**50))
def test_sizes_are_read_as_they_are_printed(size: int) -> None:
    """What a report prints can be typed, and is at most half of its last digit away."""
    printed = format_bytes(size).replace(",", "")
    read = parse_bytes(printed)
    assert read is not None
    assert format_bytes(read).replace(",", "") == printed


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2 d", 172_800_000),
        ("1w", 604_800_000),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    """One unit or several, with a fraction, with or without a space."""
    assert parse_ms(text) == milliseconds


@pytest.mark.parametrize("zone", ["Z", "z", "+00:00"])
@pytest.mark.parametrize("text", ["2026-01-31T12:00", "2026-01-31 12:00:00", "2026-01-31T12:00:00.000"])
def test_times_with_a_zone_are_read_on_every_python(text: str, zone: str) -> None:
    """Python 3.10 itself does not read the Z that other programs write."""
    assert time_of(text + zone) == datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("text", ["", "3", "h", "3x", "1h30", "-1h", "1 fortnight", "h3"])
def test_what_is_no_duration_is_none(text: str) -> None:
    """A number alone says no unit, and a word none that is known."""
    assert parse_ms(text) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget-bytes", "20GB"], "'20GB' is not a size such as 64MiB or 1.5GiB, in powers of 1024, or a number"),
        (["--budget-seconds", "soon"], "'soon' is not a duration such as 90s, 30m or 1h30m, or a number of seconds"),
        (["--budget-seconds", "-1"], "'-1' is not a duration"),
    ],
)  # fmt: skip
def test_what_is_no_size_or_duration_is_wrong_usage(run: Run, options: list[str], message: str) -> None:
    """Exit code 2 and what would have been accepted."""
    result = run("compact", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_policies_take_sizes_and_durations(table: Table, run: Run) -> None:
    """--policy reads 64MiB and 2h where the table's property is a number."""
    told = json.loads(run("inspect", "--json", "--policy", "target-file-size-bytes=64MiB").stdout)
    assert told["target_file_size_bytes"] == 64 * 2**20
    assert run("maintain", "--policy", "version-max-age-ms=2h", "--json").exit_code == 0


def test_a_dry_run_prints_the_plan_and_changes_nothing(table: Table, run: Run) -> None:
    """compact, cluster and rewrite-manifests with --dry-run say what they would do; files and snapshots stay."""
    before = tables.operations(table), _on_disk(table)
    assert run("compact", "--dry-run").stdout.startswith("plan: 1 partition, 8 -> 1 file")
    assert json.loads(run("compact", "--dry-run", "--json").stdout)["groups"][0]["files"] == FILES
    assert run("cluster", "--by", "id", "--dry-run").stdout.startswith("cluster (sort by id): ")
    assert run("cluster", "--dry-run").exit_code == 2
    manifests = run("rewrite-manifests", "--dry-run").stdout
    assert manifests.startswith("manifests of lake.db.t: 8 -> 1  entries to copy 8  ")
    assert (tables.operations(table.refresh()), _on_disk(table)) == before
    assert run("rewrite-manifests").stdout.startswith("manifests of lake.db.t: 8 -> 1  entries copied 8  ")


def test_a_budget_of_bytes_bounds_a_compaction(table: Table, run: Run) -> None:
    """What it pays for is merged, and nothing else; the others are named and left to the next call."""
    for first in range(100, 104):
        table.append(tables.arrow(range(first, first + 1), "b"))
    planned = json.loads(run("compact", "--budget-bytes", "1", "--dry-run", "--json").stdout)
    assert (planned["groups"], planned["skipped"]["OVER_BUDGET"]) == ([], FILES + 4)
    assert run("compact", "--budget-bytes", "1GiB").exit_code == 0
    assert len(tables.live_paths(table.refresh())) == 2


def test_a_budget_of_seconds_leaves_later_rounds(table: Table, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second round is begun after it; what is left is said, and the next call does it."""
    table.append(tables.arrow(range(100, 104), "b"))
    table.append(tables.arrow(range(104, 108), "b"))
    limits = WorkLimits(round_bytes=1000)
    monkeypatch.setattr("icesize.cli.options.Environment", partial(Environment, limits=limits))
    result = run("compact", "--budget-seconds", "0")
    assert "! 1 merge left: the budget of 0 s is used up" in result.stdout
    assert tables.operations(table.refresh()) == ["append"] * (FILES + 2) + ["replace"]
    assert run("compact", "--budget-seconds", "1h").exit_code == 0
    assert len(tables.live_paths(table.refresh())) == 2


def test_the_newest_twenty_versions_are_listed(tmp_path: Path, run: Run) -> None:
    """More are told of with the option that shows them; --json has all."""
    made = tables.make_table(tables.sqlite_catalog(tmp_path))
    for first in range(23):
        made.append(tables.arrow(range(first, first + 1), "a"))
    lines = run("versions").stdout.splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "and 3 older versions: use --limit 23 for all, --partition for one partition"
    assert len(run("versions", "--limit", "23").stdout.splitlines()) == 1 + 23
    assert len(json.loads(run("versions", "--json").stdout)) == 23


def test_logs_are_told_when_asked_for(table: Table, run: Run) -> None:
    """-v shows what icesize logs on standard error, also beside a document."""
    tables.append(table.catalog, range(300, 310), batch=7)
    silent, told = run("inspect", "--json"), run("maintain", "--json", "-vv")
    assert silent.stderr == ""
    assert json.loads(told.stdout)["table"] == "lake.db.t"


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 9), ("y\n", 0, 1)])
def test_expiry_asks_at_a_terminal(table: Table, tmp_path: Path, answer: str, code: int, left: int) -> None:
    """The question tells snapshots and files; no answer but yes deletes anything."""
    tables.sqlite_catalog(tmp_path).load_table("db.t").overwrite(tables.arrow(range(3), "a"))
    snapshots = len(table.refresh().metadata.snapshots)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    options = ["--older-than", "0s", "--retain-last", "1", "--catalog-uri", uri]
    exit_code, told = on_a_terminal(["expire-snapshots", "lake.db.t", *options], answer, own_process=True)
    assert exit_code == code, told
    assert "of lake.db.t and delete" in told
    assert (len(table.refresh().metadata.snapshots) < snapshots) == (code == 0)


def test_yes_answers_the_question(table: Table, tmp_path: Path) -> None:
    """With --yes a terminal is not asked, as a scheduler is not."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    options = ["--older-than", "0s", "--retain-last", "1", "--catalog-uri", uri, "--yes"]
    exit_code, told = on_a_terminal(["expire-snapshots", "lake.db.t", *options], "")
    assert exit_code == 0
    assert "[y/N]" not in told


def test_no_color_is_obeyed_on_a_terminal(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours on a terminal, none where NO_COLOR is set."""
    arguments = ["inspect", "lake.db.t", "--catalog-uri", f"sqlite:///{tmp_path}/catalog.db"]
    assert "\x1b[33m" in on_a_terminal(arguments, "")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in on_a_terminal(arguments, "")[1]


def test_restore_takes_a_time(table: Table, run: Run) -> None:
    """--as-of names the version that readers saw then; either it or --snapshot is given."""
    second = table.refresh().metadata.snapshots[1]
    moment = datetime.fromtimestamp(second.timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    report = json.loads(run("restore", "--partition", "kind=a", "--as-of", moment, "--yes", "--json").stdout)
    assert (report["rows_before"], report["rows_after"]) == (80, 20)
    for options in ([], ["--as-of", moment, "--snapshot", "1"]):
        wrong = run("restore", "--partition", "kind=a", "--yes", *options)
        assert wrong.exit_code == 2
        assert "give either --snapshot or --as-of" in wrong.stderr
    assert "is not a time such as" in run("restore", "--partition", "kind=a", "--as-of", "soon").stderr


def test_a_table_that_is_well_has_nothing_to_merge(table: Table, run: Run) -> None:
    """inspect says what compact would do, and that there is nothing to do after it; --check says it as an exit code."""
    before = run("inspect")
    assert "`icesize compact` would merge 8 files into 1" in before.stdout
    unwell = run("inspect", "--check")
    assert unwell.exit_code == 4
    assert unwell.stdout == "lake.db.t is unhealthy: 1 partition with more than 6 mergeable small files\n"
    assert run("inspect", "--check", "--policy", "max-small-files=8").stdout == "lake.db.t is healthy\n"
    assert json.loads(run("inspect", "--check", "--json").stdout)["problems"] == [
        "1 partition with more than 6 mergeable small files"
    ]
    run("compact")
    after = run("inspect")
    assert "nothing to merge" in after.stdout.splitlines()
    assert run("inspect", "--check").exit_code == 0


def test_a_dry_run_of_maintenance_tells_every_step(table: Table, run: Run) -> None:
    """Each step under its heading, as JSON by its name; the table and its folder stay as they are."""
    before = tables.operations(table), _on_disk(table)
    lines = run("maintain", "--dry-run").stdout.splitlines()
    headings = ("small files", "delete files", "manifests", "snapshots", "orphan files")
    assert [line for line in lines if line in headings] == list(headings)
    assert "  kind=a  8 -> 1 file, " in "\n".join(lines)
    assert any(line.startswith("manifests of lake.db.t: 8 -> 1  entries to copy 8") for line in lines)
    document = json.loads(run("maintain", "--dry-run", "--json", "--budget-bytes", "1GiB").stdout)
    assert document["merges"]["groups"][0]["files"] == FILES
    assert (document["clustering"], document["failed"]) == (None, {})
    assert (tables.operations(table.refresh()), _on_disk(table)) == before
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    forbidden = json.loads(run("maintain", "--dry-run", "--json").stdout)
    assert forbidden["expiry"] is None
    assert "'gc.enabled' is false" in forbidden["failed"]["expiry"]
    assert "expiry cannot be planned: Cannot delete files" in run("maintain", "--dry-run").stdout


def test_a_pass_has_a_heading_for_each_step(table: Table, run: Run) -> None:
    """What was done stands under the name of its step."""
    lines = run("maintain").stdout.splitlines()
    assert lines[0] == "small files"
    assert lines[1].endswith(" replace  -8 +1 file, rows unchanged")
    assert lines.index("delete files") < lines.index("manifests") < lines.index("snapshots")


def test_what_a_table_answers_prints_well(table: Table, tmp_path: Path) -> None:
    """Every object that a call gives is a sentence or a few when it is printed, not a constructor."""
    tables.append(table.catalog, range(300, 310), batch=7)
    sized = icesize.open(None, "lake.db.t", catalog=tables.sqlite_catalog(tmp_path))
    planned = str(sized.plan_maintenance())
    assert planned.splitlines()[1].startswith("plan: 1 partition, 9 -> 1 file, ")
    found = [sized.inspect(), sized.plan(), sized.history(), *sized.versions(), *sized.streams(), *sized.doctor()]
    found += [sized.plan_maintenance(), sized.maintain(), sized.compact()]
    assert [type(one).__name__ for one in found if str(one) == repr(one)] == []
    assert str(sized.streams()[0]) == "stream 's', batch 7, of query q"
    assert str(sized.versions()[0]).endswith(" rows, by replace")


def test_maintenance_and_the_search_for_orphans_draw_bars_on_a_terminal(table: Table, tmp_path: Path) -> None:
    """A pass tells which step it is at; of a document on the same terminal, and of a pipe, there is nothing but it."""
    uri = catalog_uri(tmp_path)
    for arguments, bar in (
        (["maintain", "lake.db.t", "--yes"], "looking for orphan files"),
        (["remove-orphan-files", "lake.db.t"], "looking for orphan files"),
    ):
        assert bar in on_a_terminal([*arguments, "--catalog-uri", uri], "")[1]
        code, told = on_a_terminal([*arguments, "--catalog-uri", uri, "--json"], "")
        assert code == 0
        json.loads(told)


def test_a_table_whose_files_must_stay_is_maintained_without_a_question(table: Table, tmp_path: Path) -> None:
    """The expiry is refused, as without a terminal, and the other steps run."""
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    code, told = on_a_terminal(["maintain", "lake.db.t", "--catalog-uri", catalog_uri(tmp_path)], "")
    assert (code, "[y/N]" in told) == (0, False), told
    assert "expiry left out: Cannot delete files" in told
