"""Tables that are broken in one way each, as by damage that real writers are known to have made.

`BREAKAGES` has what each breakage does, the rule that finds it, and whether a repair puts it right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate
from pyiceberg.typedef import TableVersion

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.manifest_lists import encoded_list, first_row_id_of, manifests_in
from tests.support.delete_files import commit_row_delta, delete_positions, equality_deletes
from tests.support.puffin import add_deletes, vectors_in_puffin
from tests.support.tables import (
    append,
    commit_built,
    local,
    make_table,
    overwritten,
    request_on,
    run,
    small_files,
    write,
)
from tests.support.v3_tables import as_v3, with_document

A, B = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))
PLACES = {
    "manifest_length": 1, "sequence_number": 4, "min_sequence_number": 5, "added_files_count": 7,
    "added_rows_count": 10, "partitions": 13, "first_row_id": 15,
}  # fmt: skip


def relist(table: Table, change: Callable[[list[ManifestFile]], Sequence[ManifestFile]]) -> None:
    """Write the manifest list of the newest snapshot again, with other manifests."""
    head = table.metadata.current_snapshot()
    assert head is not None
    write_list(table, head, change(manifests_in(head, table.io, table.metadata.specs())))


def write_list(table: Table, head: Snapshot, manifests: Sequence[ManifestFile], version: TableVersion = 3) -> None:
    """Write the manifest list of a snapshot again, as in a format version that the table had at most."""
    written = encoded_list(
        min(version, table.metadata.format_version), manifests, snapshot_id=head.snapshot_id,
        parent_id=head.parent_snapshot_id, sequence_number=head.sequence_number or 0,
    )  # fmt: skip
    with table.io.new_output(head.manifest_list).create(overwrite=True) as stream:
        stream.write(written.data)


def changed(manifest: ManifestFile, **values: Any) -> ManifestFile:
    """The manifest as a list with other values would name it."""
    parts = [manifest[place] for place in range(len(manifest))]
    for name, value in values.items():
        assert parts[PLACES[name]] == getattr(manifest, name, first_row_id_of(manifest))
        parts[PLACES[name]] = value
    return ManifestFile(*parts)


def relisted(**values: Any) -> Callable[[Broken], None]:
    """The first manifest gets other values in the list."""
    return lambda it: relist(it.table, lambda manifests: [changed(manifests[0], **values), *manifests[1:]])


@dataclass(frozen=True)
class Broken:
    """A table with rows 1 to 3 and 4 to 6 in two files of partition `a`, and row 7 in one of `b`."""

    catalog: SqlCatalog

    @classmethod
    def new(cls, catalog: SqlCatalog, version: int) -> Broken:
        make_table(catalog)
        if version == 3:
            as_v3(catalog)
        for ids, kind in (((1, 2, 3), "a"), ((4, 5, 6), "a"), ((7,), "b")):
            append(catalog, ids, kind)
        return cls(catalog)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    @property
    def files(self) -> list[FileFact]:
        """The three data files, oldest first."""
        return small_files(self.table)

    @property
    def head_manifests(self) -> list[ManifestFile]:
        return manifests_in(self.table.metadata.current_snapshot(), self.table.io, self.table.metadata.specs())

    def commit(self, change: Callable[[NewDataFile], NewDataFile], ids: tuple[int, ...] = (8, 9)) -> NewDataFile:
        """Commit a file of partition `a` whose entry has other facts."""
        table = self.table
        file = write(table, ids)
        run(self.catalog, request_on(table, [change(file)]), table)
        return file

    def again(self, file: NewDataFile) -> None:
        """Commit a file once more, as a retried commit does."""
        run(self.catalog, request_on(self.table, [file]), self.table)


def entry(change: Callable[[NewDataFile], NewDataFile]) -> Callable[[Broken], None]:
    """A file is committed whose entry has other facts."""

    def breaks(it: Broken) -> None:
        it.commit(change)

    return breaks


def _gone(it: Broken) -> None:
    local(it.files[0].path).unlink()


def _partition_gone(it: Broken) -> None:
    for file in small_files(it.table, "a"):
        local(file.path).unlink()


def _gone_with_deletes(it: Broken) -> None:
    delete_positions(it.table, {it.files[0].path: [0]}, A)
    local(it.files[0].path).unlink()


def _manifest_gone(it: Broken) -> None:
    local(it.head_manifests[0].manifest_path).unlink()


def _manifest_cut(it: Broken) -> None:
    path = local(it.head_manifests[0].manifest_path)
    path.write_bytes(path.read_bytes()[:-40])


def _list_gone(it: Broken) -> None:
    local(it.table.metadata.snapshots[-1].manifest_list).unlink()


def _older_list_gone(it: Broken) -> None:
    local(it.table.metadata.snapshots[0].manifest_list).unlink()


def _deletes_gone(it: Broken) -> None:
    delete_positions(it.table, {it.files[0].path: [0]}, A)
    _delete_file_gone(it)


def _delete_file_gone(it: Broken) -> None:
    (manifest,) = (each for each in it.head_manifests if each.content == ManifestContent.DELETES)
    for each in read_entries(it.table.io, manifest):
        local(each.path).unlink()


def _vector_gone(it: Broken) -> None:
    add_deletes(it.catalog, vectors_in_puffin(it.table, {it.files[0]: [0]}))
    _delete_file_gone(it)


def _dangling_gone(it: Broken) -> None:
    delete_positions(it.table, {"file:///gone.parquet": [0]}, A)
    _delete_file_gone(it)


def _statistics_gone(it: Broken) -> None:
    head = it.table.metadata.snapshots[-1].snapshot_id
    file = StatisticsFile(
        snapshot_id=head, statistics_path=f"{it.table.location()}/metadata/gone.stats", file_size_in_bytes=4,
        file_footer_size_in_bytes=1, blob_metadata=[],
    )  # fmt: skip
    it.catalog.commit_table(it.table, (), (SetStatisticsUpdate(snapshot_id=head, statistics=file),))


def _cut_off(it: Broken) -> None:
    path = local(it.files[0].path)
    path.write_bytes(path.read_bytes()[:-100])


def _flipped(it: Broken) -> None:
    path = local(it.files[0].path)
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF
    path.write_bytes(data)


def _totals(it: Broken) -> None:
    def change(document: dict[str, Any]) -> None:
        document["snapshots"][-1]["summary"]["total-records"] = "99"

    with_document(it.catalog, change)


def _ref(it: Broken) -> None:
    def change(document: dict[str, Any]) -> None:
        document["refs"]["gone"] = {"snapshot-id": 7, "type": "tag"}

    with_document(it.catalog, change)


def _retried(it: Broken) -> None:
    it.again(it.commit(lambda file: file))


def _retried_other_partition(it: Broken) -> None:
    it.again(replace(it.commit(lambda file: file), partition=B))


def _retried_with_deletes(it: Broken) -> None:
    """Between both commits, a row is deleted: its second listing brought it back."""
    file = it.commit(lambda file: file)
    delete_positions(it.table, {file.path: [0]}, A)
    it.again(file)


def _manifest_twice(it: Broken) -> None:
    relist(it.table, lambda manifests: [*manifests, manifests[0]])


def _deletes_twice(it: Broken) -> None:
    path = f"{it.table.location()}/data/deletes.parquet"
    (file,) = vectors_of_v2(it, path)
    add_deletes(it.catalog, [file])
    add_deletes(it.catalog, [file])


def vectors_of_v2(it: Broken, path: str) -> list[NewDeleteFile]:
    """A position delete file of the first row of the first file, written but not committed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [{"PARQUET:field_id": "2147483546"}, {"PARQUET:field_id": "2147483545"}]
    schema = pa.schema(
        [pa.field("file_path", pa.string(), False, ids[0]), pa.field("pos", pa.int64(), False, ids[1])]
    )  # fmt: skip
    pq.write_table(pa.table({"file_path": [it.files[0].path], "pos": [0]}, schema=schema), local(path))
    return [NewDeleteFile(path, local(path).stat().st_size, 1, A, deletes_of=it.files[0].path)]


