"""The rule of upserts that a table stores: from the arguments of a caller, compared with the table's, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    SetPropertiesUpdate,
)
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from icesize.errors import SchemaMismatch, TableError, UnsupportedTable
from icesize.parquet.keys.index_files import MapSettings
from icesize.planning.upsert_rule import PROPERTY, TIES, UpsertRule
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, seconds_of

Names = str | Sequence[str] | None
"""Names of columns: one, several, or none."""


@dataclass(frozen=True)
class WantedRule:
    """The rule as a caller passes it; None leaves the answer to the table.

    Attributes:
        key: Columns that identify a row. The default are the table's identifier fields.
        order_by: Columns by which a later event is recognized.
        delete_when: The condition on the columns of a batch that makes an event a delete.
        tombstones: How long deletes are remembered, in seconds or as text such as "2 days".
        ties: What is done with different events of the same order (`icesize.planning.upsert_rule.TIES`).
    """

    key: Names = None
    order_by: Names = None
    delete_when: str | None = None
    ties: str | None = None
    tombstones: float | str | None = None

    def in_table(self, metadata: TableMetadata, table: str) -> UpsertRule:
        """Return the rule for a table. Arguments that are missing come from the rule that it stores.

        Raises TableError for an unknown column and for a rule that differs from the stored one, UnsupportedTable for a
        table or column that cannot have it.
        """
        if metadata.format_version < 2:
            raise UnsupportedTable(
                f"Cannot upsert into '{table}': format version 1 has no deletes. Upgrade the table: set its property "
                "'format-version' to 2 or 3",
                table=table,
            )
        schema, stored = metadata.schema(), UpsertRule.of(metadata.properties)
        wanted = self.instead_of(stored, schema, table)
        if stored is not None and stored != wanted:
            names = {field.field_id: field.name for field in schema.fields}
            different = "; ".join(stored.differences(wanted, names))
            raise TableError(
                f"Cannot upsert into '{table}': {different}. All writers follow the rule of the table. Leave the "
                f"argument out, or change the rule with `icesize rekey`",
                table=table,
            )
        return wanted

    def instead_of(self, stored: UpsertRule | None, schema: Schema, table: str) -> UpsertRule:
        """Return the rule with what is missing from the `stored` one. An empty order or condition is none.

        Raises TableError for an unknown column, UnsupportedTable for one that cannot have its role.
        """
        base = stored or UpsertRule(())
        key = base.key if self.key is None else _ids(schema, self.key, "key", table)
        order = base.order if self.order_by is None else _ids(schema, self.order_by, "order_by", table)
        key = key or tuple(sorted(schema.identifier_field_ids))
        if not key:
            raise TableError(
                f"Cannot upsert into '{table}': no key is given, and the table has no identifier fields. Name the "
                "columns that identify a row in 'key'",
                table=table,
            )
        wanted = UpsertRule(key, order, base.delete_when, base.ties, base.tombstones_ms if order else None)
        if self.delete_when is not None:
            wanted = replace(wanted, delete_when=self.delete_when or None)
        if self.tombstones is not None:
            wanted = replace(wanted, tombstones_ms=_horizon_ms(self.tombstones))
        wanted = wanted if self.ties is None else replace(wanted, ties=self.ties)
        _check_columns(wanted, schema, table)
        return wanted


def _horizon_ms(duration: float | str) -> int:
    seconds = seconds_of(duration)
    if seconds is None or seconds <= 0:
        raise ValueError(f"'tombstones' ({duration!r}) must be a time {DURATION_EXAMPLES}, or a number of seconds")
    return round(seconds * 1000)


LOOKUPS = ("auto", "scan")
"""How rows of a batch's keys are found: by maps of keys on the local disk, or by reading key columns in each batch."""
NULL_KEYS = ("error", "skip")
"""What is done with events whose key has a NULL: the batch is refused, or they are left out."""


