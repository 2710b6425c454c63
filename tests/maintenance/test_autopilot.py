"""Settings that a table chooses by itself: once a day, with a reason, below what people set, and stored once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

import icesize
from icesize.environment import Environment
from icesize.errors import TableError
from icesize.maintenance.autopilot import AutopilotReport, SettingChange, question
from icesize.maintenance.fleet import Fleet
from icesize.maintenance.rounds import Budget
from icesize.planning.advice.autopilot import Question
from icesize.planning.reads import Reads
from icesize.policy import AUTO_PROPERTY
from icesize.sized_table import SizedTable
from icesize.table.autopilot_settings import AutopilotRecord, keep_choice
from icesize.table.catalog.tables import TablePattern
from icesize.table.cluster_settings import resolve
from icesize.table.commit.submit import change
from icesize.table.state.handle import TableHandle
from tests.support.jobs import context_of
from tests.support.tables import ids_of, make_table, request_on, run, write

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AUTO = {"icesize.policy.auto": "true"}
OFTEN = ["kind is not null"] * 3_000
"""A log of so many scans of all partitions that small files cost more than merges."""


class Days:
    """A table with a commit an hour for a bit more than a day, on a clock that goes on when it is told to."""

    def __init__(self, lake: SqlCatalog, commits: int = 30, pause_ms: int = HOUR_MS, **properties: str) -> None:
        self.lake = lake
        table = make_table(lake, properties=properties)
        self.now_ms = table.metadata.last_updated_ms + 1
        for number in range(commits):
            rows = [write(table, range(10 * number, 10 * number + 10))]
            run(lake, request_on(table, rows, batch=number), table, now_ms=self.now_ms)
            self.now_ms += pause_ms
            table = lake.load_table("db.t")

    def open(self, **policy: object) -> SizedTable:
        """The table, as a pass of maintenance opens it now."""
        environment = Environment(now_ms=lambda: self.now_ms)
        return icesize.open(None, "lake.db.t", catalog=self.lake, environment=environment, policy=policy or None)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return dict(self.lake.load_table("db.t").properties)

    @property
    def record(self) -> AutopilotRecord:
        """What is stored."""
        return AutopilotRecord.of(self.properties)


@pytest.fixture
def days(lake: SqlCatalog) -> Days:
    """Such a table with `auto`."""
    return Days(lake, **AUTO)


def test_a_choice_is_stored_and_used(days: Days) -> None:
    """Many reads ask for fewer small files: the policy of the next pass has them, and rows stay as they are."""
    rows = ids_of(days.lake)
    report = days.open().tune(OFTEN)
    assert report.changes == (SettingChange("max-small-files", 6, 2),)
    assert report.is_changed
    assert report.gain > 0.3
    assert report.files_per_read_then < report.files_per_read_now
    assert report.write_amplification_then > report.write_amplification_now
    assert report.reason == (
        "24 commits a day add 821 B to each of 1.0 partitions; the log of queries shows 3,000 reads a day"
    )
    assert days.open().policy.max_small_files == 2
    assert days.record.reads == (Reads(3_000.0),)
    assert (days.record.looked_ms, days.record.changed_ms) == (days.now_ms, days.now_ms)
    assert days.record.why == report.reason
    assert ids_of(days.lake) == rows


def test_a_pass_chooses_once_a_day(days: Days) -> None:
    """Within a day of the last look nothing is read for it; after it, with the stored reads."""
    first = days.open().maintain().autopilot
    assert first is not None
    assert "without a log of queries, it assumes 24 reads a day" in first.reason
    days.now_ms += DAY_MS - 1
    assert days.open().maintain().autopilot is None
    days.now_ms += 1
    again = days.open().maintain().autopilot
    assert again is not None
    assert days.record.looked_ms == days.now_ms


def test_a_change_waits_until_the_last_one_is_a_day_old(days: Days) -> None:
    """A new log changes the choice, is stored, and takes effect with the first look after the day."""
    changed = days.open().tune(OFTEN)
    assert changed.is_changed
    days.now_ms += 3 * HOUR_MS
    waiting = days.open().tune(["kind is not null"])
    assert waiting.waits == "the last change is 3 hours old, and the next one waits until it is a day old"
    assert (bool(waiting.changes), waiting.is_changed) == (True, False)
    assert days.open().policy.max_small_files == 2
    assert days.record.reads == (Reads(1.0),)
    days.now_ms += DAY_MS
    later = days.open().maintain()
    assert later.autopilot is not None
    assert later.autopilot.changes[0].key == "max-small-files"
    assert later.autopilot.is_changed
    assert later.is_changed
    assert days.open().policy.max_small_files > 2


def test_people_see_what_changed_and_why(days: Days) -> None:
    """The choice of one table has the costs before and after; a pass over many tables has a line for each choice."""
    lines = str(days.open().tune(OFTEN)).splitlines()
    assert lines[0].startswith("lake.db.t: settings change  4")
    assert [line.split() for line in lines[1:3]] == [["setting", "before", "after"], ["max-small-files", "6", "2"]]
    assert lines[-1].endswith("the log of queries shows 3,000 reads a day")
    days.now_ms += 2 * DAY_MS
    days.open().tune(["kind is not null"], dry_run=True)
    record = replace(days.record, reads=(Reads(1.0),))
    store_choice(days, record, days.record)
    environment = Environment(now_ms=lambda: days.now_ms)
    report = Fleet(days.lake, TablePattern.of("lake.db.*"), environment).run(Budget())
    assert "lake.db.t: max-small-files 2 -> " in str(report)
    assert "% less cost: 9 commits a day add 821 B to each of 1.0 partitions" in str(report)
    assert str(days.open().tune(dry_run=True)).splitlines()[0] == "lake.db.t: its settings cost least"


def test_a_dry_run_stores_nothing(lake: SqlCatalog) -> None:
    """It needs no `auto`, and a pass plans the choice in the same way."""
    days = Days(lake)
    assert days.open().tune(OFTEN, dry_run=True).is_changed
    assert days.open().maintain(dry_run=True).autopilot is None
    assert days.open(auto=True).maintain(dry_run=True).autopilot is not None
    assert AUTO_PROPERTY not in days.properties


def test_without_auto_nothing_is_chosen(lake: SqlCatalog) -> None:
    """A pass leaves the table alone, and a call says what is missing."""
    days = Days(lake)
    assert days.open().maintain().autopilot is None
    with pytest.raises(TableError) as raised:
        days.open().tune(OFTEN)
    assert str(raised.value) == (
        "Cannot tune 'lake.db.t': its policy has no 'auto'. Set the table's property icesize.policy.auto=true; "
        "--dry-run shows the choice without it"
    )
    assert AUTO_PROPERTY not in days.properties


def test_what_people_set_stays(lake: SqlCatalog) -> None:
    """A property of the table is not overridden, and what remains to choose is chosen."""
    days = Days(lake, **AUTO, **{"icesize.policy.max-small-files": "6"})
    assert "max-small-files" not in [change.key for change in days.open().tune(OFTEN).changes]
    assert days.open().policy.max_small_files == 6
    assert days.open(max_small_files=9).tune(OFTEN).changes == ()


def test_few_commits_say_nothing(lake: SqlCatalog) -> None:
    """A choice waits for six hours and 20 commits; a log is stored already, and the pass goes on."""
    days = Days(lake, commits=3, **AUTO)
    why = "3 commits with rows in 3.0 hours are known, and a choice needs 20 in 6 hours"
    assert days.open().tune() == AutopilotReport("lake.db.t", waits=why)
    assert AUTO_PROPERTY not in days.properties
    assert days.open().tune(["id = 7"]).waits == why
    assert days.record.reads == (Reads(1.0, None, 0, ("id",), 0.3),)
    report = days.open().maintain()
    assert report.autopilot is not None
    assert report.autopilot.waits == why
    assert report.succeeded


def test_a_table_with_upserts_is_left_alone(lake: SqlCatalog) -> None:
    """Their merges depend on deleted rows, which the simulation does not know."""
    days = Days(lake, **AUTO)
    with lake.load_table("db.t").transaction() as change:
        change.set_properties({"icesize.upsert": '{"version": 1, "key": [1], "order": [3]}'})
    assert days.open().tune(dry_run=True).waits == "the table has upserts, and only appends can be simulated"


def test_columns_of_the_queries_become_the_clustering(lake: SqlCatalog) -> None:
    """They are stored for every writer with their ids; the sort order of the table stays as it is."""
    days = Days(lake, **AUTO)
    record = AutopilotRecord(cluster_by=("id",), reads=(Reads(5.0, None, 0, ("id",)),))
    store_choice(days, record, AutopilotRecord())
    assert days.properties["icesize.cluster.by"] == "id"
    assert days.properties["icesize.cluster.field-ids"] == "1:id"
    assert lake.load_table("db.t").sort_order().is_unsorted
    assert days.open().plan_clustering() is not None
    store_choice(days, AutopilotRecord(looked_ms=7), record)
    assert "icesize.cluster.by" not in days.properties
    assert days.record.looked_ms == 7


def test_a_clustering_of_people_stays(lake: SqlCatalog) -> None:
    """Columns that somebody else stored are neither changed nor removed."""
    days = Days(lake, **AUTO, **{"icesize.cluster.by": "ts"})
    assert days.open().tune(["id = 7"] * 5_000).waits == ""
    store_choice(days, replace(days.record, looked_ms=days.now_ms + 1), days.record)
    assert days.properties["icesize.cluster.by"] == "ts"


def test_a_clustering_that_people_changed_is_theirs(lake: SqlCatalog) -> None:
    """After the autopilot chose columns, somebody stored others: these stay, and so does their removal."""
    days = Days(lake, **AUTO)
    store_choice(days, AutopilotRecord(cluster_by=("id",)), AutopilotRecord())
    days.open().cluster("ts")
    days.open().tune(OFTEN)
    assert days.properties["icesize.cluster.by"] == "ts"
    days.open().forget_clustering()
    for _ in range(2):
        days.now_ms += 2 * DAY_MS
        days.open().tune(["id = 7"] * 5_000)
        assert question_of(days).fixed == frozenset({"cluster_by"})
    assert "icesize.cluster.by" not in days.properties


def test_a_sort_order_of_people_is_a_clustering(lake: SqlCatalog) -> None:
    """Their writers sort already, so that no other columns are chosen."""
    days = Days(lake, **AUTO)
    with lake.load_table("db.t").update_sort_order() as order:
        order.asc("ts", IdentityTransform())
    assert question_of(days).fixed == frozenset({"cluster_by"})


def test_columns_that_changed_since(lake: SqlCatalog) -> None:
    """A renamed column stays the one that is clustered by; without a dropped one, the table is no longer clustered."""
    days = Days(lake, **AUTO)
    store_choice(days, AutopilotRecord(cluster_by=("id",)), AutopilotRecord())
    with lake.load_table("db.t").update_schema() as schema:
        schema.rename_column("id", "number")
    assert question_of(days).present.cluster_by == ("number",)
    assert question_of(days).fixed == frozenset()
    with lake.load_table("db.t").update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("number")
    assert question_of(days).present.cluster_by == ()
    days.open().tune()
    assert "icesize.cluster.by" not in days.properties
    assert days.record.cluster_by == ()


def test_a_table_that_keeps_snapshots_for_hours(lake: SqlCatalog) -> None:
    """Its commits are enough even if they do not cover six hours, because they never will."""
    days = Days(lake, commits=23, pause_ms=600_000, **AUTO)
    assert days.open().tune(dry_run=True).waits.startswith("23 commits with rows in 3.8 hours are known")
    days.open().expire_snapshots(older_than=timedelta(0), retain_last=21)
    assert days.open().tune(OFTEN).waits == ""


def test_looks_that_come_to_nothing(days: Days) -> None:
    """A log of comments keeps the reads, a look of another clock does not stop later ones."""
    days.open().tune(OFTEN)
    days.now_ms += 2 * DAY_MS
    days.open().tune(["# nothing"])
    assert days.record.reads == (Reads(3_000.0),)
    store_choice(days, replace(days.record, looked_ms=days.now_ms + 99 * DAY_MS), days.record)
    assert days.open().maintain().autopilot is not None


def test_commits_that_came_at_once_are_not_those_of_each_second(lake: SqlCatalog) -> None:
    """A load of many commits in a minute, a day ago, is one of that day."""
    days = Days(lake, commits=25, pause_ms=1_000, **AUTO)
    days.now_ms += DAY_MS
    assert days.open().tune().reason.startswith("25 commits a day add")


def question_of(days: Days) -> Question:
    """What may be chosen for the table."""
    handle = TableHandle(days.lake, ("db", "t"))
    context = context_of(handle, Environment(now_ms=lambda: days.now_ms))
    return question(context, handle.load(), days.record)


def test_of_two_processes_one_chooses(days: Days) -> None:
    """The second one finds that the table has another record than the one that it began with."""
    assert store_choice(days, AutopilotRecord(looked_ms=1), AutopilotRecord())
    assert not store_choice(days, AutopilotRecord(looked_ms=2), AutopilotRecord())
    assert days.record.looked_ms == 1


def store_choice(days: Days, record: AutopilotRecord, old: AutopilotRecord) -> bool:
    """Store a record on top of an older one, as a process does that looked at the table before."""
    handle, environment = TableHandle(days.lake, ("db", "t")), Environment(now_ms=lambda: days.now_ms)
    current = handle.load()
    by = resolve(current.table.metadata, current.policy, record.cluster_by) if record.cluster_by else None
    return change(handle, current, keep_choice(record, by, old, environment.new_id()), environment)