def _equality_deletes_twice(it: Broken) -> None:
    """Between both commits, a row is added whose key the second listing deletes."""
    deletes = equality_deletes(it.table, ["id"], [[1]], A)
    commit_row_delta(it.table, [deletes])
    append(it.catalog, [1], "a")
    commit_row_delta(it.table, [deletes])


def _dangling(it: Broken) -> None:
    delete_positions(it.table, {"file:///gone.parquet": [0]}, A)


def _other_partition(it: Broken) -> None:
    delete_positions(it.table, {it.files[0].path: [0]}, B)


def _two_vectors(it: Broken) -> None:
    for row in (0, 1):
        add_deletes(it.catalog, vectors_in_puffin(it.table, {it.files[0]: [row]}))


def _wrong_vector(it: Broken) -> None:
    (vector,) = vectors_in_puffin(it.table, {it.files[0]: [0]})
    add_deletes(it.catalog, [replace(vector, rows=2)])


def _positions_in_v3(it: Broken) -> None:
    path = f"{it.table.location()}/data/deletes.parquet"
    add_deletes(it.catalog, vectors_of_v2(it, path))


def _removed_and_back(it: Broken) -> None:
    """A file is removed and added again under its own path."""
    file = it.commit(lambda file: file)
    commit_built(it.catalog, lambda builder: overwritten(builder, [file.path]))
    it.again(file)