@dataclass(frozen=True)
class UpsertOptions:
    """How a caller wants a batch to be upserted.

    Attributes:
        rule: The rule, as far as the caller names it.
        except_columns: Columns of the batch that are not written, such as the kind of an event.
        null_key: One of `NULL_KEYS`.
        maps: Where maps of keys are kept; None to read key columns in each batch.
    """

    rule: WantedRule = field(default_factory=WantedRule)
    except_columns: tuple[str, ...] = ()
    null_key: str = "error"
    maps: MapSettings | None = None

    def __post_init__(self) -> None:
        if self.null_key not in NULL_KEYS:
            raise ValueError(f"'null_key' ({self.null_key!r}) must be one of {', '.join(map(repr, NULL_KEYS))}")
        if self.rule.tombstones is not None:
            _horizon_ms(self.rule.tombstones)
        if self.rule.ties not in (None, *TIES):
            raise ValueError(f"'ties' ({self.rule.ties!r}) must be one of {', '.join(map(repr, TIES))}")
        if not isinstance(self.rule.delete_when, str | None):
            raise ValueError(
                f"'delete_when' ({self.rule.delete_when!r}) must be text, such as \"op = 'd'\": the table stores it"
            )

    @classmethod
    def of(
        cls,
        key: Names = None,
        order_by: Names = None,
        delete_when: str | None = None,
        except_columns: Names = None,
        ties: str | None = None,
        null_key: str = "error",
        tombstones: float | str | None = None,
        lookup: str = "auto",
        index_bytes: int | str | None = None,
        index_dir: str | None = None,
    ) -> UpsertOptions:
        """Return the options from the arguments of a caller. Raises ValueError."""
        rule = WantedRule(key, order_by, delete_when, ties, tombstones)
        return cls(rule, tuple(_listed(except_columns)), null_key, _maps(lookup, index_bytes, index_dir))


def _maps(lookup: str, index_bytes: int | str | None, index_dir: str | None) -> MapSettings | None:
    if lookup not in LOOKUPS:
        raise ValueError(f"'lookup' ({lookup!r}) must be one of {', '.join(map(repr, LOOKUPS))}")
    if lookup == "scan":
        if index_bytes is not None or index_dir is not None:
            raise ValueError("'index_bytes' and 'index_dir' need lookup='auto': with 'scan' there are no maps of keys")
        return None
    most_bytes = None if index_bytes is None else bytes_of(index_bytes)
    if index_bytes is not None and (most_bytes is None or most_bytes < 0):
        raise ValueError(f"'index_bytes' ({index_bytes!r}) must be a size {SIZE_EXAMPLES}, or a number of bytes")
    return MapSettings(index_dir, most_bytes)


def one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    """Return the value of an argument that has two names. Raises ValueError if both have different values."""
    if value is None or other is None:
        return other if value is None else value
    if _listed(value) != _listed(other):
        raise ValueError(f"'{name}' ({value!r}) and '{alias}' ({other!r}) are two names of one argument: give one")
    return value


def options_of_mode(mode: str, **arguments: Any) -> UpsertOptions | None:
    """Return the options of a sink of this mode; None if it appends.

    Raises ValueError for another mode, and for arguments of upserts beside "append".
    """
    if mode == "upsert":
        return UpsertOptions.of(**arguments)
    if mode != "append":
        raise ValueError(f"'mode' ({mode!r}) must be one of 'append', 'upsert'")
    for name, value in arguments.items():
        if value not in (None, "error", "auto"):
            raise ValueError(f"'{name}' ({value!r}) needs mode='upsert': an append has no key")
    return None


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _ids(schema: Schema, names: Names, role: str, table: str) -> tuple[int, ...]:
    known = {field.name: field.field_id for field in schema.fields}
    listed = _listed(names or ())
    for name in listed:
        if name not in known:
            raise TableError(
                f"Cannot upsert into '{table}': '{name}' of '{role}' is no column of the table. Columns of the key and "
                "of the order are stored with each row, at the top level",
                table=table,
                column=name,
            )
    if len(set(listed)) < len(listed):
        raise TableError(f"Cannot upsert into '{table}': '{role}' names a column twice", table=table)
    return tuple(known[name] for name in listed)


