"""Files in the table's location that no state of the table needs: found by listing, deleted when old enough.

A file still being written looks the same, so age decides. In doubt, the file stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from urllib.parse import quote_plus

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import IO_THREADS, concurrently
from icesize.environment import Environment, Stopwatch
from icesize.errors import PolicyError, TableError
from icesize.events import Progress
from icesize.results import Result
from icesize.storage.locations import FOLDER_PROPERTIES, check_folder, is_inside, normalised
from icesize.storage.stores import Listed
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import storage_errors
from icesize.table.cleanup.may_delete import (
    NEEDED,
    UNADDRESSABLE,
    CatalogOwners,
    Others,
    Owners,
    batch_of,
    files_of_unlisted_tables,
    stay_notes,
    unlisted_table_notes,
)
from icesize.table.records import ledger
from icesize.table.storage.bulk_delete import Deleter, Deletion, FileErrors, Group, deleter, failure_note
from icesize.table.storage.identity import LocalFiles
from icesize.table.storage.inventory import Inventory
from icesize.table.storage.listing import clock_difference, incomplete_uploads, list_files, storage_now_ms
from icesize.table.storage.shared_location import (
    UnfinishedMetadataError,
    check_may_delete,
    check_spelling,
    is_metadata_file,
    other_tables_among,
)
from icesize.units import format_count

ORPHANS_OLDER_THAN_MS = 3 * 24 * 3_600_000
"""Age at which an unreferenced file is an orphan: Iceberg's default."""
DAY_MS = 24 * 3_600_000
"""Least age of a file that may be deleted, even of a batch up to the ledger's newest one.

Merges in the background carry the number of a committed batch, and a new checkpoint counts from 0 again.
"""

EXAMPLES = 20
LISTED_BETWEEN_TELLING = 1000
"""Listed files between two progress reports: the files in one response of an object store."""


