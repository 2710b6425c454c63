"""How things are shown, at several widths, with and without a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from icesize.events import CommitStarted, PendingCommit, Progress
from icesize.planning.files import FileFact, Head, Layout, PartitionFacts, PartitionKey, Partitions, SkipReason
from icesize.planning.insight.inspection import (
    DeletesClass,
    Inspection,
    PartitionSizes,
    PendingDeletes,
    SizeClass,
    inspect,
)
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import Forecast
from icesize.policy import SizePolicy
from icesize.presentation import progress
from icesize.presentation.blocks import Block, Columns, Room
from icesize.presentation.console import show, show_error, show_line
from icesize.presentation.views import tables
from icesize.report import Report
from icesize.results import Advice
from icesize.table.past.commits import History, PastCommit
from icesize.table.past.versions import Version
from icesize.units import format_bytes, format_count

MIB = 2**20

INSPECTION = Inspection(
    table="lake.db.events",
    snapshot_id=8837,
    partitions=214,
    files=41_020,
    size_bytes=118 * 2**30,
    rows=1_204_332_118,
    small_file_limit_bytes=384 * MIB,
    target_file_size_bytes=512 * MIB,
    max_small_files=6,
    small_files=40_811,
    small_bytes=96 * MIB,
    small_files_max=1_212,
    histogram=(SizeClass(24 * MIB, 40_811, 96 * MIB), SizeClass(96 * MIB, 0, 0)),
    worst=(PartitionSizes({"hour": "h191", "kind": "x"}, 1_300, 2**30, 1_212, 1_212, 96 * MIB, {}),),
    ineligible={},
    ineligible_partitions=(),
    advice=(
        Advice(
            "1 partition with more than 6 mergeable small files: `icesize compact` would merge 1,212 files into 1",
            "icesize compact lake.db.events",
        ),
    ),
    files_to_merge=1_212,
    files_merged=1,
)


def shown(blocks: Iterable[Block], width: int = 80, terminal: bool = False, encoding: str = "utf-8") -> str:
    """How blocks are printed on a console of this kind."""
    return printed(lambda console: show(console, blocks), width, terminal, encoding)


def printed(
    function: Callable[[Console], None], width: int = 80, terminal: bool = False, encoding: str = "utf-8"
) -> str:
    """What a function prints on a console of this kind."""
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding)
    colours: Literal["auto", "standard"] = "standard" if terminal else "auto"
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False, color_system=colours)
    function(console)
    file.flush()
    return written.getvalue().decode(encoding)


def facts(kind: str, sizes: list[int], spec_id: int = 0, obstacle: SkipReason | None = None) -> PartitionFacts:
    key = PartitionKey(spec_id, (kind,))
    files = tuple(FileFact(f"{kind}{i}", s, 10, key, obstacle=obstacle) for i, s in enumerate(sizes))
    return PartitionFacts(key, f"kind={kind}", len(sizes), sum(sizes), 10 * len(sizes), files)


def layout(*partitions: PartitionFacts) -> Layout:
    return Layout(Head(1, 1), 0, 384 * MIB, Partitions.of({p.key: p for p in partitions}))


def test_inspection_reads_as_in_the_readme() -> None:
    """Totals, one bar per line in proportion, empty size classes left out, partitions as people write them."""
    assert shown(tables.inspection(INSPECTION)).splitlines() == [
        "lake.db.events  snapshot 8837",
        "214 partitions  41,020 files  118 GiB  1,204,332,118 rows",
        "small files (< 384 MiB)    40,811     96 MiB  " + "█" * 33,
        "  < 24 MiB                 40,811     96 MiB  " + "█" * 33,
        "well sized (from 384 MiB)     209    118 GiB  ▏",
        "most small files",
        "  hour=h191/kind=x  1,212 small files of 1,300, 96 MiB",
        "! 1 partition with more than 6 mergeable small files: `icesize compact` would merge 1,212 files into 1",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_only_bars_follow_the_width(width: int) -> None:
    """Words are never cut or wrapped, so a narrow terminal or a pipe loses nothing."""

    def words(at: int) -> list[str]:
        text = shown(tables.inspection(INSPECTION), width=at)
        return [line.rstrip(" █▏▎▍▌▋▊▉") for line in text.splitlines()]

    assert words(width) == words(80)


def test_no_colours_where_there_is_no_terminal_and_ascii_where_there_is_no_utf8() -> None:
    """Escape codes go to terminals only; bars are made of # where the encoding has no blocks."""
    assert "\x1b[" in shown(tables.inspection(INSPECTION), terminal=True)
    plain = shown(tables.inspection(INSPECTION), encoding="ascii")
    assert "\x1b" not in plain
    assert "#" * 33 in plain
    assert "well sized (from 384 MiB)     209    118 GiB  #\n" in plain


