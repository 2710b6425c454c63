"""The key of a table: removes rows of the same key, and changes the rule of upserts."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes

from icesize.environment import Stopwatch, rounded
from icesize.errors import CommitConflict, TableError
from icesize.maintenance.table_context import TableContext
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.uncommitted import uncommitted
from icesize.planning.upsert_rule import UpsertRule
from icesize.results import Result
from icesize.table.commit import batch_commit
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, CommitRequest, ConcurrentChange
from icesize.table.commit.steps.change_rule import ChangeRule
from icesize.table.commit.steps.row_delta import RowDelta
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import file_prefix
from icesize.table.state.handle import Current
from icesize.table.upserts.deletes import DeleteFiles
from icesize.table.upserts.duplicate_rows import Doubled, DuplicateDeletes, Duplicates
from icesize.table.upserts.lookup import TableFiles
from icesize.table.upserts.settings import WantedRule, check_has_deletes
from icesize.table.upserts.state_files import bounds_reader
from icesize.units import format_count

LOG = logging.getLogger("icesize")


@dataclass(frozen=True)
class KeyReport(Result, job="keys"):
    """Outcome of `deduplicate` or `rekey`.

    Attributes:
        table: The full name of the table.
        key: The columns of the key.
        order_by: The columns by which the newest row of a key is recognized.
        changed: Sentences about what `rekey` changed in the stored rule; empty after `deduplicate`.
        doubled_keys: Keys with several rows.
        rows_deleted: Rows that `deduplicate` deleted, so that each key has one.
        data_files: Data files with such rows.
        snapshot_ids: The snapshot of the commit; empty if there was nothing to do, or after a dry run.
        dry_run: True after a dry run.
        notes: Sentences about rows without a key, and warnings about the table's settings.
        seconds: Seconds of each phase, and `total`.
    """

    table: str = ""
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    doubled_keys: int = 0
    rows_deleted: int = 0
    data_files: int = 0
    snapshot_ids: tuple[int, ...] = ()
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)


_FORGOTTEN = (
    "deletes that were remembered by the earlier rule are forgotten, because they do not compare by the new one: an "
    "event that is older than such a delete makes its row again"
)


def deduplicate(context: TableContext, wanted: WantedRule, *, dry_run: bool = False) -> KeyReport:
    """Delete all rows of each key but the newest, by position, in one commit.

    Raises UnsupportedTable, TableError, RewriteFailed, CommitConflict (nothing is visible) or CommitStateUnknown.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    metadata = current.table.metadata
    check_has_deletes(metadata, "deduplicate", current.name)
    rule = _rule_in(wanted, current.name, current)
    duplicates = duplicates_of(rule, current, context.handle.store)
    doubled = duplicates.at(batch_commit.state_of(context.handle, current))
    snapshot_ids: tuple[int, ...] = ()
    watch.lap("compare")
    if doubled.dying and not dry_run:
        doubled, snapshot_ids = _delete(context, current, duplicates, doubled)
        watch.lap("commit")
    return _report(current, rule, doubled, watch, snapshot_ids=snapshot_ids, dry_run=dry_run)


def _delete(
    context: TableContext, current: Current, duplicates: Duplicates, doubled: Doubled
) -> tuple[Doubled, tuple[int, ...]]:
    """Commit the deletes; return the rows that they delete, and the snapshot."""
    run_id, metadata, storage = context.environment.new_id(), current.table.metadata, duplicates.files.settings.storage
    with uncommitted(storage, file_prefix(run_id), context.environment) as (owner, environment):
        names = FileNames(owner.prefix, 0, 0, owner)
        source = DuplicateDeletes(duplicates, DeleteFiles(duplicates.files, current.policy, names))
        base = Base(current.head, metadata.schema(), metadata.spec(), metadata.format_version)
        request = CommitRequest(current.uuid, run_id, base, (RowDelta(source),), again="deduplicating again is safe")
        try:
            outcome = batch_commit.commit_request(context.handle, current, request, environment)
        except ConcurrentChange as lost:
            raise CommitConflict(
                f"Cannot deduplicate '{current.name}': {lost}; nothing was committed", table=current.name
            ) from lost
    return source.doubled or doubled, context.refresh(outcome).snapshot_ids