@dataclass(frozen=True)
class OrphanReport(Result, job="orphans"):
    """The result of a search for orphan files.

    Attributes:
        table: The full name of the table.
        dry_run: True if the call deleted nothing.
        older_than_ms: The minimum age of an orphan file, in milliseconds.
        files_found: Orphan files that are old enough to be deleted.
        bytes_found: Bytes of these files.
        files_deleted: Files deleted.
        bytes_deleted: Bytes of these files.
        files_failed: Files that could not be deleted.
        too_recent: Unreferenced files that are too recent: a running batch may need them.
        from_committed_batches: Files among `files_found` that icesize wrote for batches that were committed with
            other files. They are orphans after one day.
        incomplete_uploads: Unfinished multipart uploads; None if the storage cannot list them, and in `maintain`, which
            does not list them.
        examples: Up to 20 locations of the files found.
        notes: Remarks as sentences.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    dry_run: bool = True
    older_than_ms: int = ORPHANS_OLDER_THAN_MS
    files_found: int = 0
    bytes_found: int = 0
    files_deleted: int = 0
    bytes_deleted: int = 0
    files_failed: int = 0
    too_recent: int = 0
    from_committed_batches: int = 0
    incomplete_uploads: int | None = None
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class OrphanSearch:
    """One search for orphan files of a table.

    `reload` returns the current table. The observer gets the number of listed files, later the numbers of tried and of
    due files.

    An `inventory` replaces the listing. It is old, so ages count from its newest file, and a file that was written
    again since then stays. Unfinished uploads are listed if `counts_uploads`.
    """

    name: str
    reload: Callable[[], Table]
    environment: Environment = field(default_factory=Environment)
    max_concurrent_deletes: int = IO_THREADS
    others: CatalogOwners | None = None
    inventory: Inventory | None = None
    counts_uploads: bool = True
    _owners: Owners = field(default_factory=lambda: Owners(""))

    def run(
        self, older_than_ms: int = ORPHANS_OLDER_THAN_MS, dry_run: bool = True, *, trust_location: bool = False
    ) -> OrphanReport:
        """Find orphan files and, unless `dry_run`, delete them.

        The clock of the storage measures the ages of files; a dry run, which writes nothing, uses the local clock. The
        table is loaded again after the listing and before every thousand deletes. Files that it needs by
        then stay. Files that other tables of the catalog refer to stay as well. These tables and their manifests are
        read once, and only if a file is due. If some of them cannot be read, only files with icesize's own names are
        orphans; the same holds if a metadata file shows that a table of no name in the catalog was or is here. With
        `trust_location` no other table is loaded.

        Raises:
            PolicyError: The age is under a day.
            UnsupportedTable: `gc.enabled` is false, or the catalog has branches of its own.
            TableError: Another name of the catalog has the same UUID or location, or another table replaces this one
                during the run. Also if the listing fails; nothing is deleted then.
        """
        if older_than_ms < DAY_MS:
            raise PolicyError(
                f"'older-than' ({older_than_ms / 1000:.15g} s) must be >= 24 h: a batch that is being written would "
                "lose its files",
                older_than_ms=older_than_ms,
            )
        watch = Stopwatch(self.environment)
        self._progress(0)
        table = self.reload()
        check_may_delete(table, self.name)
        location = check_folder(table.location())
        now_ms, notes = self._now(table, location, dry_run)
        self._owners = Owners(location, local=LocalFiles.of(table), trusts_location=trust_location)
        self._learn(table)
        watch.lap("read")
        listed = self._counted((self.inventory or list_files)(table.io, location))
        found = find_orphans(listed, table.metadata, self._owners, now_ms, older_than_ms)
        uploads = incomplete_uploads(table.io, location) if self.counts_uploads else None
        watch.lap("list")
        self._learn(self._again(table))
        due, spared = self._orphans(table, found)
        check_spelling(location, self._owners.own, [file.location for file in due])
        watch.lap("check")
        report = replace(
            _report(due, found), table=self.name, dry_run=dry_run, older_than_ms=older_than_ms,
            incomplete_uploads=uploads, notes=(*notes, *spared, *_left_alone(table.metadata, found)),
        )  # fmt: skip
        if not dry_run:
            report = self._delete(table, due, report)
            watch.lap("delete")
        return replace(report, seconds=watch.seconds)

    def _now(self, table: Table, location: str, dry_run: bool) -> tuple[int, list[str]]:
        """Return the time from which ages count, and notes: that of the storage, if files are to be deleted."""
        now_ms, notes = self.environment.now_ms(), list[str]()
        if not dry_run:
            storage_ms = storage_now_ms(table.io, location, self.environment.new_id)
            if differs := clock_difference(storage_ms - now_ms):
                notes.append(f"the clock of the storage is {differs}; its time counts")
            now_ms = storage_ms
        if self.inventory is not None:
            now_ms = min(now_ms, self.inventory.taken_ms)
            taken = datetime.fromtimestamp(now_ms / 1000, timezone.utc)
            notes.append(f"ages count from the newest file of the inventory ({taken:%Y-%m-%d %H:%M:%S} UTC)")
        return now_ms, notes

    def _progress(self, done: int, total: int | None = None) -> None:
        self.environment.observe(Progress("orphans", done, total))

    def _counted(self, listed: Iterable[Listed]) -> Iterator[Listed]:
        for number, file in enumerate(listed, 1):
            self._owners.local.listed(normalised(file.location))
            if number % LISTED_BETWEEN_TELLING == 0:
                self._progress(number)
            yield file

    def _learn(self, table: Table) -> None:
        """Add the files that this state of the table needs; files that earlier states needed stay in the set."""
        cannot = f"Cannot read which files '{self.name}' needs"
        with storage_errors(cannot, "icesize deleted no file", table=self.name):
            self._owners.own.add(table.metadata, table.metadata_location, table.io)

    def _orphans(self, table: Table, found: FoundOrphans) -> tuple[tuple[Listed, ...], list[str]]:
        """Return the due files that no table needs, and notes on the others."""
        owners = self._owners
        unlisted = found.other_tables(table)
        due = [each for each in found.due if each.location not in found.being_written]
        if due:
            owners.others = self._others(table, unlisted)
            owners.local.add(owners.own)
        reasons = {file: owners.why_stays(file.location) for file in due}
        notes = [*stay_notes(Counter(reasons.values()), owners.others.named())]
        if due and owners.others.doubts and not owners.trusts_location:
            doubts = "; ".join(owners.others.doubts)
            notes.append(f"{doubts}. Use --trust-location if no other table has files here")
        orphans = tuple(file for file, why in reasons.items() if not why)
        return orphans, [*notes, *unlisted_table_notes(unlisted)]

    def _others(self, table: Table, unlisted: dict[str, list[str]]) -> Others:
        """Return the files of other tables; tables of the catalog are removed from `unlisted`."""
        others = files_of_unlisted_tables(table.io, unlisted, self.name)
        if self._owners.trusts_location:
            return others
        catalog = self.others or CatalogOwners(table.catalog, table.name())
        catalog.check_names(table, self.name)
        known = catalog.of_orphans(table)
        for uuid in catalog.uuids() & unlisted.keys():
            del unlisted[uuid]
        doubts = [f"metadata files of another table ({uuid}) lie here" for uuid in unlisted]
        return Others(known.numbers | others.numbers, (*known.doubts, *doubts[:1]))

    def _again(self, before: Table) -> Table:
        table = self.reload()
        if table.metadata.table_uuid != before.metadata.table_uuid:
            raise TableError(
                f"Cannot clean up '{self.name}': it was dropped and recreated during the run. Start again",
                table=self.name,
            )
        return table

    def _delete(self, table: Table, due: tuple[Listed, ...], report: OrphanReport) -> OrphanReport:
        sizes = {file.location: file.size_bytes for file in due}
        times_ms = {file.location: file.modified_ms for file in due} if self.inventory else {}

        def look() -> Deleter:
            latest = self._again(table)
            self._learn(latest)
            self._owners.local.add(self._owners.own)
            # vended credentials expire, so the deleter uses those of the newest load
            remove = deleter(latest.io)
            if not times_ms:
                return remove
            return replace(remove, delete=partial(_remove_unchanged, latest.io, remove, times_ms))

        deletion = Deletion(
            look, self._owners.why_stays, len(due), self._progress, self.max_concurrent_deletes, self.environment
        )
        deletion.run(sizes)
        failed, spared = len(deletion.failures), deletion.spared
        notes = [f"{format_count(spared, 'file')} became part of the table during the run"] if spared else []
        if failed:
            notes.append(failure_note(deletion.failures))
        return replace(
            report,
            files_deleted=len(deletion.tried) - failed,
            bytes_deleted=sum(sizes[each] for each in deletion.tried if each not in deletion.failures),
            files_failed=failed,
            notes=(*report.notes, *notes),
        )


def _remove_unchanged(io: FileIO, remover: Deleter, times_ms: Mapping[str, int], group: Group) -> FileErrors:
    """Remove files of an inventory, except those that were written again since then.

    Inventories round times down to seconds.
    """
    storage = Storage.of(io)

    def changed(file: str) -> Exception | None:
        try:
            if storage.inspect(file).modified_ms < times_ms[file] + 1000:
                return None
            return TableError(f"Cannot delete {file}: it was written after the inventory", location=file)
        except FileNotFoundError:
            return None
        except Exception as error:  # each storage library raises its own errors
            return error

    found = zip(group, concurrently(changed, group), strict=True)
    errors = {file: error for file, error in found if error is not None}
    return errors | remover.delete([file for file in group if file not in errors])


def _report(due: Sequence[Listed], found: FoundOrphans) -> OrphanReport:
    """Return the counts of a search that deleted nothing yet."""
    return OrphanReport(
        files_found=len(due),
        bytes_found=sum(file.size_bytes for file in due),
        too_recent=found.too_recent,
        from_committed_batches=sum(file.location in found.from_committed_batches for file in due),
        examples=tuple(file.location for file in due[:EXAMPLES]),
    )


def _left_alone(metadata: TableMetadata, found: FoundOrphans) -> Iterator[str]:
    for key in FOLDER_PROPERTIES:
        place = metadata.properties.get(key)
        if place and normalised(place) != normalised(metadata.location) and not is_inside(place, metadata.location):
            yield f"'{key}' ({place}) lies outside of the table's location and was not searched"
    if found.being_written:
        files = format_count(len(found.being_written), "metadata file")
        yield f"{files} without a whole text left alone for three days: perhaps still being written"
    if found.unaddressable:
        yield f"{format_count(found.unaddressable, 'file')} left alone: {UNADDRESSABLE}"


@dataclass
class FoundOrphans:
    """Files that no state of the table needs.

    `due` are old enough to be deleted; `from_committed_batches` of them were written by icesize for batches that are
    committed. `metadata_files` are those of them whose owner must be checked. `being_written` are recent, incomplete
    metadata files.
    """

    due: list[Listed] = field(default_factory=list)
    metadata_files: list[str] = field(default_factory=list)
    young_metadata_files: set[str] = field(default_factory=set)
    being_written: set[str] = field(default_factory=set)
    from_committed_batches: set[str] = field(default_factory=set)
    too_recent: int = 0
    unaddressable: int = 0

    def other_tables(self, table: Table) -> dict[str, list[str]]:
        """Return the metadata files of other tables by UUID. Raises TableError if the owner of one is unknown.

        A young, incomplete file is still being written. An older one was left by a writer that died.
        """

        def may_pass(location: str, error: TableError) -> bool:
            if not isinstance(error, UnfinishedMetadataError):
                return False
            if location in self.young_metadata_files:
                self.being_written.add(location)
            return bool(error.is_cut) or location in self.being_written

        return other_tables_among(table.io, str(table.metadata.table_uuid), self.metadata_files, may_pass)


def find_orphans(
    listed: Iterable[Listed], metadata: TableMetadata, owners: Owners, now_ms: int, older_than_ms: int
) -> FoundOrphans:
    """Return the files of a listing that no state of the table needs.

    Hidden files are skipped, as in Iceberg: files with a path segment below the table's location that begins with `.`
    or `_`. Segments of a partition field with such a name are not hidden. `now_ms` is the time of the storage's clock.
    """
    visible = _visibility(metadata)
    # the newest committed batch by the stream's hash in file names: no earlier batch can be written any more
    passed_by = dict[str, int]()
    for each in ledger.entries(metadata.properties):
        stream = ledger.stream_hash(each.stream_id)
        passed_by[stream] = min(each.batch_id, passed_by.get(stream, each.batch_id))
    found = FoundOrphans()
    for file in listed:
        if not visible(file.location) or (why := owners.why_stays(file.location)) == NEEDED:
            continue
        age_ms = now_ms - file.modified_ms
        if is_metadata_file(file.location):
            found.metadata_files.append(file.location)
            if age_ms < max(older_than_ms, ORPHANS_OLDER_THAN_MS):
                found.young_metadata_files.add(file.location)
        stream, batch = batch_of(file.location) or ("", 0)
        ours = batch <= passed_by.get(stream, -1)
        if why == UNADDRESSABLE:
            found.unaddressable += 1
        elif age_ms >= older_than_ms or (ours and age_ms >= DAY_MS):
            found.due.append(file)
            if ours:
                found.from_committed_batches.add(file.location)
        else:
            found.too_recent += 1
    found.due.sort(key=lambda each: each.location)
    return found


def _visibility(metadata: TableMetadata) -> Callable[[str], bool]:
    names = {f.name for spec in metadata.partition_specs for f in spec.fields if f.name[0] in "._"}
    partitions = tuple(f"{written}=" for name in names for written in (name, quote_plus(name)))
    start = len(metadata.location.rstrip("/"))

    def visible(location: str) -> bool:
        segments = location[start:].split("/")
        return not any(s[:1] in ("_", ".") and not s.startswith(partitions) for s in segments)

    return visible