def test_an_empty_table_is_shown_without_a_snapshot() -> None:
    """No files: no bars, no partitions, no division by zero."""
    nothing = Layout(Head(None, 0), 0, 384 * MIB)
    empty = inspect(nothing, SizePolicy(), {}, plan_merges(nothing, SizePolicy()), table="lake.db.t")
    lines = shown(tables.inspection(empty)).splitlines()
    assert lines == ["lake.db.t  no snapshot", "0 partitions  0 files  0 B  0 rows", "nothing to merge"]


def test_inspection_names_files_of_old_specs_as_ineligible() -> None:
    """Files that a plan would skip for good are not counted as mergeable, whatever the reason."""
    deleted = facts("d", [MIB] * 8, obstacle=SkipReason.HAS_DELETES)
    old = facts("o", [MIB] * 2, spec_id=3, obstacle=SkipReason.OLD_SPEC)
    table = layout(facts("m", [MIB] * 7), deleted, old)
    labels = {k: {"kind": str(k.values[0])} for k in table.partitions}
    found = inspect(table, SizePolicy(), labels, plan_merges(table, SizePolicy()), table="t")
    assert (found.small_files, found.small_files_max) == (17, 7)
    assert found.ineligible == {"HAS_DELETES": 8, "OLD_SPEC": 2}
    assert [(p.label, p.ineligible) for p in found.ineligible_partitions] == [
        ("kind=d", {"HAS_DELETES": 8}), ("kind=o", {"OLD_SPEC": 2}),
    ]  # fmt: skip
    assert [p.label for p in found.worst] == ["kind=m"]
    text = shown(tables.inspection(found))
    assert "  kind=d  8 files (HAS_DELETES)\n  kind=o  2 files (OLD_SPEC)\n" in text
    assert "! 1 partition with more than 6 ineligible small files: icesize cannot merge them\n" in text


def test_alike_partitions_are_one_line() -> None:
    """A dozen partitions with the same numbers of files say no more than one; others have a line of their own."""
    table = layout(*(facts(f"k{i:02}", [MIB] * 8) for i in range(12)), facts("o", [MIB] * 9))
    labels = {k: {"kind": str(k.values[0])} for k in table.partitions}
    found = inspect(table, SizePolicy(), labels, plan_merges(table, SizePolicy()), table="t")
    assert [(p.label, p.alike, p.small_bytes) for p in found.worst] == [
        ("kind=o", 1, 9 * MIB),
        ("kind=k00", 12, 96 * MIB),
    ]
    text = shown(tables.inspection(found))
    assert "  kind=o                           9 small files of 9, 9 MiB\n" in text
    assert "  kind=k00 and 11 more partitions  8 small files of 8 each, 96 MiB in all\n" in text
    assert "kind=k11" not in text


