"""A whole expiry: decide, commit, delete, report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from icesize import failpoints
from icesize.concurrency import IO_THREADS
from icesize.environment import Environment, Stopwatch, rounded
from icesize.events import Progress
from icesize.planning.files import MAIN
from icesize.results import Result
from icesize.table.catalog.access_errors import brief, readable
from icesize.table.cleanup.checkpoints import read_checkpoint
from icesize.table.cleanup.expire_commit import NOTHING_LEFT, Expiry, ExpiryDecision
from icesize.table.cleanup.expired_files import KINDS, Deletions, ExpiryCleanup, FindOthers, due_files
from icesize.table.cleanup.may_delete import (
    OUTSIDE,
    CatalogOwners,
    Others,
    files_of_unlisted_tables,
    stay_notes,
    unlisted_table_notes,
)
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.commit import batch_commit
from icesize.table.state.handle import Current, TableHandle
from icesize.table.storage.bulk_delete import delete_all, failure_note
from icesize.table.storage.reachable import Reachable
from icesize.table.storage.shared_location import check_may_delete, other_tables_beside

if TYPE_CHECKING:
    from pyiceberg.table import Table

LOG = logging.getLogger("icesize")


@dataclass(frozen=True)
class ExpiryReport(Result, job="expire"):
    """The result of an expiry.

    Attributes:
        table: The full name of the table.
        dry_run: True if the call changed nothing; counts then show what an expiry would delete.
        snapshots_before: Number of snapshots before the expiry.
        snapshot_ids_expired: Ids of the expired snapshots.
        refs_removed: Names of removed branches and tags.
        version_tags: Names of the tags that keep versions.
        kept: Id of each kept snapshot -> the rules that keep it.
        files_deleted: Number of deleted files, by kind.
        bytes_deleted: Bytes of these files.
        files_outside: Files outside the table's directories, which stay.
        files_failed: Files that could not be deleted; the next expiry retries.
        dropped_versions: Versions that could not be kept, as sentences.
        notes: Remarks as sentences.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    dry_run: bool = False
    snapshots_before: int = 0
    snapshot_ids_expired: tuple[int, ...] = ()
    refs_removed: tuple[str, ...] = ()
    version_tags: tuple[str, ...] = ()
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files_deleted: dict[str, int] = field(default_factory=dict)
    bytes_deleted: int = 0
    files_outside: int = 0
    files_failed: int = 0
    dropped_versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


def expire(
    handle: TableHandle,
    options: ExpireOptions,
    environment: Environment,
    *,
    dry_run: bool = False,
    max_concurrent_deletes: int = IO_THREADS,
    others: CatalogOwners | None = None,
) -> ExpiryReport:
    """Remove the snapshots that no rule keeps, then the files that only they needed.

    If an expiry is killed between the two or during the deletion, the next one continues. The table is loaded again
    after every thousand deleted files. A pass over several tables gives `others`, so that it loads each
    table of the catalog once.

    Raises:
        UnsupportedTable: `gc.enabled` is false, or the catalog has branches of its own.
        PolicyError: The rules are invalid.
        TableError: A reader's position cannot be kept, or files would be deleted and another name of the catalog has
            the same UUID or location.
        CommitConflict: Nothing expired.
        CommitStateUnknown: Snapshots may have expired; nothing was deleted.
    """
    # it concerns all branches, whatever the session writes to
    watch, handle = Stopwatch(environment), replace(handle, branch=MAIN, spark_conf={})
    environment.observe(Progress("expiry", 0))
    current = handle.load(environment)
    check_may_delete(current.table, current.name)
    owners, unlisted = others or CatalogOwners(handle.catalog, current.table.name()), dict[str, list[str]]()

    def check_owners(table: Table) -> None:
        owners.check_names(table, current.name)

    def find_others(table: Table) -> Others:
        unlisted.update(other_tables_beside(table))
        beside = files_of_unlisted_tables(table.io, unlisted, current.name)
        return Others(owners.of_expired(table).numbers | beside.numbers)

    readers = [read_checkpoint(path, current.table.io.properties) for path in options.readers]
    expiry = Expiry(current, options, readers, environment.now_ms(), environment.new_id(), handle.current, check_owners)
    if dry_run:
        decision = expiry.decide(batch_commit.state_of(handle, current))
        with readable(current.name):
            deletions = _would_delete(current, decision, find_others)
    else:
        failpoints.reach("expiry-decided")
        if handle.commit_lock is not None:
            # reads manifests before the lock is taken; `store` caches them for the decision under the lock
            expiry.decide(batch_commit.state_of(handle, current))
        decision = batch_commit.change(handle, current, expiry, environment)
        watch.lap("commit")
        cleanup = ExpiryCleanup(lambda: handle.load().table, find_others, environment, max_concurrent_deletes)
        deletions = _delete_all(decision, expiry, cleanup)
        watch.lap("delete")
    decision = replace(decision, notes=(*decision.notes, *unlisted_table_notes(unlisted)))
    return _report(current, decision, deletions, watch.seconds, dry_run)