def _check_columns(rule: UpsertRule, schema: Schema, table: str) -> None:
    by_id = {field.field_id: field for field in schema.fields}
    for role, ids in (("key", rule.key), ("order_by", rule.order)):
        for field_id in ids:
            field = by_id.get(field_id)
            if field is None:
                raise TableError(
                    f"Cannot upsert into '{table}': the column of '{role}' with field id {field_id} was dropped. "
                    "Choose another one with `icesize rekey`",
                    table=table,
                    field_id=field_id,
                )
            kind = field.field_type
            if not isinstance(kind, PrimitiveType) or (role == "key" and isinstance(kind, FloatType | DoubleType)):
                raise UnsupportedTable(
                    f"Cannot upsert into '{table}': column '{field.name}' of '{role}' is a {kind}, whose values do not "
                    "identify or order rows",
                    table=table,
                    column=field.name,
                )


def require_columns(
    arguments: Mapping[str, Iterable[str]], columns: Iterable[str], table: str, fold: Callable[[str], str] = str
) -> None:
    """Raise SchemaMismatch if a batch with these columns lacks one that an argument of this name needs."""
    known = {fold(name) for name in columns}
    for argument, names in arguments.items():
        for name in names:
            if fold(name) not in known:
                raise SchemaMismatch(
                    f"Cannot upsert into '{table}': the batch has no column '{name}', which is part of '{argument}'",
                    column=name,
                )


def columns_of(rule: UpsertRule, schema: Schema) -> dict[str, list[str]]:
    """Return the names of the columns of key and order, as `require_columns` takes them."""
    roles = {"key": rule.key, "order_by": rule.order}
    return {role: [schema.find_field(each).name for each in field_ids] for role, field_ids in roles.items()}


def keep_rule(rule: UpsertRule, table: str, run_id: str) -> MetadataChange[UpsertRule]:
    """Return the change that stores a rule in a table that has none; its result is the rule.

    It raises TableError if another writer has stored a different rule.
    """

    def build(loaded: Loaded) -> tuple[Staged | None, UpsertRule]:
        stored = UpsertRule.of(loaded.properties)
        if stored is not None and stored != rule:
            raise TableError(
                f"Cannot upsert into '{table}': another writer has stored a different rule in '{PROPERTY}'", table=table
            )
        same_schema = AssertCurrentSchemaId(current_schema_id=loaded.schema_id)
        update = SetPropertiesUpdate(updates={PROPERTY: rule.to_json()})
        return None if stored else loaded.staged([update], same_schema), rule

    advice = f"Look whether the table's properties have '{PROPERTY}'; storing it again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: PROPERTY in loaded.properties)


def change_rule(
    wanted: WantedRule, table: str, run_id: str, check: Callable[[Loaded, UpsertRule], object]
) -> MetadataChange[tuple[UpsertRule | None, UpsertRule]]:
    """Return the change that stores another rule; its result is the earlier rule and the new one.

    `check` is called with each state that the change is tried on if the key differs, and raises to refuse it.
    """

    def rule_in(loaded: Loaded) -> UpsertRule:
        return wanted.instead_of(UpsertRule.of(loaded.properties), loaded.table.schema(), table)

    def build(loaded: Loaded) -> tuple[Staged | None, tuple[UpsertRule | None, UpsertRule]]:
        stored, rule = UpsertRule.of(loaded.properties), rule_in(loaded)
        if stored is None or set(stored.key) != set(rule.key):
            check(loaded, rule)
        if stored == rule:
            return None, (stored, rule)
        # rows that come in between would not be checked
        same_rows = AssertRefSnapshotId(ref=loaded.head.ref, snapshot_id=loaded.head.snapshot_id)
        same_schema = AssertCurrentSchemaId(current_schema_id=loaded.schema_id)
        update = SetPropertiesUpdate(updates={PROPERTY: rule.to_json()})
        return loaded.staged([update], same_rows, same_schema), (stored, rule)

    advice = f"Look whether the table's properties have '{PROPERTY}'; changing it again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: UpsertRule.of(loaded.properties) == rule_in(loaded))
