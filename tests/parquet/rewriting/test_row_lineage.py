"""The row lineage of format v3: no rewrite of rows changes the row id or the last change of a live row."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, StringType

from icesize.errors import RewriteFailed, UnsupportedTable
from icesize.parquet.files.data_file import FinishedFile, MergeResult
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.planning.plan import FileGroup, MergeTask
from tests.support.copying import SMALL, foreign_bytes, stored, with_ids
from tests.support.examples import examples
from tests.support.internal_errors import watched
from tests.support.parquet_files import NAMES, local, metadata_of, schema_of, settings_of, with_limits, write_one
from tests.support.row_lineage import LAST_UPDATED, LINEAGE, ROW_ID, Lineage, lineage_of

KEY = PartitionKey(0)
ORDER = SortOrder(SortField(3, IdentityTransform()), order_id=1).model_dump_json()
SCHEMA = schema_of(("id", LongType()), ("text", StringType()), ("value", DoubleType()))
USUAL = {"tiny", "dictionaries", "uneven", "deleted-rows", "sorted", "copying-off"}
"""Reasons why files of these tests are decoded."""


def options_of(folder: Path, **properties: str) -> WriteSettings:
    """Settings of a table of format v3 whose small files are copied as large ones are."""
    options = settings_of(folder, SCHEMA, properties={"write.parquet.page-row-limit": "60", **properties})
    limits = replace(SMALL, good_group_rows=250, least_chunk_bytes=100, least_page_rows=20, least_page_bytes=200)
    return replace(options, format_version=3, limits=limits)


def rows_of(ids: Sequence[int]) -> pa.Table:
    chance = random.Random(len(ids))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [chance.randbytes(6).hex() for _ in ids],
            "value": pa.array([chance.random() for _ in ids], pa.float64()),
        }
    )


@dataclass
class Lake:
    """The live files of a table, and the deleted positions of each."""

    options: WriteSettings
    files: list[FileFact] = field(default_factory=list)
    deleted: dict[str, list[int]] = field(default_factory=dict)
    sequence: int = 0
    next_row_id: int = 0
    next_key: int = 0

    def lineage(self) -> Lineage:
        """That of all live rows."""
        return {k: v for file in self.files for k, v in lineage_of(file, self.deleted.get(file.path, ())).items()}

    def take(self, count: int) -> list[int]:
        """New values of the column `id`."""
        self.next_key += count
        return [*range(self.next_key - count, self.next_key)]

    def commit(self, files: Iterable[FinishedFile | FileFact], removed: Iterable[FileFact] = ()) -> None:
        """Replace files; new ones get row ids, and new rows the number of the commit."""
        self.sequence += 1
        gone = {file.path for file in removed}
        self.files = [file for file in self.files if file.path not in gone]
        for file in files:
            number = self.sequence if not file.sequence_number else file.sequence_number
            self.files.append(
                FileFact(file.path, file.size_bytes, file.rows, KEY, number, first_row_id=self.next_row_id)
            )
            self.next_row_id += file.rows

    def delete(self, file: FileFact, positions: Sequence[int]) -> None:
        """Delete rows of a file by their positions."""
        self.sequence += 1
        gone = self.deleted.setdefault(file.path, [])
        gone += [position for position in positions if position not in gone]
        self.files = [self._with_deletes(each) if each.path == file.path else each for each in self.files]

    def _with_deletes(self, file: FileFact) -> FileFact:
        positions = sorted(self.deleted[file.path])
        names = [pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
                 pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"})]  # fmt: skip
        path = Path(self.options.table_location) / f"deletes-{self.sequence}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table([[file.path] * len(positions), positions], schema=pa.schema(names)), path)
        delete = DeleteFile(
            str(path), path.stat().st_size, len(positions), KEY, self.sequence, referenced_path=file.path
        )
        return replace(file, deletes=(delete,), delete_files=1, deleted_rows=len(positions))


@dataclass(frozen=True)
class Made:
    """A file to append: by icesize, or by another writer, which stores the lineage of this share of its rows."""

    rows: int
    stored: float | None
    dictionary: bool = False
    row_group: int = 10**6
    page_version: str = "1.0"
    shuffled: bool = False
    store_schema: bool = False
    only: str | None = None
    """The only column of both that the writer stores, if not both."""

    def add_to(self, lake: Lake, seed: int) -> None:
        """Append the file."""
        rows, chance = rows_of(lake.take(self.rows)), random.Random(seed)
        if self.stored is None:
            lake.commit([write_one(lake.options, rows)])
            return
        ids = [*range(10**6 * (1 + seed), 10**6 * (1 + seed) + self.rows)]
        if self.shuffled:
            chance.shuffle(ids)
        values = {ROW_ID: ids, LAST_UPDATED: [chance.randrange(1, 4) for _ in ids]}
        table = with_ids(rows)
        for column in LINEAGE:
            if self.only in (None, column.name):
                kept = [value if chance.random() < self.stored else None for value in values[column.name]]
                table = table.append_column(column, pa.array(kept, pa.int64()))
        how = {"use_dictionary": self.dictionary, "row_group_size": self.row_group, "max_rows_per_page": 60}
        how |= {"data_page_version": self.page_version, "store_schema": self.store_schema}
        data = foreign_bytes(table, **how)
        lake.commit([stored(Path(lake.options.table_location), data, self.rows)])


made = st.builds(
    Made,
    rows=st.sampled_from([1, 15, 120, 200, 250, 300, 520, 1_200, 2_600]),
    stored=st.sampled_from([None, None, 0.0, 0.5, 0.98, 1.0, 1.0]),
    dictionary=st.booleans(),
    row_group=st.sampled_from([10**6, 260, 90]),
    page_version=st.sampled_from(["1.0", "2.0"]),
    shuffled=st.booleans(),
    store_schema=st.booleans(),
    only=st.sampled_from([None, None, None, ROW_ID, LAST_UPDATED]),
)


def rewrite(lake: Lake, inputs: Sequence[FileFact], how: str, outputs: int, number: int) -> MergeResult[FinishedFile]:
    """Merge or cluster files of the table, and replace them."""
    task, names = MergeTask(tuple(inputs), KEY, outputs), FileNames(f"s1-{number}", 0, 0)
    if how == "cluster":
        order = RowOrder.of(ClusterBy(("value",), (3,), SORT, 2**40), lake.options)
        done: MergeResult[FinishedFile] = write_clustered(task, order, lake.options, names)  # type: ignore[assignment]
    else:
        done = merge(task, replace(lake.options, merge_by_copying=how == "merge"), names)
    lake.commit(done.files, inputs)
    return done


steps = st.one_of(
    st.tuples(st.just("append"), made),
    st.tuples(st.just("delete"), st.integers(0, 9), st.sampled_from([0.02, 0.3, 1.0]), st.booleans()),
    st.tuples(
        st.sampled_from(["merge", "merge", "merge", "decode", "cluster"]),
        st.integers(1, 5),
        st.sampled_from([1, 1, 1, 2]),
    ),
)


@examples(200)
@given(
    st.lists(made, min_size=1, max_size=4),
    st.lists(steps, min_size=1, max_size=6),
    st.integers(0, 2**20),
    st.sampled_from([{}, {}, {"sorted_rows": 100}, {"whole_file_bytes": 2_000, "batch_bytes": 1_000}]),
    st.sampled_from(["", "", "", "", ORDER]),
)
def test_any_sequence_keeps_the_lineage(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[Made],
    program: list[tuple[Any, ...]],
    seed: int,
    limits: dict[str, int],
    order: str,
) -> None:
    """Merges and clusterings, one after the other, of files of several writers and with deletes, change no lineage.

    Files are read at once or in batches, rows are ordered in memory or on the disk, and the table may have an order.
    """
    options = with_limits(options_of(tmp_path_factory.mktemp("lake")), **limits)
    lake, chance = Lake(replace(options, sort_order_json=order)), random.Random(seed)
    for number, each in enumerate(first):
        each.add_to(lake, number)
    for number, (kind, *arguments) in enumerate(program):
        if kind == "append":
            arguments[0].add_to(lake, 100 + number)
            continue
        expected = lake.lineage()
        if kind == "delete":
            which, share, as_run = arguments
            file = lake.files[which % len(lake.files)]
            count = max(1, int(share * file.rows))
            start = chance.randrange(file.rows - count + 1)
            positions = [*range(start, start + count)] if as_run else chance.sample(range(file.rows), count)
            lake.delete(file, positions)
            assert lake.lineage().items() <= expected.items()
            continue
        count, outputs = arguments
        with watched() as internal_errors:
            done = rewrite(lake, chance.sample(lake.files, min(count, len(lake.files))), kind, outputs, number)
        assert (internal_errors, done.decode_reasons.keys() - USUAL) == ([], set())
        assert lake.lineage() == expected
        assert not [p for file in lake.files for p in verify_file(LocalSource(local(file.path)), file.path).problems]
        if not lake.files:
            return


def chunks_of(file: FileFact | FinishedFile) -> list[list[pq.ColumnChunkMetaData]]:
    """The chunks of both columns, by row group."""
    metadata = pq.read_metadata(local(file.path))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert all([group.column(3).path_in_schema, group.column(4).path_in_schema] == LINEAGE.names for group in groups)
    return [[group.column(3), group.column(4)] for group in groups]


@pytest.mark.parametrize("rows", [200, 1_200])
def test_copied_rows_inherit_in_few_bytes(tmp_path: Path, rows: int) -> None:
    """Pages and row groups are copied, and the lineage beside them takes some bytes per page."""
    lake = Lake(options_of(tmp_path, **{"write.parquet.page-row-limit": "20000"}))
    for number in range(6):
        Made(rows, None).add_to(lake, number)
    expected, size_bytes = lake.lineage(), sum(file.size_bytes for file in lake.files)
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert (done.bytes_decoded, done.decode_reasons) == (0, {})
    added = [chunk for group in chunks_of(done.files[0]) for chunk in group]
    assert len(added) == (12 if rows == 1_200 else 2)
    assert all("DELTA_BINARY_PACKED" in chunk.encodings and not chunk.has_dictionary_page for chunk in added)
    assert max(chunk.total_compressed_size for chunk in added) < 120
    assert done.files[0].size_bytes < size_bytes + 2_000


@pytest.mark.parametrize("share", [1.0, 0.99])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_full_columns_of_whole_row_groups_are_copied(
    tmp_path: Path, share: float, dictionary: bool, page_version: str
) -> None:
    """Stored columns move as they are if each row has a value; with one NULL, all values are encoded again."""
    lake = Lake(options_of(tmp_path))
    Made(300, share, dictionary, page_version=page_version, shuffled=True).add_to(lake, 1)
    Made(300, None).add_to(lake, 2)
    before, expected = chunks_of(lake.files[0]), lake.lineage()
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert done.bytes_decoded == 0
    pairs = zip(before[0], chunks_of(done.files[0])[0], strict=True)
    same = [described(old) == described(new) for old, new in pairs]
    assert same == ([True, True] if share == 1.0 else [False, False])


def described(chunk: pq.ColumnChunkMetaData) -> tuple[object, ...]:
    return chunk.total_compressed_size, chunk.total_uncompressed_size, set(chunk.encodings)


@pytest.mark.parametrize("rows", [200, 300])
@pytest.mark.parametrize("share", [None, 1.0, 0.9])
def test_cut_pages_keep_the_lineage_of_their_rows(tmp_path: Path, rows: int, share: float | None) -> None:
    """Rows that follow deleted ones keep the ids that they have by their position before the deletes."""
    lake = Lake(options_of(tmp_path))
    for number in range(3):
        Made(rows, share, shuffled=True).add_to(lake, number)
    lake.delete(lake.files[1], [*range(40, 75), rows - 1])
    expected = lake.lineage()
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert done.bytes_copied > 0
    assert done.decode_reasons == {"deleted-rows": 1}


def test_renamed_columns(tmp_path: Path) -> None:
    """Decoded rows join copied ones under the names of the copied files, and all keep their lineage."""
    lake = Lake(options_of(tmp_path))
    for number, rows in enumerate((300, 300, 15)):
        Made(rows, None).add_to(lake, number)
    expected, fields = lake.lineage(), lake.options.schema.fields
    renamed = [field.model_copy(update={"name": "words"}) if field.name == "text" else field for field in fields]
    lake.options = lake.options.with_schema(Schema(*renamed))
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert done.decode_reasons == {"tiny": 1}
    assert done.bytes_copied > 0


def test_columns_of_another_place_and_order(tmp_path: Path) -> None:
    """The columns of a file may lie before those of the table; the copy has them after these."""
    lake = Lake(options_of(tmp_path))
    rows, ids = with_ids(rows_of(lake.take(300))), pa.array(range(9_000, 9_300), pa.int64())
    rows = rows.add_column(0, LINEAGE.field(1), pa.array([7] * 300, pa.int64())).add_column(2, LINEAGE.field(0), ids)
    how = {"sorting_columns": [pq.SortingColumn(1)], "store_schema": True}
    lake.commit([stored(tmp_path, foreign_bytes(rows, **how), 300)])
    Made(300, None).add_to(lake, 1)
    expected = lake.lineage()
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert (done.bytes_decoded, len(chunks_of(done.files[0]))) == (0, 2)
    assert pq.read_metadata(local(done.files[0].path)).row_group(0).sorting_columns == ()


def test_columns_of_another_type_are_decoded(tmp_path: Path) -> None:
    """A file whose columns hold smaller integers is not copied, and its values stay."""
    lake = Lake(options_of(tmp_path))
    ids = pa.array([None, *range(9_001, 9_300)], pa.int32())
    rows = with_ids(rows_of(lake.take(300))).append_column(LINEAGE.field(0).with_type(pa.int32()), ids)
    lake.commit([stored(tmp_path, foreign_bytes(rows), 300)])
    Made(300, None).add_to(lake, 1)
    expected = lake.lineage()
    done = rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
    assert done.decode_reasons == {"row-lineage": 1}


def two_files(lake: Lake) -> tuple[FileFact, ...]:
    for _ in range(2):
        lake.commit([write_one(lake.options, rows_of(lake.take(50)))])
    return tuple(lake.files)


def test_rows_without_ids_are_not_rewritten(tmp_path: Path) -> None:
    """A file that has no row ids yet fails its group with the reason, and nothing is written."""
    lake = Lake(options_of(tmp_path))
    one, other = two_files(lake)
    task = MergeTask((one, replace(other, first_row_id=None)), KEY)
    before = sorted(tmp_path.rglob("*.parquet"))
    order = RowOrder.of(ClusterBy(("value",), (3,), SORT, 2**40), lake.options)
    for rewriting in (
        lambda: merge(task, lake.options, NAMES),
        lambda: write_clustered(task, order, lake.options, NAMES),
    ):
        with pytest.raises(RewriteFailed, match="its rows have no row ids yet"):
            rewriting()
    assert sorted(tmp_path.rglob("*.parquet")) == before


def test_format_v2_has_no_lineage(tmp_path: Path) -> None:
    """Merged files of format v2 have the columns of the table alone, also if an input stores a lineage."""
    lake = Lake(replace(options_of(tmp_path), format_version=2))
    for stored_share in (None, 1.0):
        Made(50, stored_share).add_to(lake, 1)
    rewrite(lake, lake.files, "decode", 1, 0)
    assert pq.read_schema(local(lake.files[0].path)).names == SCHEMA.column_names


def test_new_rows_have_no_lineage(tmp_path: Path) -> None:
    """Files of new rows alone do not store the columns: their rows inherit both values."""
    lake = Lake(options_of(tmp_path))
    two_files(lake)
    assert pq.read_schema(local(lake.files[0].path)).names == SCHEMA.column_names


def test_absorbed_rows_keep_theirs(tmp_path: Path) -> None:
    """In a file of older and new rows, older rows have their lineage, and new rows NULL, which they inherit."""
    lake = Lake(options_of(tmp_path))
    older = two_files(lake)
    lake.delete(older[1], [3, 4])
    expected, group = lake.lineage(), FileGroup(tuple(lake.files), KEY)
    written = write_with(Absorption({0: (group,)}), 0, [rows_of(lake.take(5))], lake.options, NAMES)
    (file,) = written.files
    assert pq.read_table(local(file.path)).column(ROW_ID).to_pylist()[-5:] == [None] * 5
    lake.commit(written.files, group.inputs)
    start, number = lake.files[0].first_row_id or 0, lake.sequence
    new = {key: (start + at, number) for at, key in enumerate(range(100, 105), 98)}
    assert lake.lineage() == {**expected, **new}


def test_rows_without_ids_are_not_absorbed(tmp_path: Path) -> None:
    """New rows are written alone if older rows have no row ids yet, and the result has the reason."""
    lake = Lake(options_of(tmp_path))
    one, other = two_files(lake)
    group = FileGroup((one, replace(other, first_row_id=None)), KEY)
    written = write_with(Absorption({0: (group,)}), 0, [rows_of(lake.take(5))], lake.options, NAMES)
    assert (written.absorbed, [file.rows for file in written.files]) == ((), [5])
    assert "no row ids yet" in written.failed[0].why
    assert pq.read_schema(local(written.files[0].path)).names == SCHEMA.column_names


def test_the_names_are_reserved(tmp_path: Path) -> None:
    """A table of format v3 with a column of one of these names is refused; one of format v2 is not."""
    metadata = metadata_of(tmp_path, schema_of((ROW_ID, LongType())))
    assert WriteSettings.of(metadata, {}, 2**20).schema.column_names == [ROW_ID]
    with pytest.raises(UnsupportedTable, match="reserves the name") as refused:
        WriteSettings.of(metadata.model_copy(update={"format_version": 3}), {}, 2**20)
    assert refused.value.column == ROW_ID  # type: ignore[attr-defined]


def test_manifests_have_no_metrics_of_it(tmp_path: Path) -> None:
    """Counts and bounds in manifest entries are those of the table's columns."""
    lake = Lake(options_of(tmp_path))
    done = rewrite(lake, two_files(lake), "decode", 1, 0)
    (file,) = done.files
    assert set(file.value_counts) == set(file.null_value_counts) == {1, 2, 3}
    assert set(file.lower_bounds) == set(file.upper_bounds) == {1, 2, 3}


def test_files_without_field_ids(tmp_path: Path) -> None:
    """Rows of a file that is read by the table's name mapping inherit their lineage, too."""
    mapping = SCHEMA.name_mapping.model_dump_json()
    lake = Lake(options_of(tmp_path, **{"schema.name-mapping.default": mapping}))
    rows = rows_of(lake.take(30)).select(["value", "id", "text"])
    lake.commit([stored(tmp_path, foreign_bytes(rows), 30)])
    expected = lake.lineage()
    rewrite(lake, lake.files, "merge", 1, 0)
    assert lake.lineage() == expected