def _delete_all(decision: ExpiryDecision, expiry: Expiry, cleanup: ExpiryCleanup) -> Deletions:
    """Delete the files that the expiry made unreachable.

    The expiry is already visible, so an error here becomes a note in the report.
    """
    try:
        if decision.superseded:
            delete_all(decision.superseded, cleanup.reload().io, cleanup.environment)
        if not decision.journal or decision.journal_location is None:
            return Deletions()
        return cleanup.run(decision.journal, decision.journal_location, tuple(expiry.tried))
    except Exception as error:  # catalog and storage clients raise their own errors
        LOG.warning("files of expired snapshots were not all deleted", exc_info=error)
        return Deletions(stopped=f"not all files could be deleted ({brief(error)}): the next expiry continues")


def _would_delete(current: Current, decision: ExpiryDecision, find_others: FindOthers) -> Deletions:
    if not decision.retention.expired and decision.journal_location is None:
        return Deletions()  # old metadata files are deleted only together with files of snapshots
    table, kept, stays = current.table, Reachable(), decision.retention.kept
    left = {
        key: [each for each in getattr(table.metadata, key) if each.snapshot_id in stays]
        for key in ("snapshots", "statistics", "partition_statistics")
    }
    kept.add(table.metadata.model_copy(update=left), table.metadata_location, table.io)
    due, deletions, _ = due_files(table, decision.journal, kept, find_others)
    deletions.count(due.values())
    return deletions


def _report(
    current: Current, decision: ExpiryDecision, deletions: Deletions, seconds: Mapping[str, float], dry_run: bool
) -> ExpiryReport:
    retention, before = decision.retention, deletions.expired_before
    expired = tuple(snapshot_id for snapshot_id in retention.expired if snapshot_id not in before)
    deleted = {kind: deletions.deleted[kind] for kind in KINDS if deletions.deleted[kind]}
    notes = [*current.warnings, *decision.notes, deletions.stopped]
    if gone := len(retention.expired) - len(expired):
        both = f"another expiry came first and removed {gone:,} of these snapshots; this one deleted the files left"
        notes.append(both if expired or deleted else NOTHING_LEFT)
    if deletions.failures:
        notes.append(f"{failure_note(deletions.failures)}; the next expiry tries again")
    notes += stay_notes(deletions.stay, deletions.other_tables)
    return ExpiryReport(
        table=current.name,
        dry_run=dry_run,
        snapshots_before=len(retention.kept) + len(expired),
        snapshot_ids_expired=expired,
        refs_removed=retention.expired_refs,
        version_tags=tuple(sorted(retention.version_tags)),
        kept={str(snapshot_id): reasons for snapshot_id, reasons in retention.kept.items()},
        files_deleted=deleted,
        bytes_deleted=deletions.bytes_deleted,
        files_outside=deletions.stay[OUTSIDE],
        files_failed=len(deletions.failures),
        dropped_versions=retention.dropped_versions,
        notes=tuple(dict.fromkeys(note for note in notes if note)),
        seconds=rounded(seconds),
    )