def rekey(context: TableContext, wanted: WantedRule, *, dry_run: bool = False) -> KeyReport:
    """Store another rule of upserts in the table. Each value of a new key must have one row.

    A batch that was compared by the earlier rule conflicts with the commit, and is planned again.

    Raises TableError if a key has several rows, UnsupportedTable, RewriteFailed, CommitConflict or CommitStateUnknown.
    """
    current, watch = context.load(), Stopwatch(context.environment)
    compared = list[Doubled]()

    def check(loaded: Loaded, rule: UpsertRule) -> None:
        doubled = duplicates_of(rule, replace(current, table=loaded.table), loaded.store).at(loaded)
        compared.append(doubled)
        if doubled.keys:
            key = ",".join(_names(current, rule.key))
            command = f"icesize deduplicate {shlex.quote(current.name)} --key {shlex.quote(key)}"
            have = "1 key has" if doubled.keys == 1 else f"{doubled.keys:,} keys have"
            raise TableError(
                f"Cannot rekey '{current.name}': {have} more than one row by ({key}): {doubled.examples}. Delete the "
                f"older ones with `{command}`",
                table=current.name,
                keys=doubled.keys,
            )

    step = ChangeRule(partial(_rule_in, wanted, current.name), check)
    outcome = context.commit(current, step, "changing it again is safe", dry_run=dry_run)
    watch.lap("commit")
    metadata, doubled = current.table.metadata, compared[-1] if compared else None
    if not (done := outcome.done_by(ChangeRule)):
        return _report(current, _rule_in(wanted, current.name, current), doubled, watch, dry_run=dry_run)
    [change], names = done, {each.field_id: each.name for each in metadata.schema().fields}
    changed = ["the table had no key"] if change.earlier is None else change.earlier.differences(change.rule, names)
    ids = () if dry_run else outcome.snapshot_ids
    report = _report(current, change.rule, doubled, watch, snapshot_ids=ids, changed=tuple(changed), dry_run=dry_run)
    if change.forgets_deletes and not dry_run:
        LOG.warning("%s: %s", current.name, _FORGOTTEN)  # a program may not print the report
    return replace(report, notes=(*report.notes, _FORGOTTEN)) if change.forgets_deletes else report


def _rule_in(wanted: WantedRule, name: str, state: Current | Loaded) -> UpsertRule:
    """Return the rule in a state; what the caller left out is that of the table."""
    metadata = state.table.metadata
    return wanted.instead_of(UpsertRule.of(metadata.properties), metadata.schema(), name)


def duplicates_of(rule: UpsertRule, current: Current, store: ManifestStore) -> Duplicates:
    """Return a search for rows of the same key in a table."""
    reader = bounds_reader(rule, current.table.schema(), store)
    return Duplicates(rule, TableFiles(current.settings()), token_bytes(32), reader)


def _names(current: Current, field_ids: Iterable[int]) -> tuple[str, ...]:
    schema = current.table.metadata.schema()
    return tuple(str(schema.find_column_name(each)) for each in field_ids)


def _report(
    current: Current, rule: UpsertRule, doubled: Doubled | None, watch: Stopwatch, *,
    snapshot_ids: tuple[int, ...] = (), changed: tuple[str, ...] = (), dry_run: bool,
) -> KeyReport:  # fmt: skip
    notes = current.warnings
    if doubled is not None and doubled.without_key:
        rows = format_count(doubled.without_key, "row")
        notes = (*notes, f"{rows} with a NULL in the key: no upsert replaces them")
    return KeyReport(
        current.name, _names(current, rule.key), _names(current, rule.order), changed,
        doubled.keys if doubled else 0, doubled.rows if doubled else 0, len(doubled.dying) if doubled else 0,
        snapshot_ids, dry_run, notes, rounded(watch.seconds),
    )  # fmt: skip
