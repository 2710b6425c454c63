"""Runs one case and compares the rows."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import NAME_MAPPING, Limits, WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import cluster
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeGroup
from integration.writers.cases import Case
from integration.writers.pool import Made
from integration.writers.rows import SCHEMA, id_of, spelt, with_empty_lists
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.parquet_files import append, local

_ANY = {"least_chunk_bytes": 1, "least_page_rows": 1, "least_page_bytes": 1, "least_copied_bytes": 1, "open_ns": 10**9}
LIMITS = {
    "natural": Limits(),
    "pages": Limits(good_group_rows=10**9, good_group_bytes=2**50, **_ANY),
    "whole": Limits(good_group_rows=1, **_ANY),
}
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
        catalog.create_namespace_if_not_exists("db")
        return Lake(folder, catalog)

    def table(self, columns: Collection[str]) -> Table:
        """A new table of these columns, whose files are read by field id, or else by name."""
        properties = {"format-version": "2", NAME_MAPPING: SCHEMA.name_mapping.model_dump_json()}
        table = self.catalog.create_table(f"db.t{next(_numbers)}", SCHEMA, properties=properties)
        if others := [field.name for field in SCHEMA.fields if field.name not in columns]:
            with table.update_schema() as change:
                for name in others:
                    change.delete_column(name)
        return table


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `failure` None if all is right, `refused` what icesize says it cannot read."""

    failure: str | None = None
    refused: str | None = None
    moved: str = "decoded"


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
    append(table, [_entry(path, file) for path, file in zip(paths, case.files, strict=True)])
    table, live = _with_deletes(lake.catalog.load_table(table.name()), case, paths)
    before = [Path(path).read_bytes() for path in paths]
    try:
        outputs, moved = _merged(lake, table, case)
    except (IcesizeError, RewriteFailed) as error:
        if [Path(path).read_bytes() for path in paths] != before:
            return Outcome(f"an input file changed, and: {error}")
        return Outcome(refused=str(error))
    for path in outputs:
        if problems := verify(LocalSource(local(path)), "merged").problems:
            return Outcome(f"verify: {problems[:3]}")
    out = lake.table([f.name for f in table.schema().fields])
    append(out, [_written(path) for path in outputs])
    for name, read in _READERS.items():
        found = sorted(read(out, [local(path) for path in outputs]))
        wanted = live
        if name == "PyIceberg":
            wanted, found = with_empty_lists(live), with_empty_lists(found)
        if found != wanted:
            return Outcome(f"{name} reads other rows: {difference(wanted, found)}")
    if keep:
        lake.kept.append((case, ".".join(out.name()[-2:]), live))
    return Outcome(moved=moved)


def _entry(path: str, file: Made) -> WrittenFile:
    return WrittenFile(f"file://{path}", Path(path).stat().st_size, file.rows, PartitionKey(0))


def _written(path: str) -> WrittenFile:
    return WrittenFile(path, Path(local(path)).stat().st_size, pq.read_metadata(local(path)).num_rows, PartitionKey(0))


@lru_cache(2_000)
def _input_rows(path: str) -> tuple[str, ...]:
    """The rows of a file in their order, as pyarrow reads them."""
    table = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
    by_id = {id_of(row): row for row in spelt(table)}
    return tuple(by_id[i] for i in table["id"].to_pylist())


def _with_deletes(table: Table, case: Case, paths: Sequence[str]) -> tuple[Table, list[str]]:
    """Delete rows by position, by value or both; returns the table and the rows that are left."""
    chance, left = random.Random(case.seed), list[str]()
    at, values = dict[str, list[int]](), list[int]()
    for file, path in zip(case.files, paths, strict=True):
        rows = _input_rows(file.path)
        gone = set[int]()
        if case.deletes in ("position", "both"):
            share = chance.choice((0.01, 0.3, 1.0)) if len(case.files) > 1 else 0.3
            gone = {i for i in range(len(rows)) if chance.random() < share}
            at[f"file://{path}"] = sorted(gone)
        if case.deletes in ("equality", "both"):
            some = [i for i in range(len(rows)) if chance.random() < 0.05]
            values += [id_of(rows[i]) for i in some]
            gone.update(some)
        left += [row for i, row in enumerate(rows) if i not in gone]
    ids = set(values)
    if places := {path: found for path, found in at.items() if found}:
        table = delete_positions(table, places)
    if ids:
        table = delete_equal(table, ["id"], [[i] for i in sorted(ids)])
    return table, sorted(row for row in left if id_of(row) not in ids)


def _merged(lake: Lake, table: Table, case: Case) -> tuple[list[str], str]:
    """The paths of the files that there are instead, and how their bytes came there."""
    opened = icesize.open(None, ".".join(("lake", *table.name()[-2:])), catalog=lake.catalog)
    if case.path == "maintain":
        opened.maintain()
        opened.compact()
        files = lake.catalog.load_table(table.name()).inspect.files()
        if any(content for content in files["content"].to_pylist()):
            raise RewriteFailed("Cannot finish: maintain left delete files", path=None)
        return files["file_path"].to_pylist(), "maintained"
    groups = opened.plan().groups
    if [len(group.inputs) for group in groups] != [len(case.files)]:
        raise RewriteFailed("Cannot merge all files together: the plan leaves some apart", path=None)
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    return _rewritten(groups[0], settings, case)


def _rewritten(group: MergeGroup, settings: WriteSettings, case: Case) -> tuple[list[str], str]:
    if case.path == "absorb":
        written = write_with(Absorption({0: (group,)}), 0, [], settings, NAMES)
        if written.failed:
            raise RewriteFailed(written.failed[0], path=None)
        return [file.path for file in written.files], "decoded"
    if case.path == "cluster":
        done = cluster(group, _order(settings), settings, NAMES)
        return [file.path for file in done.files], "decoded"
    settings = replace(settings, merge_by_copying=case.path != "decode", limits=LIMITS.get(case.path, Limits()))
    merged = merge(group, settings, NAMES)
    because = ", ".join(sorted(merged.decoded_because)) or "all"
    moved = "pages" if merged.pages_copied else "whole" if merged.bytes_copied else f"decoded ({because})"
    return [file.path for file in merged.files], moved


def _order(settings: WriteSettings) -> RowOrder:
    by = [field for field in settings.schema.fields if field.name in ("many", "id")]
    names, ids = tuple(field.name for field in by), tuple(field.field_id for field in by)
    return RowOrder.of(ClusterBy(names, ids, SORT, 2**40), settings)


def _by_duckdb(table: Table, paths: Sequence[str]) -> list[str]:
    rows = list[str]()
    for path in paths:
        with duckdb.connect() as connection:
            connection.sql("SET TimeZone = 'UTC'")
            rows += spelt(connection.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table())
    return rows


_READERS: dict[str, Callable[[Table, Sequence[str]], list[str]]] = {
    "pyarrow": lambda table, paths: [row for path in paths for row in spelt(pq.read_table(path))],
    "DuckDB": _by_duckdb,
    "PyIceberg": lambda table, paths: spelt(table.refresh().scan().to_arrow()) if paths else [],
}


def difference(wanted: Sequence[str], found: Sequence[str]) -> str:
    """The first row that is missing, and the first that should not be there."""
    missing, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    first = [next(iter(rows), "none")[:700] for rows in (missing, more)]
    return f"{len(wanted)} rows, {len(found)} found; missing {first[0]}; instead {first[1]}"