def test_pending_deletes_have_lines_of_their_own() -> None:
    """How many, where it is worst, and a line for each class of files; nothing where there are none."""
    classes = (DeletesClass(1, 1_200), DeletesClass(2, 1))
    pending = PendingDeletes(1_201, 0, 7, 0.02, 0.5, {"hour": "h191"}, 2.25, 3, classes)
    lines = shown(tables.inspection(replace(INSPECTION, deletes=pending))).splitlines()
    assert lines[-4:-1] == [
        "deletes pending on 1,201 files, 7 deleted rows known (2.0%), 0.5 delete files per file on average "
        "(2.2 in hour=h191), at most 3",
        "  1,200 files with 1 delete file",
        "  1 file with 2 - 3 delete files",
    ]
    assert "delete" not in shown(tables.inspection(INSPECTION))


def test_a_plan_names_the_first_groups_and_counts_the_rest() -> None:
    """Ten lines are enough for a person; the others are counted."""
    plan = plan_merges(layout(*(facts(f"k{i:02}", [MIB] * (2 + i // 2)) for i in range(24))), SizePolicy())
    lines = shown(tables.plan(plan)).splitlines()
    assert lines[0] == "plan: 24 partitions, 180 -> 24 files, 180 MiB to write"
    assert lines[1].endswith(" and 1 more merge  13 -> 1 file each, 26 MiB in all")
    assert lines[11:] == ["  and 4 more merges"]
    assert str(plan_merges(layout(), SizePolicy())) == "plan: nothing to merge in 0 files"


def test_the_whole_of_an_unpartitioned_table_has_a_name() -> None:
    """The one partition of an unpartitioned table has an empty label, which nobody could read."""
    key = PartitionKey(0)
    files = tuple(FileFact(str(i), MIB, 1, key) for i in range(3))
    plan = plan_merges(
        Layout(Head(1, 1), 0, 384 * MIB, Partitions.of({key: PartitionFacts(key, "", 3, 3 * MIB, 3, files)})),
        SizePolicy(),
    )
    assert "  (whole table)  3 -> 1 file, 3 MiB\n" in shown(tables.plan(plan))


def test_a_report_says_what_changed_and_what_was_lost() -> None:
    """Snapshot, files, bytes; what the plan has not said already: why bytes were decoded, notes; and conflicts."""
    report = Report(
        "lake.db.t", snapshot_ids=(9017,), operations=("replace",), files_removed=40_811, files_added=231,
        bytes_written=9 * 2**30, bytes_copied=2**30, seconds={"total": 15.26}, decode_reasons={"tiny": 4},
        conflicts=("merge of 3 files dropped: deleted",), notes=("known", "new"),
    )  # fmt: skip
    forecast = Forecast(2**30, 8 * 2**30, decode_reasons={"tiny": 4})
    planned = replace(plan_merges(layout(), SizePolicy()), notes=("known",), forecast=forecast)
    assert shown(tables.committed(report, planned)).splitlines() == [
        "snapshot 9017 replace  -40,811 +231 files, rows unchanged",
        "9 GiB written (1 GiB copied) in 15.3 s",
        "! new",
        "! merge of 3 files dropped: deleted",
    ]
    lost = replace(report, snapshot_ids=(), operations=(), notes=())
    assert shown(tables.committed(lost)) == "nothing was committed\n! merge of 3 files dropped: deleted\n"


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (Report("lake.db.t", batch_id=0), "batch 0: nothing to do"),
        (Report("lake.db.t"), "nothing to do in lake.db.t"),
        (Report("lake.db.t", batch_id=0, conflicts=("lost",)), "batch 0: nothing was committed  lost"),
        (
            Report("lake.db.t", batch_id=3, snapshot_ids=(1,), rows=20, files_added=2, small_files_max=1),
            "batch 3: 20 rows  files +2 -0  max small files 1 per partition  0.00 s",
        ),
        (
            Report("lake.db.t", snapshot_ids=(1,), files_added=1, files_removed=35, small_files_max=1),
            "rows unchanged  files +1 -35  max small files 1 per partition  0.00 s",
        ),
        (
            Report("lake.db.t", snapshot_ids=(1,), files_added=35, rows_before=3_600, rows_after=0),
            "rows 3,600 -> 0  files +35 -0  0.00 s",
        ),
    ],
)
def test_a_report_is_one_line(report: Report, line: str) -> None:
    """Rows that came, that stayed or that a partition had before; the table where no batch, whose log line has it."""
    assert str(report) == line


MERGED = [Progress("merges", 0, 4 * MIB), Progress("merges", MIB, 4 * MIB), Progress("merges", 4 * MIB, 4 * MIB)]
DELETED = [Progress("orphans", 3000), Progress("orphans", 1, 40), Progress("orphans", 40, 40)]
MAINTAINED = [Progress("merges", 0), *MERGED, Progress("expiry", 0), Progress("expiry", 3, 3)]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (MERGED, "merging ━+ 4 MiB of 4 MiB"),
        (DELETED, "deleting ━+ 40 of 40 files"),
        (MAINTAINED, "deleting ━+ 3 of 3 files"),
    ],
)
def test_progress_is_drawn_on_terminals_only(events: list[Progress], words: str) -> None:
    """A terminal shows one bar at a time, a pipe shows nothing, and no bar stays."""

    def draw(console: Console) -> None:
        with progress.drawn(console) as observe:
            for event in events:
                observe(event)

    assert printed(draw) == ""
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", printed(draw, terminal=True))
    assert re.search(words, drawn)
    # the cursor is shown again, and the line of the bar erased
    assert drawn.endswith("\x1b[2K")


def test_a_bar_waits_for_something_to_do() -> None:
    """A line before the first event of progress, for example an error, has no bar above it."""

    def nothing(console: Console) -> None:
        with progress.drawn(console) as observe:
            observe(CommitStarted(cast(PendingCommit, None)))
            show_line(console, "nothing to merge")

    assert printed(nothing, terminal=True) == "nothing to merge\n"


@pytest.mark.parametrize(
    ("done", "seconds", "words"),
    [
        (0, 3.0, "0 B of 10 GiB"),
        (2**30, 0.0, "1 GiB of 10 GiB"),
        (5 * 2**30, 25.0, "5 GiB of 10 GiB, 205 MiB/s, 0:00:25 left"),
        (2**30, 1_000.0, "1 GiB of 10 GiB, 1 MiB/s, 2:30:00 left"),
        (10 * 2**30, 10.0, "10 GiB of 10 GiB, 1 GiB/s, 0:00:00 left"),
        (20 * 2**30, 20.0, "20 GiB of 10 GiB, 1 GiB/s, 0:00:00 left"),
    ],
)
def test_progress_tells_rate_and_time_left(done: int, seconds: float, words: str) -> None:
    """By the mean since it began, as groups take long and unlike times; in powers of 1024."""
    assert progress.pace(done, 10 * 2**30, seconds, in_bytes=True) == words


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [
        (0, None, 3.0, ""),
        (12_000, None, 4.0, "12,000 files, 3,000 files/s"),
        (1, 2_000, 1.0, "1 of 2,000 files, 1 file/s, 0:33:19 left"),
    ],
)
def test_files_are_counted(done: int, total: int | None, seconds: float, words: str) -> None:
    """Without a total as long as they are looked for."""
    assert progress.pace(done, total, seconds, in_bytes=False) == words


