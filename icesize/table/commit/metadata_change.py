"""Changes of a table's metadata that add no snapshot: add columns, set or remove a tag, forget a stream."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import IcebergType, NestedField

from icesize.errors import SchemaMismatch, TableError
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE, check_column_names
from icesize.planning.files import MAIN
from icesize.table.catalog.pyiceberg_internals import changes_of
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.records import ledger
from icesize.table.state.naming import known_snapshot

T = TypeVar("T")

_TAG_AGE_MS = 86_400_000
"""Age at which any engine's expiry removes a tag that a crash left over: one day."""


@dataclass(frozen=True)
class MetadataChange(Change[T]):
    """A change built by functions of the state that it is tried on.

    `build` returns the attempt to commit on that state (None: nothing to do) and the result; it raises to refuse.
    `is_in` returns True for a state that already has the change of the newest attempt.
    """

    run_id: str
    advice: str
    build: Callable[[Loaded], tuple[Staged | None, T]]
    is_in: Callable[[Loaded], bool]

    def found(self, loaded: Loaded, attempts: Attempts[T]) -> T | None:
        """Return the result of the newest attempt if the table has its change."""
        return attempts.made[-1].result if attempts.made and self.is_in(loaded) else None

    def stage(self, loaded: Loaded, attempts: Attempts[T]) -> tuple[Staged | None, T]:
        return self.build(loaded)


def forget_stream(table: str, stream_id: str, run_id: str) -> MetadataChange[ledger.LedgerEntry]:
    """Return the change that removes a stream's entries of all branches; its result is the first of them.

    A concurrent batch of that stream commits before it, and its entry is removed, or after it, and its entry stays. The
    change raises TableError if the table has no such stream.
    """

    def entries_of(loaded: Loaded) -> list[ledger.LedgerEntry]:
        return [each for each in ledger.entries(loaded.properties) if each.stream_id == stream_id]

    def build(loaded: Loaded) -> tuple[Staged, ledger.LedgerEntry]:
        entries, metadata = entries_of(loaded), loaded.table.metadata
        if not entries:
            why = f"'{table}' has no such stream"
            raise TableError(f"Cannot forget stream '{stream_id}': {why}", table=table)
        # entries change only together with snapshots, so an unchanged head means an unchanged entry
        heads = {branch: metadata.refs.get(branch) for branch in (MAIN, *(each.branch for each in entries))}
        same = (AssertRefSnapshotId(ref=name, snapshot_id=ref and ref.snapshot_id) for name, ref in heads.items())
        return loaded.staged([RemovePropertiesUpdate(removals=[each.key for each in entries])], *same), entries[0]

    advice = f"Look whether `icesize streams {shlex.quote(table)}` still shows '{stream_id}'"
    return MetadataChange(run_id, advice, build, lambda loaded: not entries_of(loaded))


def add_columns(
    columns: Mapping[tuple[str, ...], IcebergType], case_sensitive: bool, run_id: str
) -> MetadataChange[list[str]]:
    """Return the change that adds optional columns, by path, nested ones too; its result is the names of those added.

    A column that another writer has added by then stays unchanged. Raises UnsupportedTable for names that format v3
    reserves, and SchemaMismatch for types that Parquet lacks: no file of the table could be written after that.
    """

    def missing(loaded: Loaded) -> list[tuple[str, ...]]:
        fold = str if case_sensitive else str.lower
        known = {fold(name) for name in loaded.table.schema().column_names}
        return [path for path in columns if fold(".".join(path)) not in known]

    def build(loaded: Loaded) -> tuple[Staged | None, list[str]]:
        new = missing(loaded)
        if not new:
            return None, []
        if loaded.format_version >= FIRST_WITH_LINEAGE:
            check_column_names(path[0] for path in new)
        update = loaded.table.transaction().update_schema(case_sensitive=case_sensitive)
        for path in new:
            _check_storable(path, columns[path])
            try:
                update.add_column(path, columns[path])
            except ValueError as error:
                raise _refusal(path, str(error)) from error
        updates, requirements = changes_of(update)
        return loaded.staged(updates, *requirements), list(map(".".join, new))

    advice = "Look whether the table has the batch's columns; running the same batch again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: not missing(loaded))


def _check_storable(path: tuple[str, ...], kind: IcebergType) -> None:
    """Raise SchemaMismatch for a type that no data file can have, such as a struct without fields."""
    rows = schema_to_pyarrow(Schema(NestedField(1, path[-1], kind))).empty_table()
    try:
        pq.write_table(rows, pa.BufferOutputStream())
    except pa.ArrowException as error:
        raise _refusal(path, f"Parquet cannot store the type '{kind}'") from error


def _refusal(path: tuple[str, ...], why: str) -> SchemaMismatch:
    name = ".".join(path)
    return SchemaMismatch(f"Cannot add column '{name}': {why}. Drop it from the batch", column=name)


def add_tag(tag: str, snapshot_id: int, run_id: str, now_ms: Callable[[], int], advice: str) -> MetadataChange[bool]:
    """Return the change that protects a snapshot with a tag for one day."""

    def build(loaded: Loaded) -> tuple[Staged, bool]:
        snapshot = known_snapshot(loaded.table.metadata, snapshot_id)
        # Iceberg measures the age of a tag from the time of its snapshot
        age_ms = max(0, now_ms() - snapshot.timestamp_ms)
        update = SetSnapshotRefUpdate(
            ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=snapshot_id,
            max_ref_age_ms=age_ms + _TAG_AGE_MS, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
        )  # fmt: skip
        return loaded.staged([update], AssertRefSnapshotId(ref=tag, snapshot_id=None)), True

    return MetadataChange(run_id, advice, build, lambda loaded: tag in loaded.table.metadata.refs)


def remove_tag(tag: str, run_id: str, advice: str) -> MetadataChange[bool]:
    """Return the change that removes a tag."""

    def build(loaded: Loaded) -> tuple[Staged | None, bool]:
        if (held := loaded.table.metadata.refs.get(tag)) is None:
            return None, True
        remove = RemoveSnapshotRefUpdate(ref_name=tag)
        return loaded.staged([remove], AssertRefSnapshotId(ref=tag, snapshot_id=held.snapshot_id)), True

    return MetadataChange(run_id, advice, build, lambda loaded: tag not in loaded.table.metadata.refs)
