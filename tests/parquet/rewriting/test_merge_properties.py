"""Any merge of any files: the same rows come out, outputs are what they say, and their metrics hold for every row."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    NestedField,
)

from icesize.parquet.files.data_file import FileMetrics, NewDataFile
from icesize.parquet.files.metrics import FloatFacts, describe, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.format.thrift import bytes_field, read_struct, struct_field
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.parquet.writing.encoding import leaf_values
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from tests.support import copying as copying
from tests.support.copying import KEY, MERGED, SMALL, content, foreign_bytes, spelt_rows, stored, with_ids
from tests.support.footers import Tree, edited
from tests.support.merge_cases import CODEC, COLUMNS, WHOLE_ROWS, Case, Coverage, check_metrics, files, known, rows_of
from tests.support.parquet_files import append, catalog_in, complete, fact, local, settings_of, write_one

LIMITS = replace(SMALL, good_group_rows=WHOLE_ROWS, least_chunk_bytes=100, least_page_rows=20, least_page_bytes=200)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A merge of one to five files."""
    return Case(
        columns=draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1, max_size=6)),
        required=draw(st.booleans()),
        properties=draw(st.sampled_from([{}, {}, {CODEC: "zstd"}, {"write.metadata.metrics.default": "full"}])),
        files=draw(st.lists(files(), min_size=1, max_size=5)),
        outputs=draw(st.integers(1, 3)),
        again=draw(st.booleans()),
    )


def schema_of_case(case: Case) -> Schema:
    fields = [
        NestedField(i, name, COLUMNS[name][0], required=case.required and name == "id")
        for i, name in enumerate(case.columns, 1)
    ]
    return Schema(*fields)


@dataclass(frozen=True)
class Given:
    """A file, what its manifest records of it, and its rows under the table's schema."""

    fact: FileFact
    metrics: FileMetrics | None
    rows: Counter[str]


def input_file(case: Case, options: WriteSettings, number: int) -> Given:
    """Make one."""
    how, newest = case.files[number], case.columns[-1]
    old = how.older and len(case.columns) > 1 and not (case.required and newest == "id")
    if old:
        options = replace(options, schema_json=Schema(*options.schema.fields[:-1]).model_dump_json())
    data = rows_of(case, how, options.arrow_schema)
    padded = data.append_column(newest, pa.nulls(how.rows)) if old else data
    rows = Counter(spelt_rows(padded))
    if how.properties is not None and how.rows:
        file = write_one(replace(options, properties={**options.properties, **how.properties}), data)
        return Given(fact(file), known(FileMetrics.of(file), how.known), rows)
    first = data.schema.field(0)
    if how.strict and first.name != "nothing":
        data = data.cast(data.schema.set(0, first.with_nullable(False)))
    file = stored(Path(local(options.table_location)) / f"{number}", foreign_bytes(data, **how.options), how.rows)
    return Given(file, known(described(options, file.path, data), how.known), rows)


def described(options: WriteSettings, path: str, data: pa.Table) -> FileMetrics:
    """Metrics of a file of pyarrow, whose bounds are those of the values that are not NaN, as Iceberg's are."""
    floats = [leaf for leaf in leaves(options) if leaf.flat and leaf.is_float]
    facts = {leaf.field_id: FloatFacts.of(values) for leaf, values in leaf_values(floats, data)}
    file = describe(NewDataFile(path, 0, 0, KEY), options, pq.read_metadata(path), facts)
    return FileMetrics.of(file)


def merged(options: WriteSettings, inputs: Sequence[Given], outputs: int, seen: Coverage) -> list[Given]:
    """The outputs with complete metrics, each verified and held against its rows; together the rows of the input
    files."""
    done = merge(MergeTask(tuple(input_file.fact for input_file in inputs), KEY, outputs), options, MERGED)
    seen.outcome(done)
    assert done.bytes_copied + done.bytes_decoded <= sum(f.size_bytes for f in done.inputs)
    manifest_metrics = {
        input_file.fact.path: input_file.metrics for input_file in inputs if input_file.metrics is not None
    }
    outputs = [complete(file, options, manifest_metrics) for file in done.files]
    for file in outputs:
        found = verify_file(LocalSource(local(file.path)), "merged")
        assert (found.problems, found.rows) == ((), file.rows)
        check_metrics(options, file, seen)
    made = [Given(fact(file), FileMetrics.of(file), content([file.path])) for file in outputs]
    assert sum((each.rows for each in made), Counter()) == sum((input_file.rows for input_file in inputs), Counter())
    return made


