"""Runs one case and compares the rows."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.copying.copy_merge import plan_copy
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import MergeResult, WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import NAME_MAPPING, Limits, WriteSettings
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import cluster
from icesize.parquet.rewriting.merge import merge, with_enough_outputs
from icesize.parquet.verify.file import verify
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeGroup
from integration.writers.cases import Case
from integration.writers.pool import Made
from integration.writers.rows import NESTED, SCHEMA, id_of, spelt, with_empty_lists
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
    moved: str = "decoded"
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
    append(table, [_entry(path, file) for path, file in zip(paths, case.files, strict=True)])
    table, live = _with_deletes(lake.catalog.load_table(table.name()), case, paths)
    before = [Path(path).read_bytes() for path in paths]
    try:
        outputs, moved = _merged(lake, table, case)
    except (IcesizeError, RewriteFailed) as error:
        if [Path(path).read_bytes() for path in paths] != before:
            return Outcome(f"an input file changed, and: {error}")
        return Outcome(refused=str(error)) if _is_right(error, case) else Outcome(f"refused: {error}")
    if problems := _problems(outputs, case):
        return Outcome(f"verify: {problems[:3]}")
    out = lake.table([f.name for f in table.schema().fields])
    append(out, [_written(path) for path in outputs])
    for name, read in _READERS.items():
        if name == "PyIceberg" and any(map(_has_fixed_lists, outputs)):
            continue
        found = sorted(read(out, [local(path) for path in outputs]))
        wanted = live
        if name == "PyIceberg":
            wanted, found = with_empty_lists(live), with_empty_lists(found)
        if found != wanted:
            return Outcome(f"{name} reads other rows: {difference(wanted, found)}")
    if keep:
        lake.kept.append((case, ".".join(out.name()[-2:]), live))
    return Outcome(moved=moved[0], why=moved[1])


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
    return file.writer == "fastparquet" and pa.types.is_binary(pq.read_schema(file.path).field(column).type)


def _problems(outputs: Sequence[str], case: Case) -> list[str]:
    """What is wrong with merged files.

    Not what was wrong with an input file in the same way: pyarrow 12 to 21 and DuckDB count NULLs of structs in
    lists wrongly, arrow-rs takes pages of NaN for pages of NULL, and a copy has these statistics.
    """
    found = [problem for path in outputs for problem in verify(LocalSource(local(path)), "merged").problems]
    if not found:
        return []
    known = {_kind(p) for f in case.files for p in verify(LocalSource(f.path), "input").problems}
    return [problem for problem in found if _kind(problem) not in known]


def _kind(problem: str) -> tuple[str, ...]:
    """The column by its fields' names, and the words of a problem."""
    words = problem.partition("column ")[2].replace(".item", ".element")
    return tuple(word for word in words.split() if not any(c.isdigit() for c in word))


def _entry(path: str, file: Made) -> WrittenFile:
    return WrittenFile(f"file://{path}", Path(path).stat().st_size, file.rows, PartitionKey(0))


def _written(path: str) -> WrittenFile:
    return WrittenFile(path, Path(local(path)).stat().st_size, pq.read_metadata(local(path)).num_rows, PartitionKey(0))


