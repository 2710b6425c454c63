"""Files that filters open: those that a reader plans."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icesize.errors import ArgumentError
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.filter_scan import filters_asked, partition_columns
from icesize.table.state.layouts import LayoutReader
from tests.support.tables import append, arrow, make_table

FILTERS = (
    "id = 13", "id in (1, 25)", "id > 14", "not (id = 13)", "kind = 'a'", "kind = 'b' and id < 15",
    "id is null", "id = 13 or kind = 'b'",
)  # fmt: skip


@pytest.fixture
def table(lake: SqlCatalog):  # type: ignore[no-untyped-def]
    """Three files of ten ids each in partition a, one in b."""
    made = make_table(lake)
    for first, kind in ((0, "a"), (10, "a"), (20, "a"), (10, "b")):
        made.append(arrow(range(first, first + 10), kind))
    return made


def test_as_many_files_as_a_reader_plans(table) -> None:  # type: ignore[no-untyped-def]
    """Partitions and bounds rule out what PyIceberg's own scan leaves out."""
    keys = LayoutReader(1 << 30).read(table.metadata, table.io).partitions.keys()
    found = {use.text: use.files for use in filters_asked(table.metadata, table.io, FILTERS, keys, ManifestStore())}
    assert found == {text: len(list(table.scan(row_filter=text).plan_files())) for text in FILTERS}
    assert found["id = 13"] == 2


def test_columns_of_points_and_of_ranges(table) -> None:  # type: ignore[no-untyped-def]
    """Equality asks for single values, its negation and everything else do not; a filter counts as often as asked."""
    text = "id = 3 and not (kind in ('a', 'b')) or ts is null"
    [use] = filters_asked(table.metadata, table.io, [text, text], (), ManifestStore())
    assert (use.points, use.ranges, use.times, use.files) == (("id",), ("kind", "ts"), 2, 0)
    assert partition_columns(table.metadata) == {"kind"}


def test_what_is_no_filter_is_refused(lake: SqlCatalog) -> None:
    """Text that cannot be read, and columns that do not exist."""
    make_table(lake)
    metadata = append(lake, [1]).metadata
    for text in ("id =", "nosuch = 1"):
        with pytest.raises(ArgumentError):
            filters_asked(metadata, lake.load_table("db.t").io, [text], (), ManifestStore())
