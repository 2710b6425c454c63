"""A partition back to what it was at an older snapshot: the files that it had under new names, one OVERWRITE.

Files that are still there stay. The others come back under new names, because no path may be removed by one snapshot
and live in a later one: engines that expire snapshots (Iceberg's Java library) delete what an expired one has removed
without looking whether it is there again. A copy is made byte for byte, as a data file knows neither its name nor its
table. It is a new file, so no delete since then reaches it, nor one of then: position deletes name a path, and equality
deletes have a number. Files that had deletes are written again without the deleted rows.

The snapshot is tagged while this works, so that no expiry takes its files before they are copied. The commit asserts
the tag as well as the head that everything was checked on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate

from icesize import failpoints
from icesize.concurrency import concurrently, workers
from icesize.environment import Environment, Stopwatch, rounded
from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, RewriteFailed, TableError
from icesize.maintenance.restore_plan import Difference, Restoration
from icesize.maintenance.table_context import TableContext
from icesize.parquet.files.data_file import Merged, Rewritten
from icesize.parquet.files.names import FileNames, copy_prefix, location_by
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.storage import Storage
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.parquet.rewriting.merge import merge
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.report import Report
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief, readable, storage_errors
from icesize.table.catalog.history import age_of, summary_of
from icesize.table.catalog.locations import split
from icesize.table.commit import submit
from icesize.table.commit.batch_commit import work_of
from icesize.table.commit.input_metrics import with_carried_over_metrics
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.protocol import Base, CommitRequest, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.overwrite import Overwrite
from icesize.table.manifests.entries import Entry, under_new_path
from icesize.table.manifests.store import ManifestStore
from icesize.table.past.versions import versions
from icesize.table.records.ledger import stream_hash
from icesize.table.records.summary import RESTORED_ID, RUN_ID
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.naming import known_snapshot
from icesize.table.storage.listing import arrow_filesystem, fsspec_filesystem

LOG = logging.getLogger("icesize")

TAG_PREFIX = "icesize-restore-"
_TAG_AGE_MS = 86_400_000
PIECE_BYTES = 8 * 2**20
END_BYTES = 64 * 2**10
"""Compared of a file and of its copy, and more if a Parquet footer is longer."""


@dataclass(frozen=True)
class _Planned:
    """What a restore does, worked out on a state of the table; `undone` are batches by stream."""

    work: Restoration
    difference: Difference
    undone: dict[str, list[int]]

    @classmethod
    def on(cls, current: Current, partition: PartitionKey, snapshot_id: int) -> _Planned:
        """Work it out; raises what a restore refuses with."""
        work = Restoration(current.name, partition, snapshot_id)
        with readable(current.name):
            difference = work.difference(current.table)
            # read before anything is committed: an expiry may take the older snapshots meanwhile
            return cls(work, difference, _batches_undone(current.table, work.store, partition, difference.version))

    def report(self, current: Current, seconds: Mapping[str, float]) -> Report:
        """What would be done; says so when that is nothing."""
        table, planned = current.table, self.difference
        notes = [*current.warnings]
        if not planned.removed and not planned.brought_back:
            notes.append(f"{self.work.label(table)} is what it was at snapshot {self.work.snapshot_id}")
        return Report(
            table=current.name,
            files_added=planned.brought_back,
            files_removed=len(planned.removed),
            partitions_touched=int(bool(planned.removed or planned.brought_back)),
            rows_before=planned.rows_before,
            rows_after=planned.rows_after,
            seconds=rounded(seconds),
            notes=tuple(notes),
        )


def restore(
    context: TableContext, current: Current, partition: PartitionKey, snapshot_id: int, *, dry_run: bool = False
) -> Report:
    """Restore a partition to an earlier version at a snapshot; other partitions stay as they are.

    A dry run changes nothing, and reports what would be done.

    Raises TableError for an unknown snapshot, one without files of the partition, a file that is gone, and deletes that
    were pending on its files and cannot be applied; UnsupportedTable when the partition spec has changed; RewriteFailed
    when a copy is not what the original was, or deletes or files with deletes cannot be read; CommitConflict when the
    partition is not what it was in `current` any more, or others keep committing. Nothing has changed then, the copies
    are removed, and the tag as far as the catalog lets us. CommitStateUnknown: it may be visible.
    """
    handle, environment, watch = context.handle, context.environment, Stopwatch(context.environment)
    planned, run_id = _Planned.on(current, partition, snapshot_id), environment.new_id()
    settings = current.settings() if planned.difference.rewritten else None
    watch.lap("plan")
    report = planned.report(current, watch.seconds)
    if dry_run or not report.partitions_touched:
        return report
    # all that can fail before anything is written comes before the tag
    prefix, tag = f"{stream_hash(run_id)}-0", TAG_PREFIX + run_id
    copies = _copies(current, partition, planned.difference.copied, prefix)
    storage = settings.storage if settings else Storage(current.table.io)
    submit.change(handle, current, _tagged(run_id, tag, snapshot_id, environment.now_ms), environment)
    try:
        with uncommitted(storage, prefix, environment) as (owner, telling):
            _make(current, owner, copies)
            rewrites = tuple[Merged, ...]()
            if settings:
                rewrites = _without_deleted_rows(planned.difference.rewritten, current.table.io, settings, owner)
            watch.lap("copy")
            step = _Restore(tag, planned, _overwrite(planned, copies, rewrites))
            again = f"restoring again is safe. T{_may_be_left(tag)[1:]}"
            request = CommitRequest(current.uuid, run_id, Base(current.head), (step,), again=again)
            outcome = submit.commit(handle, current, request, telling)
    except CommitStateUnknown:
        raise
    except BaseException:
        _untag(handle, current, tag, environment)
        raise
    watch.lap("commit")
    context.engine.refresh(handle)
    return replace(
        _counted(report, step.overwrite, rewrites),
        snapshot_ids=outcome.snapshot_ids,
        operations=outcome.operations,
        seconds=rounded(watch.seconds),
        notes=(*report.notes, *_consequences(current.table, planned, outcome.snapshot_ids)),
    )


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
    """A data file as a manifest describes it, and where its copy goes."""

    entry: Entry
    new_path: str


def _without_deleted_rows(
    files: Sequence[FileFact], io: FileIO, settings: WriteSettings, owner: Uncommitted
) -> tuple[Merged, ...]:
    """Write each file again without its deleted rows, in threads of this process; of one without any row nothing comes.

    The prefix of `owner` begins the names of the new files, but for those of clustered sets. Raises RewriteFailed for a
    file, or deletes of it, that cannot be read.
    """

    def rewrite(number: int, file: FileFact) -> Rewritten:
        names = FileNames(copy_prefix(file.path, owner.prefix), number, 0, owner)
        return merge(MergeTask((file,), file.partition), settings, names)

    results = tuple(concurrently(lambda each: rewrite(*each), enumerate(files), workers()))
    return with_carried_over_metrics(results, (), io, lambda: settings)


def _overwrite(planned: _Planned, copies: Sequence[Copy], rewrites: Sequence[Merged]) -> Overwrite:
    written = tuple(file for result in rewrites for file in result.files)
    copied = tuple(under_new_path(copy.entry, copy.new_path) for copy in copies)
    return Overwrite(planned.difference.removed, written, copied)


def _counted(report: Report, made: Overwrite, rewrites: Sequence[Merged]) -> Report:
    """A forecast with what has become of it; which rows are deleted is known by now."""
    copied_bytes, work = sum(entry.size_bytes for entry in made.copied), work_of(rewrites)
    known_before = sum(file.deleted_rows for result in rewrites for file in result.inputs)
    deleted = sum(result.rows_deleted for result in rewrites)
    return replace(
        report,
        files_added=len(made.paths),
        bytes_written=copied_bytes + sum(file.size_bytes for file in made.files),
        rows_after=(report.rows_after or 0) + known_before - deleted,
        **{**work, "bytes_copied": copied_bytes + work["bytes_copied"]},
    )


def copy_files(io: FileIO, owner: Uncommitted, copies: Sequence[Copy]) -> None:
    """Make all copies, each checked against what its manifest says; `owner` knows of them from before they exist.

    It runs in threads of this process: an object store copies by itself, and elsewhere the bytes go through here piece
    by piece. Raises TableError for a file that is gone, RewriteFailed for a copy of another size or number of rows, and
    whatever storage raises.
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
        # an interrupt may have left this thread behind, and whoever gave up has looked for the file already
        owner.delete([copy.new_path])
        raise


