"""Runs one case and compares the rows."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from sqlalchemy.event import listen

import icesize
from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from integration.writers.cases import Case
from integration.writers.pool import Made
from integration.writers.rows import NESTED, id_of, metadata_of, spelt, with_empty_lists
from integration.writers.ways import COPYING, limits_of, ways_of
from tests.support.delete_files import commit_row_delta, equality_deletes, position_deletes
from tests.support.parquet_files import append, data_file, local

NAMES = FileNames("writers", 0, 0)
_numbers = itertools.count()


@dataclass
class Lake:
    """Where tables of the run lie; `kept` are tables of merged files that Spark is still to read."""

    folder: Path
    catalog: SqlCatalog
    kept: list[tuple[Case, str, list[str]]] = field(default_factory=list)

    @staticmethod
    def create(folder: Path) -> Lake:
        """A catalog in an empty folder, which Spark's catalog `lake` may share."""
        catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}/lake")
        # what a crash of the machine would lose is needed by nothing
        listen(catalog.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        catalog.engine.dispose()
        catalog.create_namespace_if_not_exists("db")
        return Lake(folder, catalog)

    def table(self, columns: Collection[str]) -> Table:
        """A new table of these columns, whose files are read by field id, or else by name."""
        name = f"t{next(_numbers)}"
        folder = self.folder / "lake" / "db" / name
        metadata = folder / "metadata" / "00000-new.metadata.json"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(metadata_of(columns, f"file://{folder}"))
        return self.catalog.register_table(f"db.{name}", f"file://{metadata}")

    def table_of(self, file: Made) -> str:
        """The name of a new table of one file of a writer, as it is."""
        table = self.table(file.columns)
        append(table, [_entry(file.path, file)])
        return ".".join(table.name()[-2:])


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `failure` None if all is right, `refused` an error that is right for these files."""

    failure: str | None = None
    refused: str | None = None
    moved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The ways in which the bytes of each file came into the merged ones, by its name."""
    why: str = ""


def run(lake: Lake, case: Case, keep: bool = False) -> Outcome:
    """Merge the files of a case, and compare the rows that every reader finds with those of the input files."""
    table = lake.table({name for file in case.files for name in file.columns})
    try:
        return _run(lake, table, case, keep)
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {str(error)[:600]}")
    finally:
        shutil.rmtree(local(table.location()) if not keep else "", ignore_errors=True)


def _run(lake: Lake, table: Table, case: Case, keep: bool) -> Outcome:
    data = Path(local(table.location())) / "data"
    data.mkdir(parents=True)
    paths = [shutil.copy(file.path, data / f"{file.name}.parquet") for file in case.files]
    entries = [data_file(_entry(path, file)) for path, file in zip(paths, case.files, strict=True)]
    table, live = _with_deletes(commit_row_delta(table, (), entries), case, paths)
    before = [Path(path).read_bytes() for path in paths]
    try:
        outputs, moved, why = _merged(lake, table, case)
    except (IcesizeError, RewriteFailed) as error:
        if [Path(path).read_bytes() for path in paths] != before:
            return Outcome(f"an input file changed, and: {error}")
        return Outcome(refused=str(error)) if _is_right(error, case) else Outcome(f"refused: {error}")
    if problems := _problems(outputs, case):
        return Outcome(f"verify: {problems[:3]}")
    if problem := _wrong_rows(table, outputs, live):
        return Outcome(problem)
    if keep:
        out = lake.table([field.name for field in table.schema().fields])
        append(out, [_written(path) for path in outputs])
        lake.kept.append((case, ".".join(out.name()[-2:]), live))
    return Outcome(moved=moved, why=why)


def _wrong_rows(table: Table, outputs: Sequence[str], live: list[str]) -> str | None:
    """What a reader of the merged files finds instead of the rows that are left; None if all find these."""
    for name, read in _READERS.items():
        if name == "PyIceberg" and any(map(_has_fixed_lists, outputs)):
            continue
        found, wanted = sorted(read(table, outputs)), live
        if name == "PyIceberg" and found != wanted:
            wanted, found = with_empty_lists(live), with_empty_lists(found)
        if found != wanted:
            return f"{name} reads other rows: {difference(wanted, found)}"
    return None


def _is_right(error: IcesizeError, case: Case) -> bool:
    """Whether these files may be refused with this message.

    Either a nested column has an id and its fields have none; or pandas had no value of a column, of which
    fastparquet makes bytes.
    """
    if "for which there is no field id" in str(error):
        return any(file.ids == "partly" and set(file.columns) & set(NESTED) for file in case.files)
    found = _OTHER_TYPE.search(str(error))
    return found is not None and any(_stores_bytes(file, found[1]) for file in case.files)


_OTHER_TYPE = re.compile(r"Cannot read \S* ?column '(\w+)' is binary, the table has")


def _stores_bytes(file: Made, column: str) -> bool:
    if file.writer != "fastparquet" or column not in file.columns:
        return False
    return pa.types.is_binary(pq.read_schema(file.path).field(column).type)


def _problems(outputs: Sequence[str], case: Case) -> list[str]:
    """What is wrong with merged files.

    Not what was wrong with an input file in the same way: pyarrow 12 to 21 and DuckDB count NULLs of structs in
    lists wrongly, arrow-rs takes pages of NaN for pages of NULL, and a copy has these statistics.
    """
    found = [problem for path in outputs for problem in verify_file(LocalSource(local(path)), "merged").problems]
    if not found:
        return []
    known = {_kind(p) for f in case.files for p in verify_file(LocalSource(f.path), "input").problems}
    return [problem for problem in found if _kind(problem) not in known]


def _kind(problem: str) -> tuple[str, ...]:
    """The column by its fields' names, and the words of a problem."""
    words = problem.partition("column ")[2].replace(".item", ".element")
    return tuple(word for word in words.split() if not any(c.isdigit() for c in word))


def _entry(path: str, file: Made) -> NewDataFile:
    return _of_rows(f"file://{path}", file.rows)


def _written(path: str) -> NewDataFile:
    return _of_rows(path, pq.read_metadata(local(path)).num_rows)


def _of_rows(path: str, rows: int) -> NewDataFile:
    return NewDataFile(path, Path(local(path)).stat().st_size, rows, PartitionKey(0))


@lru_cache(2_000)
def input_rows(file: Made) -> tuple[str, ...]:
    """Return the rows of a file in their order, as pyarrow reads them."""
    try:
        table = pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us").read()
    except OSError as error:
        if "DictAccumulator" not in str(error):
            raise
        # pyarrow makes no categories of pages of deltas, for which an Arrow schema asks (arrow-rs); it has the ids
        ids = pq.read_table(file.path, columns=["id"])["id"].to_pylist()
        rows = _by_duckdb(None, [file.path])
    else:
        rows, ids = spelt(_of_table(table, file)), table["id"].to_pylist()
    by_id = {id_of(row): row for row in rows}
    return tuple(by_id[i] for i in ids)


def _of_table(rows: pa.Table, file: Made) -> pa.Table:
    """The rows with whole numbers where pandas made floats of them, since some were NULL."""
    if file.writer != "fastparquet" or "small" not in file.columns or pa.types.is_integer(rows["small"].type):
        return rows
    return rows.set_column(rows.schema.get_field_index("small"), "small", rows["small"].cast(pa.int32()))


def _with_deletes(table: Table, case: Case, paths: Sequence[str]) -> tuple[Table, list[str]]:
    """Delete rows by position, by value or both; returns the table and the rows that are left."""
    chance, left = random.Random(case.seed), list[str]()
    at, values = dict[str, list[int]](), list[int]()
    # whole row groups and pages are copied of files without deleted rows only
    spared = case.files[0] if case.path in ("whole", "pages") and len(case.files) > 1 else None
    for file, path in zip(case.files, paths, strict=True):
        rows = input_rows(file)
        gone = set[int]()
        if file is spared and chance.random() < 0.8:
            left += rows
            continue
        if case.deletes in ("position", "both"):
            share = chance.choice((0.01, 0.3, 1.0)) if len(case.files) > 1 else 0.3
            run = chance.randrange(len(rows) + 1)
            gone = {i for i in range(len(rows)) if chance.random() < share}
            if share < 1 and chance.random() < 0.5:  # whole row groups stay as they are
                gone = set(range(run, min(len(rows), run + len(rows) // 10 + 1)))
            if file is case.files[-1] and not gone:
                gone = {chance.randrange(len(rows))}
            at[f"file://{path}"] = sorted(gone)
        if case.deletes in ("equality", "both"):
            some = [i for i in range(len(rows)) if chance.random() < 0.05] or [0] * (file is case.files[-1])
            values += [id_of(rows[i]) for i in some]
            gone.update(some)
        left += [row for i, row in enumerate(rows) if i not in gone]
    places, ids, deletes = {path: found for path, found in at.items() if found}, set(values), list[DataFile]()
    if places:
        deletes.append(position_deletes(table, places, PartitionKey(0)))
    if ids:
        deletes.append(equality_deletes(table, ["id"], [[i] for i in sorted(ids)]))
    if deletes:
        table = commit_row_delta(table, deletes)
    return table, sorted(row for row in left if id_of(row) not in ids)


def _merged(lake: Lake, table: Table, case: Case) -> tuple[list[str], dict[str, frozenset[str]], str]:
    """The paths of the files that there are instead, how the bytes of each input came there, and why some were
    decoded."""
    opened = icesize.open(None, ".".join(("lake", *table.name()[-2:])), catalog=lake.catalog)
    if case.path == "maintain":
        opened.maintain()
        opened.compact()
        files = lake.catalog.load_table(table.name()).inspect.files()
        if any(content for content in files["content"].to_pylist()):
            raise RewriteFailed("Cannot finish: maintain left delete files", path=None)
        return files["file_path"].to_pylist(), _all_by("maintain", case), ""
    groups = opened.plan().groups
    if [len(group.inputs) for group in groups] != [len(case.files)]:
        raise RewriteFailed("Cannot merge all files together: the plan leaves some apart", path=None)
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    settings = replace(settings, limits=limits_of(case.path, case.seed))
    return _rewritten(groups[0], settings, case)


def _all_by(path: str, case: Case) -> dict[str, frozenset[str]]:
    return {file.name: frozenset({path}) for file in case.files}


def _rewritten(
    group: MergeTask, settings: WriteSettings, case: Case
) -> tuple[list[str], dict[str, frozenset[str]], str]:
    if case.path == "absorb":
        written = write_with(Absorption({0: (group,)}), 0, [], settings, NAMES)
        if written.failed:
            raise RewriteFailed(written.failed[0].why, path=None)
        return [file.path for file in written.files], _all_by("absorb", case), ""
    if case.path == "cluster":
        done = write_clustered(group, _order(settings), settings, NAMES)
        return [file.path for file in done.files], _all_by("cluster", case), ""
    settings = replace(settings, merge_by_copying=case.path != "decode")
    merged = merge(group, settings, NAMES)
    if "internal-error" in merged.decode_reasons:
        raise AssertionError("an internal error of icesize in a copy")
    ways = ways_of(group, settings, merged) if case.path in COPYING else {}
    moved = _all_by(case.path if case.path == "natural" else "decode", case) | ways
    return [file.path for file in merged.files], moved, ", ".join(sorted(merged.decode_reasons))


def _order(settings: WriteSettings) -> RowOrder:
    by = [field for field in settings.schema.fields if field.name in ("many", "id")]
    names, ids = tuple(field.name for field in by), tuple(field.field_id for field in by)
    return RowOrder.of(ClusterBy(names, ids, SORT, 2**40), settings)


def _by_pyarrow(table: Table, paths: Sequence[str]) -> list[str]:
    return [row for path in paths for row in spelt(pq.read_table(local(path)))]


def _by_duckdb(table: Table | None, paths: Sequence[str]) -> list[str]:
    return [
        row
        for path in paths
        for row in spelt(_duckdb().sql(f"SELECT * FROM read_parquet('{local(path)}')").to_arrow_table())
    ]


@lru_cache(None)
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    return connection


def _by_pyiceberg(table: Table, paths: Sequence[str]) -> list[str]:
    """Read the files as a scan of the table reads files that are planned."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    return spelt(scan.to_table([FileScanTask(data_file(_written(path))) for path in paths]))


_READERS: dict[str, Callable[[Table, Sequence[str]], list[str]]] = {
    "pyarrow": _by_pyarrow,
    "DuckDB": _by_duckdb,
    "PyIceberg": _by_pyiceberg,
}


def _has_fixed_lists(path: str) -> bool:
    """Whether PyIceberg 0.12 cannot read a file: it takes offsets of lists of structs, and those of a fixed size have
    none. The Arrow schema is in a copy if all input files have the same."""
    kinds = pq.read_schema(local(path))
    return "points" in kinds.names and bool(pa.types.is_fixed_size_list(kinds.field("points").type))


def difference(wanted: Sequence[str], found: Sequence[str]) -> str:
    """The first row that is missing, and the first that should not be there."""
    missing, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    first = [next(iter(rows), "none")[:700] for rows in (missing, more)]
    return f"{len(wanted)} rows, {len(found)} found; missing {first[0]}; instead {first[1]}"