@lru_cache(100)
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
    for file, path in zip(case.files, paths, strict=True):
        rows = input_rows(file)
        gone = set[int]()
        if case.deletes in ("position", "both"):
            share = chance.choice((0.01, 0.3, 1.0)) if len(case.files) > 1 else 0.3
            run = chance.randrange(len(rows) + 1)
            gone = {i for i in range(len(rows)) if chance.random() < share}
            if share < 1 and chance.random() < 0.5:  # whole pages stay as they are, and others are cut
                gone = set(range(run, min(len(rows), run + len(rows) // 10 + 1)))
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


def _merged(lake: Lake, table: Table, case: Case) -> tuple[list[str], tuple[str, str]]:
    """The paths of the files that there are instead, and how their bytes came there, and why they were decoded."""
    opened = icesize.open(None, ".".join(("lake", *table.name()[-2:])), catalog=lake.catalog)
    if case.path == "maintain":
        opened.maintain()
        opened.compact()
        files = lake.catalog.load_table(table.name()).inspect.files()
        if any(content for content in files["content"].to_pylist()):
            raise RewriteFailed("Cannot finish: maintain left delete files", path=None)
        return files["file_path"].to_pylist(), ("maintained", "")
    groups = opened.plan().groups
    if [len(group.inputs) for group in groups] != [len(case.files)]:
        raise RewriteFailed("Cannot merge all files together: the plan leaves some apart", path=None)
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    return _rewritten(groups[0], settings, case)


def _rewritten(group: MergeGroup, settings: WriteSettings, case: Case) -> tuple[list[str], tuple[str, str]]:
    if case.path == "absorb":
        written = write_with(Absorption({0: (group,)}), 0, [], settings, NAMES)
        if written.failed:
            raise RewriteFailed(written.failed[0], path=None)
        return [file.path for file in written.files], ("absorbed", "")
    if case.path == "cluster":
        done = cluster(group, _order(settings), settings, NAMES)
        return [file.path for file in done.files], ("clustered", "")
    settings = replace(settings, merge_by_copying=case.path != "decode", limits=_limits(case))
    merged = merge(group, settings, NAMES)
    if "internal-error" in merged.decoded_because:
        raise AssertionError("an internal error of icesize in a copy")
    ways = "decoded" if case.path == "decode" else ", ".join(_ways(group, settings, merged))
    return [file.path for file in merged.files], (ways, ", ".join(sorted(merged.decoded_because)))


def _ways(group: MergeGroup, settings: WriteSettings, merged: MergeResult) -> list[str]:
    """How the bytes of a merge moved, by its plan."""
    with Fetched(settings, 1) as fetched:
        deleted = deleted_rows(group.inputs, settings, group.partition, fetched)
        outputs = with_enough_outputs(group, settings, deleted).outputs
        try:
            plan = plan_copy(group.inputs, outputs, settings, fetched.fetch, deleted=deleted.positions)
        except CopyRefused:
            return ["decoded"]
    if dict(plan.decoded_because) != dict(merged.decoded_because):
        return ["decoded"]  # pages are read after the plan is made
    columns = [
        (run, run.plan.is_copied(i, run.parts), column.top in run.plan.reencode, run.plan.numbers[i])
        for run in plan.runs
        for i, column in enumerate(run.parts[0].footer.columns)
    ]
    changed = [(run, numbers) for run, copied, again, numbers in columns if not copied and not again]
    happened = {
        "whole": any(output.whole for output in plan.outputs),
        "pages": any(copied for _, copied, _, _ in columns),
        "cut pages": any(part.deleted for run, _ in changed for part in run.parts),
        "renumbered": any(numbers for _, numbers in changed),
        "columns encoded again": any(again for _, _, again, _ in columns),
        "files decoded beside": bool(plan.refused),
    }
    return [way for way, found in happened.items() if found]


def _limits(case: Case) -> Limits:
    """The limits of a path; where the path is forced, pages are cut or renumbered, or their columns encoded again."""
    limits, chance = LIMITS.get(case.path, Limits()), random.Random(case.seed)
    if case.path not in ("pages", "whole"):
        return limits
    return replace(limits, cut_cost=chance.choice((0.0, 0.0, 100.0)), renumber_page_ns=chance.choice((0, 10**9)))


def _order(settings: WriteSettings) -> RowOrder:
    by = [field for field in settings.schema.fields if field.name in ("many", "id")]
    names, ids = tuple(field.name for field in by), tuple(field.field_id for field in by)
    return RowOrder.of(ClusterBy(names, ids, SORT, 2**40), settings)


def _by_duckdb(table: Table | None, paths: Sequence[str]) -> list[str]:
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