def _write(io: FileIO, owner: Uncommitted, copy: Copy) -> None:
    entry, path = copy.entry, copy.new_path
    try:
        if not _copied_by_store(io, entry.path, path):
            with owner.create(path) as stream:
                for piece in owner.storage.pieces(entry.path, PIECE_BYTES):
                    stream.write(piece)
    except FileNotFoundError as error:
        raise TableError(f"Cannot copy a file: {entry.path} is gone", path=entry.path) from error
    owner.finished(path, entry.size_bytes)
    _check_end(owner.storage, entry, path)


def _check_end(storage: Storage, entry: Entry, path: str) -> None:
    """Raise `RewriteFailed` unless a copy ends as its file does, and has its rows: a footer counts all values."""
    size, is_parquet = entry.size_bytes, entry.file_format == "PARQUET"
    end = storage.tail(entry.path, size, min(size, END_BYTES))
    # the length of the footer, then four letters
    footer_bytes = min(size, int.from_bytes(end[-8:-4], "little") + 8) if is_parquet else 0
    if len(end) < footer_bytes:
        end = storage.tail(entry.path, size, footer_bytes)
    why = ""
    if storage.tail(path, size, len(end)) != end:
        why = "its copy has another footer. Restore again; if that fails, too, look at the storage"
    elif is_parquet and not entry.encrypted and (rows := pq.read_metadata(pa.BufferReader(end)).num_rows) != entry.rows:
        why = f"it has {rows} rows, its manifest records {entry.rows}, check the table's metadata"
    if why:
        raise RewriteFailed(f"Cannot copy {entry.path}: {why}", path=entry.path)