def _same_row_ids(it: Broken) -> None:
    relist(it.table, lambda m: [*m[:-1], changed(m[-1], first_row_id=first_row_id_of(m[-2]))])


def _no_row_ids(it: Broken) -> None:
    head = it.table.metadata.current_snapshot()
    assert head is not None
    write_list(it.table, head, it.head_manifests, version=2)


def _no_null(it: Broken) -> None:
    table = it.table
    run(it.catalog, request_on(table, [write(table, [8], None)]), table)  # type: ignore[arg-type]
    relisted(partitions=[PartitionFieldSummary(False, False, b"a", b"a")])(it)


@dataclass(frozen=True)
class Breakage:
    """One way to break a table.

    `rows` are the ids that a reader of the repaired table sees; None if the damage is refused. `seen` is where real
    writers made it.
    """

    name: str
    breaks: Callable[[Broken], None]
    rule: str
    rows: tuple[int, ...] | None
    seen: str = ""
    version: int = 2


ALL = (1, 2, 3, 4, 5, 6, 7)
MORE = (*ALL, 8, 9)
BREAKAGES = (
    Breakage("a data file was deleted in storage", _gone, "missing files", (4, 5, 6, 7), "apache/iceberg 7007"),
    Breakage("the orphan removal of another table deleted a partition", _partition_gone, "missing files", (7,),
             "apache/iceberg 17213"),
    Breakage("a data file with position deletes is missing", _gone_with_deletes, "missing files", (4, 5, 6, 7),
             "apache/iceberg 8338"),
    Breakage("a manifest was deleted after an unknown commit", _manifest_gone, "missing files", None,
             "apache/iceberg 2317"),
    Breakage("a manifest is cut off", _manifest_cut, "damaged metadata", None),
    Breakage("the newest manifest list is missing", _list_gone, "missing files", None),
    Breakage("a manifest list of an older snapshot is missing", _older_list_gone, "missing files", None,
             "apache/iceberg 17715"),
    Breakage("a position delete file is missing", _deletes_gone, "missing files", None),
    Breakage("the Puffin file of a deletion vector is missing", _vector_gone, "missing files", None, version=3),
    Breakage("a delete file without effect is missing", _dangling_gone, "missing files", ALL),
    Breakage("a statistics file is missing", _statistics_gone, "missing statistics", None, "apache/amoro 1959"),
    Breakage("the size of a file is wrong", entry(lambda f: replace(f, size_bytes=2 * f.size_bytes)), "file sizes",
             MORE, "apache/iceberg 1980"),
    Breakage("a data file is cut off", _cut_off, "file sizes", None, "apache/iceberg 8620"),
    Breakage("the length of a manifest is wrong", relisted(manifest_length=32417), "file sizes", ALL,
             "apache/iceberg-go 438"),
    Breakage("a page of a data file is damaged", _flipped, "file contents", None),
    Breakage("the manifest list counts files of other manifests", relisted(added_files_count=0, added_rows_count=0),
             "manifest counts", ALL, "icelake-io/icelake 280"),
    Breakage("an entry has the rows of several files", entry(lambda f: replace(f, rows=9)), "row counts", MORE,
             "ClickHouse/ClickHouse 104321"),
    Breakage("the totals of the snapshot are wrong", _totals, "totals", ALL, "apache/iceberg-rust 2576"),
    Breakage("the values of a column are counted wrong", entry(lambda f: replace(f, value_counts={1: 1})),
             "column counts", MORE, "StarRocks/starrocks 50699"),
    Breakage("all values of a column count as nulls", entry(lambda f: replace(f, null_value_counts={1: 2})),
             "column counts", MORE),
    Breakage("lower and upper bounds are swapped",
             entry(lambda f: replace(f, lower_bounds=f.upper_bounds, upper_bounds=f.lower_bounds)), "bounds", MORE,
             "ClickHouse/ClickHouse 116499"),
    Breakage("an upper bound was cut and not rounded up", entry(lambda f: replace(f, upper_bounds={2: b""})), "bounds",
             MORE, "duckdb/duckdb-iceberg 1022"),
    Breakage("a bound was cut within a character", entry(lambda f: replace(f, lower_bounds={2: b"\xc3"})), "bounds",
             MORE, "duckdb/duckdb-iceberg 1334"),
    Breakage("bounds of partitions leave values out",
             relisted(partitions=[PartitionFieldSummary(False, False, b"x", b"y")]), "partition values", ALL,
             "ClickHouse/ClickHouse 119171"),
    Breakage("bounds of partitions are missing",
             relisted(partitions=[PartitionFieldSummary(False, None, None, None)]), "partition values", ALL,
             "ClickHouse/ClickHouse 118930"),
    Breakage("the manifest list denies NULL", _no_null, "partition values", (*ALL, 8)),
    Breakage("a retried commit added a file twice", _retried, "listed twice", MORE, "redpanda-data/connect 4591"),
    Breakage("a retried commit brought deleted rows back", _retried_with_deletes, "listed twice", (*ALL, 9)),
    Breakage("a file is listed in two partitions", _retried_other_partition, "listed twice", None),
    Breakage("a manifest list names a manifest twice", _manifest_twice, "manifest list", ALL),
    Breakage("an equality delete file is listed twice", _equality_deletes_twice, "listed twice", None),
    Breakage("a delete file is listed twice", _deletes_twice, "listed twice", (2, 3, 4, 5, 6, 7)),
    Breakage("a rewrite left delete files that apply to nothing", _dangling, "dangling deletes", ALL,
             "apache/iceberg 6126"),
    Breakage("a delete file is in another partition than its file", _other_partition, "deletes of another partition",
             None),
    Breakage("two writers added a deletion vector of one file", _two_vectors, "deletion vectors", None,
             "apache/iceberg-go 1372", version=3),
    Breakage("a deletion vector has other rows than its entry", _wrong_vector, "deletion vectors", None, version=3),
    Breakage("a position delete file was added in format v3", _positions_in_v3, "position delete files", None,
             version=3),
    Breakage("a file was removed and added again", _removed_and_back, "removed and live", None,
             "apache/iceberg 2131"),
    Breakage("a manifest has a higher sequence number than its snapshot", relisted(sequence_number=9),
             "sequence numbers", None),
    Breakage("the least sequence number of a manifest is wrong", relisted(min_sequence_number=9), "sequence numbers",
             ALL, "apache/iceberg-go 1147"),
    Breakage("a ref names a snapshot that expired", _ref, "references", None),
    Breakage("two files have the same row ids", _same_row_ids, "row ids", None, "apache/iceberg-go 741", version=3),
    Breakage("a manifest of format v3 has no row ids", _no_row_ids, "row ids", ALL, "apache/paimon 9245", version=3),
)  # fmt: skip
"""In the order of the docs."""
