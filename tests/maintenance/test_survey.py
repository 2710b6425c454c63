"""Surveys of catalogs: which tables are ranked, which names are skipped, and that nothing is written."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from icesize.maintenance.survey import scan
from icesize.planning.scan_cost import WorkCost
from tests.support.tables import arrow, make_table


def test_tables_are_ranked_by_what_maintenance_would_bring(catalog: Catalog) -> None:
    """The table with most files to merge comes first; a table without files needs nothing."""
    for name, appends in (("db.few", 2), ("db.many", 6), ("db.none", 0)):
        table = make_table(catalog, name=name)
        for number in range(appends):
            table.append(arrow([number]))
    found = scan("lake", catalog=catalog)
    assert [(table.table, table.files, table.files_saved) for table in found.tables] == [
        ("lake.db.many", 6, 5), ("lake.db.few", 2, 1), ("lake.db.none", 0, 0),
    ]  # fmt: skip
    assert (found.skipped, found.doubts) == ((), ())
    empty = found.tables[-1]
    assert (empty.health, empty.work, empty.snapshot_id) == (100, WorkCost(), None)