def _copied_by_store(io: FileIO, path: str, new_path: str) -> bool:
    """Whether an object store that holds both has made the copy; False where there is none, or it cannot.

    What hinders it (size, a missing right, no such request) does not matter: reading and writing is tried next.
    """
    (scheme, bucket, _), (new_scheme, new_bucket, _) = split(path), split(new_path)
    if scheme == "file" or (scheme, bucket) != (new_scheme, new_bucket):
        return False
    try:
        if isinstance(io, PyArrowFileIO):
            filesystem, source = arrow_filesystem(io, path)
            filesystem.copy_file(source, arrow_filesystem(io, new_path)[1])
            return True
        if isinstance(io, FsspecFileIO):
            fsspec_filesystem(io, path).cp_file(path, new_path)
            return True
    except Exception as error:  # of whatever the storage is reached by
        LOG.info("%s does not copy %s by itself (%s); it is read and written", scheme, path, brief(error))
    return False


def _make(current: Current, owner: Uncommitted, copies: Sequence[Copy]) -> None:
    try:
        copy_files(current.table.io, owner, copies)
    except IcesizeError:
        raise
    except Exception as error:  # of whatever the storage is reached by
        raise TableError(
            f"Cannot restore a partition of '{current.name}': a file could not be copied ({brief(error)}); nothing was "
            "changed",
            table=current.name,
        ) from error


def _untag(handle: TableHandle, current: Current, tag: str, environment: Environment) -> None:
    try:
        submit.change(handle, current, _untagged(environment.new_id(), tag), environment)
    except Exception as error:  # must not hide why the restore failed; the tag has an age after which expiry removes it
        LOG.warning(
            "could not remove tag %s of %s (%s); the next expiry after a day will", tag, current.name, brief(error)
        )


def _tagged(run_id: str, tag: str, snapshot_id: int, now_ms: Callable[[], int]) -> MetadataChange[bool]:
    """The change that holds the snapshot: a tag that any engine's expiry removes a day after a crash."""

    def build(loaded: Loaded) -> tuple[Staged, bool]:
        snapshot = known_snapshot(loaded.table.metadata, snapshot_id)
        # a tag is as old as the snapshot that it names
        age_ms = max(0, now_ms() - snapshot.timestamp_ms)
        update = SetSnapshotRefUpdate(
            ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=snapshot_id,
            max_ref_age_ms=age_ms + _TAG_AGE_MS, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
        )  # fmt: skip
        return loaded.staged([update], AssertRefSnapshotId(ref=tag, snapshot_id=None)), True

    advice = f"The partition did not change; {_may_be_left(tag)}"
    return MetadataChange(run_id, advice, build, lambda loaded: tag in loaded.table.metadata.refs)