def test_an_error_is_one_line_and_markup_in_it_is_text() -> None:
    """Messages may hold brackets and line breaks."""
    told = printed(lambda console: show_error(console, "Cannot open '[bold]x[/]':\nwhy"))
    assert told == "icesize: Cannot open '[bold]x[/]': why\n"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (512 * MIB, "512 MiB"),
        (2**30 - 1, "1 GiB"), (int(9.6 * 2**30), "9.6 GiB"), (1023 * MIB, "1,023 MiB"), (2**60, "1,024 PiB"),
    ],
)  # fmt: skip
def test_sizes_are_printed_in_powers_of_1024(size: int, words: str) -> None:
    """MiB is 2**20, and no size is printed as 1,024 of a unit that has a next one."""
    assert format_bytes(size) == words


@given(st.integers(0, 2**60))
def test_printed_sizes_are_close_to_the_truth(size: int) -> None:
    """What is printed is at most 0.5 % or 0.05 of the unit away."""
    number, unit = format_bytes(size).replace(",", "").split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert abs(float(number) * factor - size) <= max(0.0501 * factor, 0.005 * size)


def test_one_is_not_a_plural() -> None:
    """1 file, 2 files, 2 batches."""
    assert [format_count(n, "batch") for n in (1, 2)] == ["1 batch", "2 batches"]
    assert [format_count(n, "file") for n in (0, 1, 1_212)] == ["0 files", "1 file", "1,212 files"]


