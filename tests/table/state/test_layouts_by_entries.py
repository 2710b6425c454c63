"""A layout out of the store is the one that is made entry by entry, whatever has happened to the table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import In
from pyiceberg.manifest import FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import PartitionKey
from icesize.planning.merging.standing import Standing
from icesize.policy import SizePolicy
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore, Memory
from icesize.table.state.layouts import LayoutReader
from tests.support.entry_layouts import layout_by_entries, plain
from tests.support.examples import examples
from tests.support.parquet_files import data_file
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    append,
    compact,
    expire,
    make_table,
    request_on,
    rewrite_manifests,
    run,
    small_files,
    sqlite_catalog,
    write,
)

POLICY = SizePolicy(target_file_size_bytes=2**20, max_small_files=1, max_delete_files=1)
WAYS = ((1, True), (1, False), (1_000, True), (2**20, True))
"""Small file limits, by which all files are large, some of them or none, and whether deletes are applied."""


def check(table: Table, stores: Sequence[ManifestStore]) -> None:
    """Layouts are those that are made entry by entry, and their summary is that of all their partitions."""
    for limit, apply_deletes in WAYS:
        expected = layout_by_entries(table, limit, apply_deletes)
        for store in stores:
            layout = LayoutReader(limit, apply_deletes, store, POLICY).read(table.metadata, table.io)
            assert plain(layout) == expected
            assert layout.standing == Standing(POLICY).changed((), layout.partitions.values())


def listed_again(catalog: Catalog, kind: str) -> None:
    """A file of partition `a` listed once more."""
    table = catalog.load_table("db.t")
    file = write(table, [7], "a")
    run(catalog, request_on(table, [file]), table)
    table = catalog.load_table("db.t")
    key = replace(file.partition, values=(kind, *file.partition.values[1:]))
    run(catalog, request_on(table, [replace(file, partition=key)]), table)


@pytest.mark.engine
def test_a_table_to_which_everything_has_happened(lake: SqlCatalog) -> None:
    """Old specs, deletes of both kinds, files listed twice, ORC and encrypted files, an upgrade, expiry: each step is
    read by a new store, by one that has read all steps, and by one that has no room."""
    make_table(lake, properties={"format-version": "1"})
    memory = Memory(2_000)
    old, full = ManifestStore(), ManifestStore(memory)
    steps = [
        lambda: append(lake, [1, 2], "a"),
        lambda: append(lake, range(500), "b"),
        lambda: listed_again(lake, "b"),
        lambda: lake.load_table("db.t").transaction().upgrade_table_version(2).commit_transaction(),
        lambda: append(lake, [3], "a"),
        lambda: delete_rows(lake, small_files(lake.load_table("db.t"), "b")[0], [0, 1]),
        lambda: delete_ids(lake, small_files(lake.load_table("db.t"), "a")[0], [99]),
        lambda: add_odd_files(lake.load_table("db.t")),
        lambda: lake.load_table("db.t").update_spec().add_field("id", "bucket[2]", "id_bucket").commit(),
        lambda: append(lake, [4], "a"),
        lambda: rewrite_manifests(lake),
        lambda: expire(lake.load_table("db.t"), keep=2),
        lambda: append(lake, [5], "b"),
    ]
    for step in steps:
        step()
        check(lake.load_table("db.t"), [ManifestStore(), old, full])
    assert memory.held_bytes <= 2_000


def add_odd_files(table: Table) -> None:
    """An ORC file and an encrypted one, as their manifests tell."""
    orc, encrypted = (data_file(write(table, [i])) for i in range(2))
    orc[2], encrypted[12] = FileFormat.ORC, b"key"
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(orc)
        producer.append_data_file(encrypted)


def test_partitions_of_nan_and_of_both_zeros(lake: SqlCatalog) -> None:
    """Each file of NaN is a partition of its own, also after its manifest was read again, and 0.0 is not -0.0."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k"))
    schema = Schema(NestedField(1, "k", DoubleType()), NestedField(2, "id", LongType()))
    table = lake.create_table("db.t", schema, partition_spec=spec)
    settings = WriteSettings.of(table.metadata, table.io.properties, 10_000_000)
    values = (math.nan, 0.0, -0.0, math.nan, 1.0)
    files = []
    for number, value in enumerate(values):
        (file,) = write_rows([pa.table({"k": [1.0], "id": [number]})], settings, FileNames("n", number, 0))
        files.append(replace(file, partition=PartitionKey.of(0, (value,))))
    run(lake, request_on(table, files), table)
    table = lake.load_table("db.t")
    old, full = ManifestStore(), ManifestStore(Memory(500))
    check(table, [ManifestStore(), old, full])
    delete_rows(lake, small_files(table)[0])
    check(lake.load_table("db.t"), [ManifestStore(), old, full])
    assert len(LayoutReader(1, store=old).read(table.metadata, table.io).partitions) == len(values)