def _untagged(run_id: str, tag: str) -> MetadataChange[bool]:
    """The change that lets the snapshot go after a restore that failed."""

    def build(loaded: Loaded) -> tuple[Staged, bool]:
        held = loaded.table.metadata.refs[tag].snapshot_id
        remove = RemoveSnapshotRefUpdate(ref_name=tag)
        return loaded.staged([remove], AssertRefSnapshotId(ref=tag, snapshot_id=held)), True

    advice = _may_be_left(tag).capitalize()
    return MetadataChange(run_id, advice, build, lambda loaded: tag not in loaded.table.metadata.refs)


def _may_be_left(tag: str) -> str:
    return f"tag '{tag}' may be left over, and expiry removes it after a day"


@dataclass(frozen=True)
class _Restore(Step):
    """The step that brings the new files; what was planned is checked again on each state that it is tried on."""

    tag: str
    planned: _Planned
    overwrite: Overwrite

    @property
    def paths(self) -> Collection[str]:
        return self.overwrite.paths

    def validate(self, state: Loaded, base: Base, earlier: Collection[str]) -> Kept:
        """Raise what `difference` raises on the state that is committed to, and for what is new."""
        table, work = state.table, self.planned.work
        opening.check_supported(table)
        if not work.difference(table).same_as(self.planned.difference):
            raise CommitConflict(
                f"{work.cannot(table)}: another writer changed the partition during the restore; nothing was changed. "
                "Look at its versions, and restore again if you still want to",
                table=state.name,
            )
        if self.tag not in table.metadata.refs:
            raise TableError(
                f"{work.cannot(table)}: another writer removed tag '{self.tag}', which held the snapshot; nothing was "
                "changed. Restore again",
                table=state.name,
            )
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        held = self.planned.work.snapshot_id
        builder.requirements.append(AssertRefSnapshotId(ref=self.tag, snapshot_id=held))
        builder.updates.append(RemoveSnapshotRefUpdate(ref_name=self.tag))
        return self.overwrite.stage(builder, summary)

    def summarize(self, base: Base) -> Mapping[str, str]:
        return {RESTORED_ID: str(self.planned.work.snapshot_id)}


def _consequences(table: Table, planned: _Planned, snapshot_ids: Sequence[int]) -> list[str]:
    """What a person has to know: readers that stop, and rows of streams that nobody will write again."""
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
    if rewritten := planned.difference.rewritten:
        several = f"{len(rewritten)} files of that version had deletes: they were" if len(rewritten) > 1 else ""
        one = "1 file of that version had deletes: it was"
        notes.append(f"{several or one} written again without the deleted rows")
    version = planned.difference.version
    if version.schema_id is not None and version.schema_id != table.metadata.current_schema_id:
        notes.append("the schema has changed since that version: columns that came later are NULL in its rows")
    return notes


def _batches_undone(
    table: Table, store: ManifestStore, partition: PartitionKey, version: Snapshot
) -> dict[str, list[int]]:
    """By stream the batches that brought rows into the partition after the version."""
    ages = {s.snapshot_id: age_of(s) for s in table.metadata.snapshots}
    run_id = summary_of(version, RUN_ID)
    same_commit = (s for s in table.metadata.snapshots if run_id is not None and summary_of(s, RUN_ID) == run_id)
    age = max(age_of(s) for s in (version, *same_commit))
    known = versions(table.metadata, table.io, store, partition)
    batches: dict[str, list[int]] = {}
    for newer, older in zip_longest(known, known[1:]):
        # merges of a batch may touch partitions that it has no rows for
        brought_rows = older is None or newer.rows > older.rows
        if ages[newer.snapshot_id] > age and brought_rows and newer.stream_id is not None:
            batches.setdefault(newer.stream_id, []).append(newer.batch_id or 0)
    return batches
