"""Checks that data files contain what the manifests and their own footers record: each file is read as a whole.

Files are read in threads, in bounded memory: one column of one row group at a time, of local files and of large remote
ones, which are copied to the local disk before.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyiceberg import types
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import concurrently, workers
from icesize.errors import ArgumentError, TableError
from icesize.maintenance.verify.rules import CONTENTS, GONE, LOST, NAN_BOUNDS, OF_ENTRIES, ROW_IDS, Found
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.data_file import FileMetrics
from icesize.parquet.files.lineage_fields import inherited_values
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import BytesSource, LocalSource, SectionSource, Source
from icesize.parquet.verify.entry import compared
from icesize.parquet.verify.file import FileVerification, verify_file
from icesize.planning.files import FileFact, PartitionKey
from icesize.policy import DEFAULT_TARGET_BYTES
from icesize.storage.stores import WHOLE_READ_BYTES
from icesize.storage.table_storage import Storage, local_folder
from icesize.table.commit.steps.repair import Correction
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.file_columns import ManifestFacts, read_described

MOST_RUNS = 10_000
"""Most runs of row ids of a file that a file of verified paths keeps."""
MOST_ROWS = 50_000_000
"""Most rows whose ids are compared one by one: 400 MB."""
_DELETED_PATH, _DELETED_POSITION = 2147483546, 2147483545
"""Field ids of the columns of position delete files (Iceberg specification, reserved field ids)."""

Runs = NDArray[np.int64]
"""Row ids of a file in the order of its rows: the first id and the number of ids of each run, in two lines."""


class Task(NamedTuple):
    """A file to read, with what the manifest has of it."""

    fact: FileFact
    metrics: FileMetrics
    is_deletes: bool


class Checked(NamedTuple):
    """A file that was read: what is wrong with it, and its row ids if it stores any.

    If its entry is wrong, and the file is not, `true` has what the entry should have.
    """

    task: Task
    found: list[Found]
    runs: Runs | None
    true: Correction | None = None


class Resume:
    """The paths of verified files without a finding, one per line, in a local file; None keeps none.

    Raises ArgumentError for a file of another table.
    """

    def __init__(self, path: Path | None, table_uuid: str) -> None:
        self.done: dict[str, Runs | None] = {}
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        records = [record for line in lines if isinstance(record := _parsed(line), dict)]
        if path and lines and (not records or records[0].get("table") != table_uuid):
            raise ArgumentError(f"{path} has no verified files of this table")
        for record in records[1:]:
            runs = record.get("row_ids")
            self.done[record["path"]] = None if runs is None else np.array(runs, np.int64).reshape(2, -1)
        if path and not lines:
            path.write_text(json.dumps({"table": table_uuid}) + "\n", encoding="utf-8")

    def note(self, checked: Checked) -> None:
        """Remember a file that was verified."""
        runs = checked.runs
        if self._path and not checked.found and (runs is None or runs.shape[1] <= MOST_RUNS):
            record = {"path": checked.task.fact.path} | ({} if runs is None else {"row_ids": runs.tolist()})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # the last line, if the process was killed while it wrote it
        return None


@dataclass
class FileCheck:
    """Reads the files that manifests list, each once, and compares them with their entries.

    Attributes:
        notes: Sentences about files that were not read.
        files: Number of files that were verified, also those of an earlier run.
        runs: The row ids of files that store some, by path.
        true: What the entries of files should have, where they are wrong, by path.
        only: The paths of the files to read; None for all.
    """

    metadata: TableMetadata
    io: FileIO
    resume: Resume
    notes: list[str] = field(default_factory=list)
    files: int = 0
    runs: dict[str, Runs] = field(default_factory=dict)
    true: dict[str, Correction] = field(default_factory=dict)
    only: Collection[str] | None = None
    _seen: set[int] = field(default_factory=set)
    _skipped: int = 0

    def __post_init__(self) -> None:
        self._storage = Storage.of(self.io)
        schemas = sorted(self.metadata.schemas, key=lambda schema: schema.schema_id)
        of_deletes = {_DELETED_PATH: types.StringType(), _DELETED_POSITION: types.LongType()}
        self._types: dict[int, types.IcebergType] = {**of_deletes}
        for schema in schemas:
            self._types |= {i: schema.find_type(i) for i in schema.field_ids}
        self._ids = {each.name: each.field_id for each in self.metadata.schema().fields}

    def run(self, manifests: Iterable[ManifestFile], progress: Callable[[int], object]) -> Iterator[Found]:
        """Yield what is wrong with the files of these manifests; `progress` is called with their number so far.

        Raises the errors of the storage for a manifest that it does not have.
        """
        for checked in concurrently(self._checked, self._tasks(manifests), workers(), workers()):
            self.files += 1
            progress(self.files)
            self.resume.note(checked)
            if checked.runs is not None:
                self.runs[checked.task.fact.path] = checked.runs
            if checked.true is not None:
                self.true[checked.task.fact.path] = checked.true
            yield from checked.found
        if self._skipped:
            why = "they are encrypted, not Parquet, or PyArrow cannot open their names"
            self.notes.append(f"{self._skipped:,} files were not read: {why}")

    def _tasks(self, manifests: Iterable[ManifestFile]) -> Iterator[Task]:
        done = self.resume.done
        for manifest in manifests:
            facts, metrics = read_described(self.io, manifest, lambda each: each)
            for row, fact in zip(facts.live.tolist(), facts.files(facts.live), strict=True):
                if (number := hash(fact.path)) in self._seen:
                    continue
                self._seen.add(number)
                if self.only is not None and fact.path not in self.only:
                    continue
                if fact.obstacle is not None or self._storage.cannot_open(fact.path):
                    # vectors are compared with their Puffin files by a rule of their own
                    self._skipped += manifest.content == ManifestContent.DATA
                elif fact.path not in done:
                    yield Task(fact, metrics[row], manifest.content == ManifestContent.DELETES)
                else:
                    self.files += 1
                    if (runs := done[fact.path]) is not None:
                        self.runs[fact.path] = runs

    def _checked(self, task: Task) -> Checked:
        path = task.fact.path
        try:
            with opened(self._storage, path, task.fact.size_bytes) as source:
                verification, size_bytes = verify_file(source, path), source.size_bytes
        except FileNotFoundError:
            return Checked(task, [Found(LOST, path, GONE)], None)
        found = [
            Found(rule, path, problem.removeprefix(f"{path}: "))
            for rule, problems in ((CONTENTS, verification.problems), (NAN_BOUNDS, verification.nan_bounds))
            for problem in problems
        ]
        is_damaged = bool(verification.problems)
        wrong, metrics = compared(verification, task.metrics, self._types, self._ids)
        found += [Found(OF_ENTRIES[name], path, why) for name, why in wrong]
        true = None
        if not is_damaged and (found or size_bytes != task.fact.size_bytes):
            true = Correction(size_bytes, metrics, task.fact.rows)
        return Checked(task, found, None if task.is_deletes else runs_of(verification, task.fact), true)


@contextmanager
def opened(storage: Storage, path: str, size_bytes: int) -> Iterator[Source]:
    """Open a file for reading at any position; a large remote one is copied to the local disk. Raises `OSError`."""
    if (local := storage.local_path(path)) is not None:
        yield LocalSource(local)
    elif size_bytes <= WHOLE_READ_BYTES:
        yield BytesSource(storage.fetch(path))
    else:
        with tempfile.TemporaryFile(prefix="icesize-", dir=local_folder()) as file:
            for piece in storage.pieces(path, size_bytes, WHOLE_READ_BYTES):
                file.write(piece)
            file.flush()
            yield SectionSource(file.fileno(), 0, file.tell())


def runs_of(verification: FileVerification, fact: FileFact) -> Runs | None:
    """Return the row ids of a file that stores some; None for others, whose rows have the ids of their places."""
    if verification.row_ids is None or fact.first_row_id is None or len(verification.row_ids) != fact.rows:
        return None
    inherited = np.arange(fact.first_row_id, fact.first_row_id + fact.rows, dtype=np.int64)
    stored = verification.row_ids.is_valid().to_numpy()
    ids = np.where(stored, verification.row_ids.fill_null(0).to_numpy(), inherited)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ids) != 1]))[: ids.size]
    return np.stack([ids[starts], np.diff(np.append(starts, ids.size))])


def shared_row_ids(
    metadata: TableMetadata, io: FileIO, data: Sequence[ManifestFacts], index: DeleteIndex, runs: Mapping[str, Runs]
) -> Iterator[Found]:
    """Yield the files of which live rows have the ids of other live rows.

    Only files whose ranges of ids overlap are looked at row by row: an updated row keeps its id, and the older row is
    deleted.

    Args:
        metadata: The table's metadata.
        io: Reads delete files.
        data: The data manifests of the newest snapshot.
        index: Its delete files.
        runs: The row ids of files that store some, by path.
    """
    files = _overlapping_files(data, runs)
    if not files:
        return
    if (rows := sum(file.rows for file in files)) > MOST_ROWS:
        raise TableError(f"row ids of {rows:,} rows were not compared: more than {MOST_ROWS:,}")
    settings = WriteSettings.of(metadata, io.properties, DEFAULT_TARGET_BYTES)
    by_partition = defaultdict[PartitionKey, list[FileFact]](list)
    for file in files:
        by_partition[file.partition].append(index.noted(file))
    ids, owners, order = list[NDArray[np.int64]](), list[NDArray[np.int64]](), list[FileFact]()
    for partition, group in by_partition.items():
        deleted = deleted_rows(group, settings, partition).positions
        for file in group:
            own = np.delete(_ids(file, runs), np.array(deleted.get(file.path, ()), np.int64))
            ids.append(own)
            owners.append(np.full(own.size, len(order)))
            order.append(file)
    every, owner = np.concatenate(ids), np.concatenate(owners)
    places = np.argsort(every, kind="stable")
    again = every[places][1:] == every[places][:-1]
    shared = np.zeros(every.size, np.bool_)
    shared[places[1:][again]] = shared[places[:-1][again]] = True
    for number in np.unique(owner[shared]).tolist():
        own = every[shared & (owner == number)]
        detail = f"{own.size:,} live rows have the id of another one, such as {own[0]}"
        yield Found(ROW_IDS, order[number].path, detail, is_certain=False)


def _ids(file: FileFact, runs: Mapping[str, Runs]) -> NDArray[np.int64]:
    """Return the row id of each row of a file."""
    if file.path not in runs:
        return inherited_values(0, file.rows, *file.inherited(0))
    first, count = runs[file.path]
    starts = np.cumsum(count) - count
    return np.repeat(first - starts, count) + np.arange(int(count.sum()), dtype=np.int64)


def _overlapping_files(data: Sequence[ManifestFacts], runs: Mapping[str, Runs]) -> list[FileFact]:
    """Return the live files whose ranges of row ids overlap others."""
    if not runs:
        return []  # the ranges of files are compared by a rule of their own
    first, rows, owners = list[NDArray[np.int64]](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    begin = 0
    for facts in data:
        plain = np.ones(facts.live.size, np.bool_)
        for place, path in enumerate(facts.paths()):
            if (own := runs.get(path)) is not None:
                plain[place] = False
                first.append(own[0])
                rows.append(own[1])
                owners.append(np.full(own.shape[1], begin + place))
        chosen = np.flatnonzero(plain & (facts.first_row_ids[facts.live] >= 0))
        first.append(facts.first_row_ids[facts.live[chosen]].astype(np.int64))
        rows.append(facts.columns.rows[facts.live[chosen]].astype(np.int64))
        owners.append(begin + chosen)
        begin += facts.live.size
    starts, counts, owner = (np.concatenate(parts) for parts in (first, rows, owners))
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate((starts + counts)[order])
    begins_inside = np.concatenate([[False], starts[order][1:] < ends[:-1]])[: starts.size]
    # the range before one that begins inside of it overlaps, too
    group = np.cumsum(~begins_inside)
    several = np.bincount(group)[group] > 1
    suspects = np.unique(owner[order[several]])
    found, begin = list[FileFact](), 0
    for facts in data:
        own = suspects[(suspects >= begin) & (suspects < begin + facts.live.size)] - begin
        found += facts.files(facts.live[own])
        begin += facts.live.size
    return found