@pytest.mark.parametrize("width", [80, 150])
def test_columns_fit_a_terminal(width: int) -> None:
    """Histories and versions do without some columns, and name them; a wide terminal and a pipe have all."""
    batch = PastCommit(
        (1, 2), 1_700_000_000_000, "batch", "append+replace", "clicks", 17, None, 20_000, 0, 3, 5, 2, 1,
        2**20, 3 * 2**20, 2.5, 4, 120, 12, 2**30, 10**6, 1.234,
    )  # fmt: skip
    version = Version(
        {"hour": "h07"}, "hour=h07", PartitionKey(0, ("h07",)), 2**62, 1_700_000_000_000, "append+replace",
        16, 407_552, 16_000, "clicks", 17,
    )  # fmt: skip
    for blocks in (
        tables.history(History("lake.db.t", (batch,), 1, 1_699_000_000_000)),
        tables.versions("lake.db.t", [version]),
    ):
        told = re.sub(r"\x1b\[[0-9;]*m", "", shown(blocks, width=width, terminal=True))
        lines = [line for line in told.splitlines() if not line.startswith("lake.db.t")]
        table = [line for line in lines if not line.startswith("hidden in ")]
        assert len(table) == 2
        assert all(len(line) <= width for line in table)
        assert (len(lines) > 2) == (width == 80)


def test_a_history_is_a_table_with_blanks() -> None:
    """One line per commit, numbers to the right, nothing where a commit does not tell; a sum in the first line."""
    batch = PastCommit(
        (1, 2), 1_700_000_000_000, "batch", "append+replace", "clicks", 17, None, 20_000, 0, 3, 5, 0, 1,
        2**20, 3 * 2**20, 2.5, 4, 120, 0, 2**30, 10**6, 1.234,
    )  # fmt: skip
    other = PastCommit((3,), 1_699_999_000_000, "other", "append", writer="spark 4.1.4")
    lines = shown(tables.history(History("lake.db.t", (batch, other), 9, 1_699_000_000_000))).splitlines()
    assert lines[0] == ("lake.db.t  9 commits since 2023-11-03 08:26:40  write amplification 2.50  median batch 1.2 s")
    assert " ".join(lines[1].split()) == (
        "time (UTC) kind by rows files deletes ingested written write amp amp so far small total delete files seconds"
    )
    assert " ".join(lines[2].split()) == (
        "2023-11-14 22:13:20 batch clicks batch 17 20,000 +3 -5 +0 -1 1 MiB 3 MiB 3.00 2.50 4 120 0 1.23"
    )
    assert lines[3] == "2023-11-14 21:56:40  other  spark 4.1.4"
    assert lines[4:] == ["and 7 older commits: use --limit 9 for all"]
    assert len(lines[1]) > 80, "a pipe gets all columns"
    others_alone = shown(tables.history(History("lake.db.t", (other,), 1))).splitlines()
    assert others_alone[1:] == ["time (UTC)           kind   by", lines[3]]
    assert shown(tables.history(History("lake.db.t", ()))).splitlines() == [
        "lake.db.t  no history: nothing was ever written to it"
    ]


def test_a_blank_row_is_a_blank_line() -> None:
    """Cells of one row may all be empty."""
    table = Columns([("a", "b"), ("", " ")])
    assert ["".join(text for text, _ in line) for line in table.lines(Room())] == ["a  b", ""]
