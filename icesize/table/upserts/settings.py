"""The rule of upserts that a table stores: from the arguments of a caller, compared with the table's, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCurrentSchemaId, SetPropertiesUpdate
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from icesize.errors import SchemaMismatch, TableError, UnsupportedTable
from icesize.planning.upsert_rule import PROPERTY, TIES, UpsertRule
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.snapshot_builder import same_head
from icesize.table.upserts.conditions import parsed_condition
from icesize.table.upserts.index_files import MapSettings
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, seconds_of

ColumnNames = str | Sequence[str] | None
"""Names of columns: one, several, or none."""


@dataclass(frozen=True)
class WantedRule:
    """The rule as a caller passes it, by the arguments of `SizedTable.sink`; None leaves the answer to the table."""

    key: ColumnNames = None
    order_by: ColumnNames = None
    delete_when: str | None = None
    ties: str | None = None
    tombstones: float | str | None = None

    def __post_init__(self) -> None:
        if self.tombstones is not None:
            _horizon_ms(self.tombstones)
        if self.ties is not None:
            _require_one_of("ties", self.ties, TIES)
        if not isinstance(self.delete_when, str | None):
            raise ValueError(
                f"'delete_when' ({self.delete_when!r}) must be text, such as \"op = 'd'\": the table stores it"
            )
        if self.delete_when:
            parsed_condition(self.delete_when)

    def in_table(self, metadata: TableMetadata, table: str) -> UpsertRule:
        """Return the rule for a table. Arguments that are missing come from the rule that it stores.

        Raises TableError for an unknown column and for a rule that differs from the stored one, UnsupportedTable for a
        table or column that cannot have it.
        """
        check_has_deletes(metadata, "upsert into", table)
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


def check_has_deletes(metadata: TableMetadata, verb: str, table: str) -> None:
    """Raise UnsupportedTable if the format version of a table has no deletes; `verb` is what cannot be done then."""
    if metadata.format_version < 2:
        raise UnsupportedTable(
            f"Cannot {verb} '{table}': format version 1 has no deletes. Upgrade the table: set its property "
            "'format-version' to 2 or 3",
            table=table,
        )


def _horizon_ms(duration: float | str) -> int:
    seconds = seconds_of(duration)
    if seconds is None or seconds <= 0:
        raise ValueError(f"'tombstones' ({duration!r}) must be a time {DURATION_EXAMPLES}, or a number of seconds")
    return round(seconds * 1000)


LOOKUPS = ("auto", "scan")
"""The way to find rows by keys: by maps of keys on the local disk, or by reading key columns in each batch."""
NULL_KEYS = ("error", "skip")
"""The treatment of events whose key has a NULL: the batch is refused, or they are left out."""


@dataclass(frozen=True)
class UpsertOptions(WantedRule):
    """The arguments of a caller who upserts: the rule, and how a batch is read and its rows are found."""

    except_columns: ColumnNames = None
    null_key: str = "error"
    lookup: str = "auto"
    index_bytes: int | str | None = None
    index_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one_of("null_key", self.null_key, NULL_KEYS)
        _require_one_of("lookup", self.lookup, LOOKUPS)
        if self.lookup == "scan" and (self.index_bytes, self.index_dir) != (None, None):
            raise ValueError("'index_bytes' and 'index_dir' need lookup='auto': with 'scan' there are no maps of keys")
        if self.index_bytes is not None and (self._most_bytes is None or self._most_bytes < 0):
            raise ValueError(
                f"'index_bytes' ({self.index_bytes!r}) must be a size {SIZE_EXAMPLES}, or a number of bytes"
            )

    @property
    def _most_bytes(self) -> int | None:
        return None if self.index_bytes is None else bytes_of(self.index_bytes)

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The names in `except_columns`."""
        return _listed(self.except_columns)

    @property
    def maps(self) -> MapSettings | None:
        """The directory of the maps of keys; None to read key columns in each batch."""
        return None if self.lookup == "scan" else MapSettings(self.index_dir, self._most_bytes)


def _require_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"'{name}' ({value!r}) must be one of {', '.join(map(repr, allowed))}")


def options_of_mode(mode: str, **arguments: Any) -> UpsertOptions | None:
    """Return the options of a sink of this mode; None if it appends.

    Raises ValueError for another mode, and for arguments of upserts beside "append".
    """
    if mode == "upsert":
        return UpsertOptions(**arguments)
    _require_one_of("mode", mode, ("append", "upsert"))
    for name, value in arguments.items():
        if value not in (None, "error", "auto"):
            raise ValueError(f"'{name}' ({value!r}) needs mode='upsert': an append has no key")
    return None


def _listed(names: ColumnNames) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _ids(schema: Schema, names: ColumnNames, role: str, table: str) -> tuple[int, ...]:
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


def rule_columns(rule: UpsertRule, schema: Schema) -> dict[str, list[str]]:
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
                f"Cannot upsert into '{table}': another writer has stored a different rule in '{PROPERTY}'. Run the "
                "batch again by that rule, or change it with `icesize rekey`",
                table=table,
            )
        # another first batch stores its rule before its rows, and is visible by them
        same_rows = same_head(loaded.table.metadata, loaded.ref)
        same_schema = AssertCurrentSchemaId(current_schema_id=loaded.schema_id)
        update = SetPropertiesUpdate(updates={PROPERTY: rule.to_json()})
        return None if stored else loaded.staged([update], same_rows, same_schema), rule

    advice = f"Look whether the table's properties have '{PROPERTY}'; storing it again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: UpsertRule.of(loaded.properties) == rule)
