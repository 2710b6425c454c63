"""By what a table is clustered: asked for by arguments or by its properties, and kept there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    SetDefaultSortOrderUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform

from icesize.environment import Environment
from icesize.errors import PolicyError, TableError
from icesize.parquet.metrics import Leaf, leaves
from icesize.parquet.settings import WriteSettings
from icesize.planning.cluster_by import FULL_SET_TARGETS, NEW_SHARE, SORT, STRATEGIES, ClusterBy
from icesize.policy import SizePolicy
from icesize.table import catalog as catalogs
from icesize.table.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged

BY_PROPERTY = "icesize.cluster.by"
STRATEGY_PROPERTY = "icesize.cluster.strategy"
NEW_SHARE_PROPERTY = "icesize.cluster.new-share"
FULL_SET_PROPERTY = "icesize.cluster.full-set-bytes"
MOST_CURVE_COLUMNS = 4
"""With each further column a curve narrows every one of them less: n files leave n^((d-1)/d) to a point query."""

_METRICS = "write.metadata.metrics."


def resolve(
    metadata: TableMetadata,
    policy: SizePolicy,
    columns: str | Sequence[str] | None = None,
    strategy: str | None = None,
    *,
    table: str | None = None,
) -> ClusterBy | None:
    """The layout that is wanted of a table, None when nothing says by what it is clustered.

    Arguments win over the properties `icesize.cluster.by` and `icesize.cluster.strategy` (sort when neither says it);
    one text of `columns` is read as the property is: names with commas between them. A curve over one column is the
    same order as a sort. `table` is what messages call the table, its location when not given.

    Raises TableError for columns that cannot be clustered by, PolicyError for values of properties and strategies that
    there are not, UnsupportedTable for tables that icesize writes no files of.
    """
    properties, called = metadata.properties, table or metadata.location
    names = _wanted_names(properties, columns, called)
    if names is None:
        return None
    how = _wanted_strategy(properties, strategy)
    origin = f" ('{BY_PROPERTY}' names it)" if columns is None else ""
    field_ids = _field_ids(metadata, policy, names, lambda name, why: _refused(called, f"'{name}'{origin}", why, name))
    _check_together(metadata, names, field_ids, how, called)
    full_set_bytes = _full_set_bytes(properties, policy.target_file_size_bytes)
    return ClusterBy(names, field_ids, how, full_set_bytes, _new_share(properties))


def _refused(table: str, columns: str, why: str, column: str | None = None) -> TableError:
    return TableError(f"Cannot cluster '{table}' by {columns}: {why}", table=table, column=column)


def _wanted_names(
    properties: Mapping[str, str], columns: str | Sequence[str] | None, table: str
) -> tuple[str, ...] | None:
    if columns is None:
        text = properties.get(BY_PROPERTY)
        names = None if text is None else _split(text)
        if names is not None and not all(names):
            raise PolicyError(
                f"'{BY_PROPERTY}' ({text!r}) must be names of columns with commas between them, such as "
                "user_id,event_time; remove the property to stop clustering",
                key=BY_PROPERTY,
                value=text,
            )
        return names
    names = _split(columns) if isinstance(columns, str) else tuple(columns)
    if not all(isinstance(name, str) for name in names):
        raise TableError(f"Cannot cluster '{table}' by {list(names)}: columns are given by their names", table=table)
    if not any(names):
        raise TableError(f"Cannot cluster '{table}': no column is named", table=table)
    return names


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _wanted_strategy(properties: Mapping[str, str], argument: str | None) -> str:
    key, value = ("strategy", argument) if argument is not None else (STRATEGY_PROPERTY, _stored_strategy(properties))
    if value not in STRATEGIES:
        raise PolicyError(f"'{key}' ({value!r}) must be one of {', '.join(STRATEGIES)}", key=key, value=value)
    return value


def _stored_strategy(properties: Mapping[str, str]) -> str:
    return properties.get(STRATEGY_PROPERTY, SORT).strip().lower()


def _new_share(properties: Mapping[str, str]) -> float:
    text = properties.get(NEW_SHARE_PROPERTY, str(NEW_SHARE))
    share = float(text) if re.fullmatch(r"\s*(\d+(\.\d*)?|\.\d+)\s*", text, re.ASCII) else 0.0
    if not 0 < share <= 1:
        raise PolicyError(
            f"'{NEW_SHARE_PROPERTY}' ({text!r}) must be > 0 and <= 1, such as {NEW_SHARE}: it is the share of a set's "
            "bytes that new files must have before they are clustered with it",
            key=NEW_SHARE_PROPERTY,
            value=text,
        )
    return share


def _full_set_bytes(properties: Mapping[str, str], target_bytes: int) -> int:
    text = properties.get(FULL_SET_PROPERTY, str(FULL_SET_TARGETS * target_bytes))
    if not re.fullmatch(r"\s*\d+\s*", text, re.ASCII) or int(text) < target_bytes:
        raise PolicyError(
            f"'{FULL_SET_PROPERTY}' ({text!r}) must be a whole number of bytes >= 'target-file-size-bytes' "
            f"({target_bytes}), such as {FULL_SET_TARGETS * target_bytes}: a set would be full before it has one file",
            key=FULL_SET_PROPERTY,
            value=text,
        )
    return int(text)


def _field_ids(
    metadata: TableMetadata, policy: SizePolicy, names: Sequence[str], refuse: Callable[[str, str], TableError]
) -> tuple[int, ...]:
    schema = metadata.schema()
    top_level = {field.name: field for field in schema.fields}
    columns = {leaf.field_id: leaf for leaf in leaves(WriteSettings.of(metadata, {}, policy.target_file_size_bytes))}
    for number, name in enumerate(names):
        field = top_level.get(name)
        if field is None:
            raise refuse(name, _why_not_found(schema, name))
        if name in names[:number]:
            raise refuse(name, "it is named twice")
        if not field.field_type.is_primitive:
            raise refuse(name, f"a {str(field.field_type).partition('<')[0]} has no order")
        if columns[field.field_id].lower is None:
            raise refuse(name, _why_no_bounds(columns[field.field_id], metadata.properties))
    return tuple(top_level[name].field_id for name in names)


def _why_not_found(schema: Schema, name: str) -> str:
    if name in schema.column_names:
        return "it is nested, and manifests keep no bounds of nested columns"
    names = {field.name.lower(): field.name for field in schema.fields}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return "the table has no such column" + (f", the nearest is '{names[near[0]]}'" if near else "")


def _why_no_bounds(leaf: Leaf, properties: Mapping[str, str]) -> str:
    own, default, limit = (_METRICS + key for key in (f"column.{leaf.name}", "default", "max-inferred-column-defaults"))
    key = next((key for key in (own, default) if key in properties), None)
    said = f"'{key}' = '{properties[key]}'" if key else f"'{limit}' = '{properties.get(limit, 100)}', set '{own}'"
    return f"manifests keep no bounds of it ({said}), so nobody could tell which files are clustered"


def _check_together(
    metadata: TableMetadata, names: Sequence[str], field_ids: Sequence[int], strategy: str, table: str
) -> None:
    listed = ", ".join(f"'{name}'" for name in names)
    if strategy != SORT and len(names) > MOST_CURVE_COLUMNS:
        why = f"{strategy} takes at most {MOST_CURVE_COLUMNS} columns, as each one more makes all of them narrow less"
        raise _refused(table, listed, why)
    constant = {f.source_id for f in metadata.spec().fields if isinstance(f.transform, IdentityTransform)}
    if constant.issuperset(field_ids):
        why = "partition columns are equal in all rows of a partition; name others"
        raise _refused(table, listed, why)


@dataclass(frozen=True)
class KeptClusterBy:
    """What is in the table now; `changed` is False when it was there before. `notes` are sentences for people."""

    by: ClusterBy
    changed: bool
    notes: tuple[str, ...] = ()


class KeepClusterBy:
    """The change (a TableChange) that lets every writer know by what the table is clustered, in one swap.

    Columns and strategy become table properties. A sort becomes the table's sort order too, ascending with nulls
    first, so that writers sort new files. Curves have none: one that an earlier sort has put there goes again, one of
    somebody else stays, and `notes` say so. What is as it should be is not swapped.

    Raises TableError for names that the property cannot hold, and when staged for columns that are not there any more.
    """

    def __init__(self, by: ClusterBy, environment: Environment) -> None:
        self.run_id = environment.new_id()
        self._by = by
        self._text = ",".join(by.columns)
        self._asked: KeptClusterBy | None = None
        if _split(self._text) != by.columns:
            raise TableError(
                f"Cannot keep {by} in '{BY_PROPERTY}': names with commas, or with spaces at an end, "
                "cannot be told apart there"
            )

    @property
    def advice(self) -> str:
        """What to look at when the catalog never answered."""
        return f"Look whether the table's properties have {BY_PROPERTY}={self._text}; storing it again is safe"

    def found(self, loaded: PyIcebergLoaded) -> KeptClusterBy | None:
        """The result of an attempt whose answer was lost, when the table is as that one wanted it."""
        return None if self._updates(loaded.table.metadata)[0] else self._asked

    def stage(self, loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged | None, KeptClusterBy]:
        """Updates of properties and sort order for this state, None when there is nothing to change."""
        catalogs.check_supported(loaded.table)
        metadata = loaded.table.metadata
        self._check_columns(metadata.schema(), loaded.name)
        updates, notes = self._updates(metadata)
        if not updates:
            return None, KeptClusterBy(self._by, changed=False, notes=notes)
        self._asked = KeptClusterBy(self._by, changed=True, notes=notes)
        requirements = (
            loaded.same_table,
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id),
        )
        return PyIcebergStaged(requirements, updates, written=[]), self._asked

    def _check_columns(self, schema: Schema, table: str) -> None:
        ids = {field.name: field.field_id for field in schema.fields}
        for name, field_id in zip(self._by.columns, self._by.field_ids, strict=True):
            if ids.get(name) != field_id:
                raise _refused(table, f"'{name}'", "the column was renamed or dropped meanwhile", name)

    def _updates(self, metadata: TableMetadata) -> tuple[tuple[TableUpdate, ...], tuple[str, ...]]:
        stored, properties = metadata.properties, {}
        if BY_PROPERTY not in stored or _split(stored[BY_PROPERTY]) != self._by.columns:
            properties[BY_PROPERTY] = self._text
        if _stored_strategy(stored) != self._by.strategy:
            properties[STRATEGY_PROPERTY] = self._by.strategy
        order, notes = self._order_updates(metadata)
        return (*((SetPropertiesUpdate(updates=properties),) if properties else ()), *order), notes

    def _order_updates(self, metadata: TableMetadata) -> tuple[tuple[TableUpdate, ...], tuple[str, ...]]:
        order = metadata.sort_order()
        wanted = _ascending(self._by.field_ids) if self._by.strategy == SORT else []
        if order.fields == wanted:
            return (), ()
        if order.is_unsorted or _is_ours(metadata, order):
            return _to_order(metadata, wanted), ()
        others = f"the table's sort order ({_words(metadata, order.fields)})"
        if wanted:
            return _to_order(metadata, wanted), (f"{others} was replaced by ({_words(metadata, wanted)})",)
        return (), (f"{others} stays, as icesize has not set it: each writer sorts its files by it",)


def _ascending(field_ids: Sequence[int]) -> list[SortField]:
    return [SortField(i, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST) for i in field_ids]


def _is_ours(metadata: TableMetadata, order: SortOrder) -> bool:
    """Whether the properties say that this is the order of a sort; their names may be of an older schema."""
    names = _split(metadata.properties.get(BY_PROPERTY, ""))
    ids = [field.source_id for field in order.fields]
    if _stored_strategy(metadata.properties) != SORT or order.fields != _ascending(ids):
        return False
    tops = [{field.name: field.field_id for field in schema.fields} for schema in metadata.schemas]
    return any(ids == [top.get(name) for name in names] for top in tops)


def _to_order(metadata: TableMetadata, fields: list[SortField]) -> tuple[TableUpdate, ...]:
    known = next((order for order in metadata.sort_orders if order.fields == fields), None)
    if known is not None:
        return (SetDefaultSortOrderUpdate(sort_order_id=known.order_id),)
    if not fields:
        unsorted = SetDefaultSortOrderUpdate(sort_order_id=UNSORTED_SORT_ORDER.order_id)
        return AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER), unsorted
    order_id = max((order.order_id for order in metadata.sort_orders), default=0) + 1
    # the catalog may give another number, so the default is to be the one that was just added
    return AddSortOrderUpdate(sort_order=SortOrder(*fields, order_id=order_id)), SetDefaultSortOrderUpdate()


def _words(metadata: TableMetadata, fields: Sequence[SortField]) -> str:
    """`user_id ASC NULLS FIRST, bucket[4](id) DESC NULLS LAST`, as SQL writes a sort order."""
    schema, words = metadata.schema(), []
    for field in fields:
        name = schema.find_column_name(field.source_id)
        plain = isinstance(field.transform, IdentityTransform)
        words.append(f"{name if plain else f'{field.transform}({name})'} {field.direction} {field.null_order}")
    return ", ".join(words)
