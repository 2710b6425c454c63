"""Files that a table lists more than once: nothing that we do removes one listing while another stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

import icesize
from icesize.errors import UnsupportedTable
from icesize.planning.files import PartitionKey
from icesize.sized_table import SizedTable
from icesize.storage.locations import normalised
from icesize.table.manifests.entries import ADDED
from icesize.table.manifests.file_columns import EntryColumns, ManifestFacts
from icesize.table.manifests.live_arrays import Listing
from icesize.table.manifests.repeated_files import listed_twice
from tests.support.tables import append, ids_of, make_table, removed_and_live, request_on, run, write

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))
PATHS = ("file:///w/a", "file:/w/a", "/w/b", "s3://b/c", "s3a://b/c", "s3://b/d")
SAME = {"file:/w/a": "file:///w/a", "s3a://b/c": "s3://b/c"}


def listing_of(paths: list[str]) -> Listing:
    """The listing of a manifest with these files."""
    rows = [(ADDED, 1, 1, 1, path, "PARQUET", ("a",), 1, 1, None, None, None) for path in paths]
    manifest = ManifestFile.from_args(_table_format_version=2, manifest_path="m", partition_spec_id=0)
    return Listing.of(ManifestFacts(manifest, EntryColumns.of(0, rows, deletes=False)))


@given(manifests=st.lists(st.lists(st.sampled_from(PATHS), max_size=4), max_size=6))
def test_files_that_are_there_twice_are_found(manifests: list[list[str]]) -> None:
    """In one manifest or in several, and however a path is spelt."""
    times = Counter(SAME.get(path, path) for paths in manifests for path in paths)
    parts = [listing_of(paths) for paths in manifests]
    assert {name for path, count in times.items() if count > 1 for name in [normalised(path)]} == listed_twice(parts)


def test_different_paths_with_one_number_are_two_files() -> None:
    """Numbers only point to paths that may be equal."""
    paths = ["s3://b/c", "s3://b/d", "s3a://b/c"]
    assert listed_twice([replace(listing_of(paths[:2]), numbers=np.zeros(2, np.int64))]) == frozenset()
    assert listed_twice([replace(listing_of(paths), numbers=np.zeros(3, np.int64))]) == {"s3://b/c"}


def opened(catalog: SqlCatalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=catalog, policy={"max-small-files": 1})


def listed(catalog: SqlCatalog, *partitions: PartitionKey) -> Table:
    """Rows 1 to 3 in three files of partition `a`, the first of them listed again for each of the partitions."""
    table = make_table(catalog)
    file = write(table, [1])
    run(catalog, request_on(table, [file]), table)
    append(catalog, [2])
    append(catalog, [3])
    for key in partitions:
        table = catalog.load_table("db.t")
        run(catalog, request_on(table, [replace(file, partition=key)]), table)
    return catalog.load_table("db.t")


@pytest.mark.parametrize("again", [(A,), (A, A), (B,), (A, B)])
def test_files_listed_more_than_once_are_not_merged(lake: SqlCatalog, again: tuple[PartitionKey, ...]) -> None:
    """In the same partition or in another; the others are merged."""
    listed(lake, *again)
    rows = ids_of(lake)
    report = opened(lake).compact()
    assert (report.files_removed, report.files_added, report.skipped["LISTED_TWICE"]) == (2, 1, 1 + len(again))
    table = lake.load_table("db.t")
    assert (ids_of(lake), removed_and_live(table)) == (rows, set())
    assert opened(lake).compact().snapshot_ids == ()


def test_files_listed_under_two_specs_are_not_merged(lake: SqlCatalog) -> None:
    """In partitions of two specs."""
    table = make_table(lake, {})
    file = write(table, [1])
    run(lake, request_on(table, [file]), table)
    with lake.load_table("db.t").update_spec() as update:
        update.add_identity("kind")
    append(lake, [2])
    append(lake, [3])
    table = lake.load_table("db.t")
    again = replace(file, partition=PartitionKey(table.metadata.default_spec_id, ("a",)))
    run(lake, request_on(table, [again]), table)
    report = opened(lake).compact()
    assert (report.files_removed, report.skipped["LISTED_TWICE"]) == (2, 2)
    assert (ids_of(lake), removed_and_live(lake.load_table("db.t"))) == ([1, 1, 2, 3], set())


def test_a_filter_that_leaves_the_other_listing_out_is_refused(lake: SqlCatalog) -> None:
    """Manifests that it rules out are looked through before anything is rewritten; a plan does not."""
    listed(lake, B)
    sized = opened(lake)
    assert sized.plan("kind = 'a'").groups
    with pytest.raises(UnsupportedTable, match="the table lists this file more than once, and once outside the filter"):
        opened(lake).compact("kind = 'a'")
    assert ids_of(lake) == [1, 1, 2, 3]


def test_files_listed_twice_are_not_clustered(lake: SqlCatalog) -> None:
    """Clustering looks at files of any size; it leaves these out as merges do."""
    listed(lake, B)
    plan = opened(lake).plan_clustering(by=["id"])
    assert plan is not None
    assert plan.skipped_by_reason["LISTED_TWICE"] == 2