STEPS = (
    "small", "large", "merge", "rows", "ids", "again", "manifests", "overwrite",
    "expire", "spec", "upgrade", "rollback",
)  # fmt: skip


@pytest.mark.engine
@examples(20)
@given(
    version=st.sampled_from(["1", "2"]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.sampled_from("ab"),
        ),
        min_size=2,
        max_size=12,
    ),
)
def test_any_history(tmp_path_factory: pytest.TempPathFactory, version: str, steps: list[tuple[str, str]]) -> None:
    """Whatever happens in whatever order, a store that has seen it all agrees with the entries."""
    catalog = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    make_table(catalog, properties={"format-version": version})
    store = ManifestStore()
    for number, (what, kind) in enumerate(steps):
        change(catalog, what, kind, number)
        check(catalog.load_table("db.t"), [store])
    catalog.close()


def change(catalog: Catalog, what: str, kind: str, number: int) -> None:
    """One step of a history; an append where that step is not possible."""
    table = catalog.load_table("db.t")
    files = [f for f in small_files(table) if f.partition.values[0] == kind and f.obstacle is None]
    has_deletes = table.metadata.format_version > 1
    is_one = len({f.partition for f in files}) == 1 and files == small_files(table, kind)
    if what == "merge" and len(files) > 1 and is_one:
        compact(catalog, kind)
    elif what == "rows" and files and has_deletes:
        delete_rows(catalog, files[-1])
    elif what == "ids" and files and has_deletes:
        delete_ids(catalog, files[0], [number])
    elif what == "again":
        listed_again(catalog, kind)
    elif what == "manifests" and files:
        rewrite_manifests(catalog)
    elif what == "overwrite" and files and can_overwrite(table):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyIceberg warns if no row is left that matches
            table.delete(In("id", {1000 * earlier for earlier in range(number)}))
    elif not change_metadata(table, what):
        append(catalog, range(number * 1000, number * 1000 + (400 if what == "large" else 1)), kind)


def can_overwrite(table: Table) -> bool:
    """PyIceberg overwrites no rows beside delete files, and writes years only with another package."""
    manifests = manifests_of(table.current_snapshot(), table.io, table.metadata.specs())
    return not manifests.deletes and len(table.metadata.partition_specs) == 1


def change_metadata(table: Table, what: str) -> bool:
    """One step that leaves all manifests as they are; False where it is not possible."""
    metadata = table.metadata
    if what == "expire" and len(metadata.snapshots) > 1:
        ids = [snapshot.snapshot_id for snapshot in metadata.snapshots]
        table.maintenance.expire_snapshots().by_ids([i for i in ids if i != metadata.current_snapshot_id]).commit()
    elif what == "spec" and len(metadata.partition_specs) == 1:
        table.update_spec().add_field("ts", "year", "year").commit()
    elif what == "upgrade" and metadata.format_version == 1:
        table.transaction().upgrade_table_version(2).commit_transaction()
    elif what == "rollback" and len(metadata.snapshots) > 1:
        table.manage_snapshots().set_current_snapshot(snapshot_id=metadata.snapshots[0].snapshot_id).commit()
    else:
        return False
    return True
