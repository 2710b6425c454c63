"""Each way to break a table is found, and repaired or refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.maintenance.verify.repair import RepairReport
from icesize.maintenance.verify.verification import Verification
from tests.support.breakages import BREAKAGES, Breakage, Broken
from tests.support.tables import ids_of, move_ref, removed_and_live, writing

REPAIRED = [each for each in BREAKAGES if each.rows is not None]
REFUSED = [each for each in BREAKAGES if each.rows is None]


def broken(catalog: SqlCatalog, breakage: Breakage) -> Broken:
    table = Broken.new(catalog, breakage.version)
    breakage.breaks(table)
    return table


def verified(catalog: SqlCatalog) -> Verification:
    return icesize.open(None, "db.t", catalog=catalog).verify(deep=True)


def repaired(catalog: SqlCatalog, *, dry_run: bool = False) -> RepairReport:
    """Repair the table; if a dry run asks for the number of lost files, confirm it."""
    table = icesize.open(None, "db.t", catalog=catalog)
    planned = table.repair(deep=True, dry_run=True)
    asked = re.search(r"--lost-files (\d+)", " ".join(finding.advice for finding in planned.refused))
    return table.repair(deep=True, dry_run=dry_run, lost_files=int(asked[1]) if asked else None)


def current(catalog: SqlCatalog) -> Verification:
    """Only the newest snapshot: older ones keep what was wrong with them."""
    return icesize.open(None, "db.t", catalog=catalog).verify(deep=True, current=True)


def test_a_table_before_it_breaks(lake: SqlCatalog) -> None:
    """Nothing is found, and nothing is repaired."""
    Broken.new(lake, 2)
    assert verified(lake).findings == ()
    report = repaired(lake)
    assert (report.repairs, report.refused, report.snapshot_ids) == ((), (), ())
    assert str(report) == "lake.db.t: nothing to repair"


@pytest.mark.parametrize("breakage", REPAIRED, ids=lambda breakage: breakage.name)
def test_what_is_repaired(lake: SqlCatalog, breakage: Breakage) -> None:
    """A dry run changes nothing; after the repair nothing is found, the rows are right, and no live file is removed."""
    it = broken(lake, breakage)
    before, found = it.table.metadata, verified(lake)
    assert breakage.rule in {finding.rule for finding in found.findings}
    planned = repaired(lake, dry_run=True)
    assert it.table.metadata == before
    report = repaired(lake)
    assert [(each.kind, each.findings) for each in report.repairs] == [
        (each.kind, each.findings) for each in planned.repairs
    ]
    # one commit may put several kinds right
    assert report.repairs[0].snapshot_id is not None
    assert current(lake).findings == ()
    assert ids_of(lake) == list(breakage.rows or ())
    assert removed_and_live(it.table) == set()
    assert repaired(lake).repairs == ()


@pytest.mark.parametrize("breakage", REPAIRED, ids=lambda breakage: breakage.name)
def test_a_rollback_takes_the_repair_back(lake: SqlCatalog, breakage: Breakage) -> None:
    """At the snapshot before, the same is found again."""
    it = broken(lake, breakage)
    found = current(lake).findings
    head = it.table.metadata.current_snapshot_id
    assert head is not None
    repaired(lake)
    table = it.table
    writing(lake, table).commit_table(table, (), (move_ref(table.metadata, "main", head),))
    assert current(lake).findings == found


@pytest.mark.parametrize("breakage", REFUSED, ids=lambda breakage: breakage.name)
def test_what_is_refused(lake: SqlCatalog, breakage: Breakage) -> None:
    """The finding is named with the reason or with what to do, and the table stays as it is."""
    it = broken(lake, breakage)
    found = verified(lake).findings
    assert breakage.rule in {finding.rule for finding in found}
    before = it.table.metadata
    report = repaired(lake)
    refused = {finding.rule: finding.advice for finding in report.refused}
    assert refused[breakage.rule]
    assert report.repairs == ()
    assert it.table.metadata == before


def test_rows_that_are_lost_are_counted(lake: SqlCatalog) -> None:
    """By partition, before and after the repair."""
    broken(lake, next(each for each in BREAKAGES if "partition" in each.name and each.rule == "missing files"))
    assert repaired(lake, dry_run=True).rows_lost == {"kind=a": 6}
    report = repaired(lake)
    assert report.rows_lost == {"kind=a": 6}
    assert "  6 rows of kind=a are lost" in str(report).splitlines()


_ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| (repaired|refused) \| (.*?) \|$", re.MULTILINE)
"""A row of the list: what is broken, the rule that finds it, the outcome, and a link."""


def test_the_list_has_each_breakage() -> None:
    """The list beside this module has a row for each, with the rule and what a repair does, and no other."""
    rows = _ROW.findall((Path(__file__).parent / "README.md").read_text(encoding="utf-8"))
    assert sorted(row[:3] for row in rows) == sorted(
        (each.name, each.rule, "refused" if each.rows is None else "repaired") for each in BREAKAGES
    )