def run(folder: Path, case: Case, seen: Coverage) -> None:
    """Do it, and once more with what came out."""
    options = replace(settings_of(folder, schema_of_case(case), properties=case.properties), limits=LIMITS)
    inputs = [input_file(case, options, number) for number in range(len(case.files))]
    made = merged(options, inputs, case.outputs, seen)
    if case.again and made:
        merged(options, made, 1, seen)


def check(tmp_path_factory: pytest.TempPathFactory, examples: int) -> Counter[str]:
    """Run so many examples; what they reached."""
    seen = Coverage()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=examples < 100)
    @given(cases())
    def each(case: Case) -> None:
        run(tmp_path_factory.mktemp("case"), case, seen)

    each()
    return seen.count


def test_any_merge_keeps_rows_and_has_true_metrics(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Types flat and nested, writers, codecs, pages, nulls and NaN in any combination, by all ways of merging."""
    reached = check(tmp_path_factory, 40)
    assert min(reached[name] for name in ("copied", "whole", "paged", "decoded", "bounds")) > 0


@pytest.mark.slow
def test_any_merge_keeps_rows_and_has_true_metrics_often(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same with more examples; each way, and each mixture of them, is among them."""
    reached = check(tmp_path_factory, 1_500)
    ways = ("copied", "whole", "paged", "decoded", "mixed", "reencoded", "bounds", "nan counts")
    codes = ("tiny", "codec", "schema-differs", "schema-evolved", "dictionaries", "uneven")
    assert [name for name in (*ways, *codes) if not reached[name]] == []


VALUE = 3
"""Field id of the column `value` of the rows below, which is the third one."""
MR_NAN = struct.pack("<d", math.nan)


def bounded_by_nan(tree: Tree) -> None:
    """Upper bounds of `value` are NaN, as parquet-mr writes them where a row group has one."""
    for chunks in tree.metadata:
        statistics, _ = read_struct(chunks[VALUE - 1][12][1])
        chunks[VALUE - 1][12] = struct_field({**statistics, 5: bytes_field(MR_NAN)})


def with_nan(count: int, start: int, at: int) -> pa.Table:
    """Rows of which one has NaN; the values of others grow."""
    data = copying.rows(count, start)
    values = [math.nan if i == at else (start + i) / 7 for i in range(count)]
    return with_ids(data.set_column(2, "value", pa.array(values, pa.float64())))


PLACES = [(which, at) for which in range(3) for at in (0, 250, -1)]


@pytest.mark.parametrize(
    ("count", "which", "at"),
    [(copying.PAGED_ROWS, *place) for place in PLACES] + [(copying.WHOLE_ROWS, *place) for place in PLACES[::4]],
)
def test_nan_hides_no_row_wherever_it_is(tmp_path: Path, count: int, which: int, at: int) -> None:
    """One NaN first, within or last in the first, second or last file: bounds are those of all other values, and every
    filter finds its rows in the file and through the table."""
    table = catalog_in(tmp_path).create_table(("db", "t"), copying.SCHEMA)
    options = replace(WriteSettings.of(table.metadata, {}, 2**29), limits=SMALL)
    inputs, known = [], {}
    for number in range(3):
        data = with_nan(count, number * count, at % count if number == which else -1)
        raw = foreign_bytes(data)
        file = stored(tmp_path / f"{number}", edited(raw, bounded_by_nan) if number == which else raw, count)
        inputs.append(file)
        known[file.path] = described(options, str(stored(tmp_path / "true", raw, count).path), data)
    done = merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert done.bytes_decoded == 0
    (file_written,) = [complete(file, options, known) for file in done.files]
    data = pq.read_table(local(file_written.path))
    values = [value for value in data.column("value").to_pylist() if value == value]
    assert file_written.nan_value_counts == {VALUE: 1}
    assert struct.unpack("<d", file_written.lower_bounds[VALUE]) == (min(values),)
    assert struct.unpack("<d", file_written.upper_bounds[VALUE]) == (max(values),)
    append(table, [file_written])
    for low in (0, count // 7, (2 * count + count // 2) / 7, 3 * count / 7 - 1):
        between = [value for value in values if low <= value < low + 9]
        assert between
        assert table.scan(f"value >= {low} and value < {low + 9}").to_arrow().num_rows == len(between)
        filters = [("value", ">=", low), ("value", "<", low + 9)]
        assert pq.read_table(local(file_written.path), filters=filters).num_rows == len(between)
    assert table.scan("value is nan").to_arrow().num_rows == 1
