"""Restores a partition to an older snapshot: its old files under new names, in one OVERWRITE.

Files that are still live stay. The others return under new names, because a path that one snapshot removed must not be
live in a later one. Engines that expire snapshots (Iceberg's Java library) delete the files that an expired snapshot
removed, even if they are live again.

A copy is made byte for byte, because a data file contains neither its own name nor its table. The copy is a new file,
so no delete applies to it, old or new: position deletes name a path, and equality deletes have a sequence number. Files
that had deletes are rewritten without the deleted rows. In format v3, a copy would get new row ids, so files whose rows
have row ids are rewritten by a merge, which stores the ids. Files that are older than the table's upgrade have none.

A tag protects the snapshot during the restore, so that no expiry deletes its files before they are copied. The commit
requires both the tag and the head on which everything was checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Snapshot

from icesize import failpoints
from icesize.concurrency import concurrently, workers
from icesize.environment import Environment, Stopwatch, rounded
from icesize.errors import CommitStateUnknown, RewriteFailed, TableError
from icesize.maintenance.jobs.keys import duplicates_of
from icesize.maintenance.table_context import TableContext
from icesize.parquet.files.data_file import Merged, Rewritten
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.files.names import FileNames, copy_prefix, location_by
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.parquet.rewriting.merge import merge
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.planning.upsert_rule import UpsertRule
from icesize.report import Report
from icesize.storage.locations import split
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import brief, readable, storage_errors
from icesize.table.catalog.history import age_of
from icesize.table.commit import batch_commit
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.batch_report import work_fields
from icesize.table.commit.input_metrics import with_carried_over_metrics
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.metadata_change import add_tag, remove_tag
from icesize.table.commit.protocol import Base, CommitRequest
from icesize.table.commit.steps.absorb import Absorb
from icesize.table.commit.steps.restore import Restore
from icesize.table.manifests.entries import Entry, under_new_path
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.commits import commits_of
from icesize.table.past.restore_plan import Difference, Restoration
from icesize.table.past.versions import versions
from icesize.table.records.ledger import file_prefix
from icesize.table.state.handle import Current, TableHandle

LOG = logging.getLogger("icesize")

TAG_PREFIX = "icesize-restore-"
PIECE_BYTES = 8 * 2**20
END_BYTES = 64 * 2**10
"""Bytes at the end of a file that are compared with its copy; more if the Parquet footer is longer."""


@dataclass(frozen=True)
class _Planned:
    """The plan of a restore for the state `current` of the table.

    `undone` are the batches after the version, by stream; `settings` those of rewritten files, if there are any.
    """

    current: Current
    work: Restoration
    difference: Difference
    undone: dict[str, list[int]]
    settings: WriteSettings | None

    @classmethod
    def on(cls, store: ManifestStore, current: Current, partition: PartitionKey, snapshot_id: int) -> _Planned:
        """Plan a restore; raise the error with which it is rejected."""
        work = Restoration(current.name, partition, snapshot_id, store)
        with readable(current.name):
            difference = work.difference(current.table)
            # read before anything is committed: a concurrent expiry may remove the older snapshots
            undone = _batches_undone(current.table, store, partition, difference.version)
        return cls(current, work, difference, undone, current.settings() if difference.rewritten else None)

    def report(self, seconds: Mapping[str, float]) -> Report:
        """Return the report of a dry run, with a note if there is nothing to do."""
        table, planned = self.current.table, self.difference
        notes = [*self.current.warnings]
        if not planned.removed and not planned.brought_back:
            notes.append(f"{self.work.label(table)} is what it was at snapshot {self.work.snapshot_id}")
        return Report(
            table=self.current.name,
            files_added=planned.brought_back,
            files_removed=len(planned.removed),
            partitions_touched=int(bool(planned.removed or planned.brought_back)),
            rows_before=planned.rows_before,
            rows_after=planned.rows_after,
            seconds=rounded(seconds),
            notes=tuple(notes),
        )

    def check_keys(self, state: Loaded, planned: Difference) -> None:
        """Raise TableError if keys of upserts would have several rows: keys may move between partitions."""
        rule = UpsertRule.of(state.properties)
        if rule is None:
            return
        duplicates = duplicates_of(rule, replace(self.current, table=state.table), state.store)
        doubled = duplicates.if_restored(state, self.work.partition, planned.then)
        if doubled.rows:
            keys = "1 key" if doubled.keys == 1 else f"{doubled.keys:,} keys"
            raise TableError(
                f"{self.work.cannot(state.table)}: {keys} would have several rows, because later versions of rows lie "
                f"in other partitions: {doubled.examples}. Delete those rows first; or read that version, and upsert "
                "its rows",
                table=self.current.name,
                keys=doubled.keys,
            )


def restore(
    context: TableContext, current: Current, partition: PartitionKey, snapshot_id: int, *, dry_run: bool = False
) -> Report:
    """Restore a partition to a snapshot; other partitions do not change.

    A dry run changes nothing, and returns the report that the restore would produce.

    Raises:
        TableError: The snapshot is unknown or has no files of the partition, a file is gone, deletes that were pending
            on its files cannot be applied, or keys of a table with upserts would have several rows.
        UnsupportedTable: The partition spec has changed.
        RewriteFailed: A copy differs from its original, or deletes or files with deletes cannot be read.
        CommitConflict: The partition differs from its state in `current`, or other writers committed first until the
            deadline.
        CommitStateUnknown: The restore may be visible.

    After every other error than CommitStateUnknown, nothing has changed. The copies are removed, and so is the tag if
    the catalog permits it.
    """
    watch = Stopwatch(context.environment)
    planned = _Planned.on(context.handle.store, current, partition, snapshot_id)
    watch.lap("plan")
    report = planned.report(watch.seconds)
    planned.check_keys(batch_commit.state_of(context.handle, current), planned.difference)
    if dry_run or not report.partitions_touched:
        return report
    return context.refresh(_committed(context, planned, report, watch))


def _committed(context: TableContext, planned: _Planned, report: Report, watch: Stopwatch) -> Report:
    """Bring the files back under new names, and commit them; return the forecast `report` with the outcome."""
    current, settings, run_id = planned.current, planned.settings, context.environment.new_id()
    table, prefix = current.table, file_prefix(run_id)
    storage = settings.storage if settings else Storage.of(table.io)
    # can fail without writing, so it comes before the tag
    copies = _copies(current, planned.work.partition, planned.difference.copied, prefix)
    with (
        _tagged(context, current, planned.work.snapshot_id, run_id) as tag,
        uncommitted(storage, prefix, context.environment) as (owner, environment),
    ):
        with storage_errors(f"Cannot copy files of '{current.name}'", "nothing was changed", table=current.name):
            copy_files(table.io, owner, copies)
        rewrites = _rewritten(planned.difference.rewritten, table.io, settings, owner) if settings else ()
        watch.lap("copy")
        made = _overwrite(planned, copies, rewrites)
        step = Restore(tag, planned.work, planned.difference, made, planned.check_keys)
        again = f"restoring again is safe. {_may_be_left(tag)}"
        request = CommitRequest(current.uuid, run_id, Base(current.head), (step,), again=again)
        outcome = batch_commit.commit_request(context.handle, current, request, environment)
    watch.lap("commit")
    return replace(
        _counted(report, outcome, made, rewrites),
        seconds=rounded(watch.seconds),
        notes=(*report.notes, *_consequences(table, planned, outcome.snapshot_ids)),
    )


@contextmanager
def _tagged(context: TableContext, current: Current, snapshot_id: int, run_id: str) -> Iterator[str]:
    """Hold a snapshot by a tag, which the commit in the block removes; remove it after an error.

    If the outcome of that commit is unknown, the tag stays.
    """
    tag, environment = TAG_PREFIX + run_id, context.environment
    left = f"The partition did not change. {_may_be_left(tag)}"
    add = add_tag(tag, snapshot_id, run_id, environment.now_ms, left)
    batch_commit.change(context.handle, current, add, environment)
    try:
        yield tag
    except CommitStateUnknown:
        raise
    except BaseException:
        _untag(context.handle, current, tag, environment)
        raise


def _copies(current: Current, partition: PartitionKey, entries: Sequence[Entry], prefix: str) -> list[Copy]:
    metadata = current.table.metadata
    spec, schema = metadata.specs()[partition.spec_id], metadata.schema()

    def copy(number: int, entry: Entry) -> Copy:
        name = FileNames(copy_prefix(entry.path, prefix), number, 0).next(entry.file_format.lower())
        return Copy(entry, location_by(provider, spec, schema, partition, name))

    cannot = f"Cannot name new files of '{current.name}'"
    with storage_errors(cannot, "check its location provider; nothing was changed", table=current.name):
        provider = load_location_provider(metadata.location, metadata.properties)
        return [copy(number, entry) for number, entry in enumerate(entries)]


@dataclass(frozen=True, slots=True)
class Copy:
    """A data file as a manifest describes it, and the path of its copy."""

    entry: Entry
    new_path: str


def _rewritten(
    files: Sequence[FileFact], io: FileIO, settings: WriteSettings, owner: Uncommitted
) -> tuple[Merged, ...]:
    """Rewrite each file without its deleted rows and with the lineage of the others, in threads of this process.

    Rows without row ids get new ones. A file without remaining rows has no output. The names of the new files begin
    with the prefix of `owner`, except those of clustered sets. Raises RewriteFailed if a file or its deletes cannot be
    read.
    """

    def rewrite(number: int, file: FileFact) -> Rewritten:
        names = FileNames(copy_prefix(file.path, owner.prefix), number, 0, owner)
        return merge(MergeTask((file,), file.partition), settings, names, new_ids=file.first_row_id is None)

    results = tuple(concurrently(lambda each: rewrite(*each), enumerate(files), workers()))
    return with_carried_over_metrics(results, (), io, lambda: settings)


def _overwrite(planned: _Planned, copies: Sequence[Copy], rewrites: Sequence[Merged]) -> Absorb:
    written = tuple(file for result in rewrites for file in result.files)
    copied = tuple(under_new_path(copy.entry, copy.new_path) for copy in copies)
    return Absorb(planned.difference.removed, written, copied)


def _counted(report: Report, outcome: CommitOutcome, made: Absorb, rewrites: Sequence[Merged]) -> Report:
    """Return a forecast with its outcome; the number of deleted rows is exact only now."""
    copied_bytes, work = sum(entry.size_bytes for entry in made.copied), work_fields(rewrites)
    known_before = sum(file.deleted_rows for result in rewrites for file in result.inputs)
    deleted = sum(result.rows_deleted for result in rewrites)
    return replace(
        report,
        snapshot_ids=outcome.snapshot_ids,
        operations=outcome.operations,
        metadata_bytes_written=outcome.metadata_bytes_written,
        files_added=len(made.paths),
        bytes_written=copied_bytes + sum(file.size_bytes for file in made.files),
        rows_after=(report.rows_after or 0) + known_before - deleted,
        **{**work, "bytes_copied": copied_bytes + work["bytes_copied"]},
    )


def copy_files(io: FileIO, owner: Uncommitted, copies: Sequence[Copy]) -> None:
    """Copy all files and check each copy against its manifest entry; `owner` records the copies before they exist.

    Object stores copy by themselves. In other storage, threads of this process copy the bytes piece by piece. Raises
    TableError if a file is gone, RewriteFailed for a copy with another size or number of rows, and any error of the
    storage.
    """
    owner.note(copy.new_path for copy in copies)
    for _ in concurrently(lambda copy: _copy(io, owner, copy), copies):
        pass
    failpoints.reach("files-written")


def _copy(io: FileIO, owner: Uncommitted, copy: Copy) -> None:
    failpoints.reach("writing")
    try:
        _write(io, owner, copy)
    except BaseException:
        # a second interrupt does not wait for this thread, so the noted files may be gone before it writes its own
        owner.delete([copy.new_path])
        raise


def _write(io: FileIO, owner: Uncommitted, copy: Copy) -> None:
    entry, path = copy.entry, copy.new_path
    try:
        if not _copied_by_store(owner.storage, entry.path, path):
            with owner.create(path) as stream:
                for piece in owner.storage.pieces(entry.path, entry.size_bytes, PIECE_BYTES):
                    stream.write(piece)
    except FileNotFoundError as error:
        raise TableError(f"Cannot copy a file: {entry.path} is gone", path=entry.path) from error
    owner.finished(path, entry.size_bytes)
    _check_end(owner.storage, entry, path)


def _check_end(storage: Storage, entry: Entry, path: str) -> None:
    """Raise RewriteFailed unless a copy ends as its original does and has its rows: a footer counts all values."""
    size, is_parquet = entry.size_bytes, entry.file_format == "PARQUET"
    end = storage.tail(entry.path, size, min(size, END_BYTES))
    # a Parquet file ends with the length of the footer, in 4 bytes, and 4 letters
    footer_bytes = min(size, int.from_bytes(end[-8:-4], "little") + 8) if is_parquet else 0
    if len(end) < footer_bytes:
        end = storage.tail(entry.path, size, footer_bytes)
    why = ""
    if storage.tail(path, size, len(end)) != end:
        why = "its copy has another footer. Restore again; if that also fails, look at the storage"
    elif is_parquet and not entry.encrypted and (rows := pq.read_metadata(pa.BufferReader(end)).num_rows) != entry.rows:
        why = f"it has {rows} rows, its manifest records {entry.rows}, check the table's metadata"
    if why:
        raise RewriteFailed(f"Cannot copy {entry.path}: {why}", path=entry.path)


def _copied_by_store(storage: Storage, path: str, new_path: str) -> bool:
    """Let an object store that holds both paths make the copy; return False if there is none, or it fails.

    The reason of the failure (size, a missing right, no such request) does not matter, because the caller then reads
    and writes the file.
    """
    if storage.local_path(path) is not None or split(path)[:2] != split(new_path)[:2]:
        return False
    try:
        storage.store(path).copy(path, new_path)
    except Exception as error:  # storage libraries have no common error class
        LOG.info("the store does not copy %s by itself (%s); it is read and written", path, brief(error))
        return False
    return True


def _untag(handle: TableHandle, current: Current, tag: str, environment: Environment) -> None:
    try:
        batch_commit.change(handle, current, remove_tag(tag, environment.new_id(), _may_be_left(tag)), environment)
    except Exception as error:  # must not hide the error of the restore; expiry removes the tag by its age
        LOG.warning(
            "could not remove tag %s of %s (%s); the next expiry after a day will", tag, current.name, brief(error)
        )


def _may_be_left(tag: str) -> str:
    return f"Tag '{tag}' may be left over, and expiry removes it after a day"


def _consequences(table: Table, planned: _Planned, snapshot_ids: Sequence[int]) -> list[str]:
    """Return notes for the user: readers that stop, and rows of streams that will not be delivered again."""
    notes = [
        f"stream readers of this table stop at snapshot {snapshot_id}, an overwrite (Spark continues with "
        "'streaming-skip-overwrite-snapshots')"
        for snapshot_id in snapshot_ids
    ]
    for stream_id, ids in planned.undone.items():
        several = f"{len(ids)} batches ({min(ids)} to {max(ids)}) stay"
        notes.append(
            f"rows of stream '{stream_id}' are gone from the partition and will not be replayed: "
            f"{several if len(ids) > 1 else f'batch {ids[0]} stays'} marked as committed"
        )
    if rewritten := [file for file in planned.difference.rewritten if file.delete_files]:
        several = f"{len(rewritten)} files of that version had deletes: they were" if len(rewritten) > 1 else ""
        one = "1 file of that version had deletes: it was"
        notes.append(f"{several or one} written again without the deleted rows")
    without_ids = planned.difference.copied or any(file.first_row_id is None for file in planned.difference.rewritten)
    if table.metadata.format_version >= FIRST_WITH_LINEAGE and without_ids:
        notes.append("that version is older than the upgrade to format v3: its rows get new row ids")
    version = planned.difference.version
    if version.schema_id is not None and version.schema_id != table.metadata.current_schema_id:
        notes.append(
            "the schema has changed since that version: columns that came later are NULL in its rows, or have their "
            "initial default"
        )
    return notes


def _batches_undone(
    table: Table, store: ManifestStore, partition: PartitionKey, version: Snapshot
) -> dict[str, list[int]]:
    """Return, by stream, the batches that added rows to the partition after the version."""
    ages = {s.snapshot_id: age_of(s) for s in table.metadata.snapshots}
    commits = commits_of(table.metadata)
    age = age_of(next((commit.last for commit in commits if version in commit.snapshots), version))
    known = versions(table.metadata, table.io, store, partition)
    batches: dict[str, list[int]] = {}
    for newer, older in zip_longest(known, known[1:]):
        # the merges of a batch may touch partitions to which it added no rows
        brought_rows = older is None or newer.rows > older.rows
        if ages[newer.snapshot_id] > age and brought_rows and newer.stream_id is not None:
            batches.setdefault(newer.stream_id, []).append(newer.batch_id or 0)
    return batches
