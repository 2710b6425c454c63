"""Clustering columns of a table: resolved from arguments or properties, stored there, and removed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    RemovePropertiesUpdate,
    SetDefaultSortOrderUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform

from icesize.errors import ClusteringOff, PolicyError, TableError
from icesize.parquet.files.metrics import Leaf, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import ascending
from icesize.planning.cluster_by import (
    BY_PROPERTY,
    FIELD_IDS_PROPERTY,
    FULL_SET_TARGETS,
    MOST_CURVE_COLUMNS,
    NEW_SHARE,
    NEW_SHARE_PROPERTY,
    SEALED_SET_PROPERTY,
    SORT,
    STRATEGIES,
    STRATEGY_PROPERTY,
    ClusterBy,
)
from icesize.policy import SizePolicy
from icesize.results import Result
from icesize.table.catalog import opening
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange

WAY_ON = "run `icesize cluster TABLE` with --by and other columns, or with --forget"
"""Advice for a table whose stored clustering is no longer valid."""

_METRICS = "write.metadata.metrics."


def resolve(
    metadata: TableMetadata,
    policy: SizePolicy,
    columns: str | Sequence[str] | None = None,
    strategy: str | None = None,
    *,
    table: str | None = None,
) -> ClusterBy | None:
    """Return the requested clustering of a table; None if neither arguments nor properties name columns.

    Arguments win over the properties `icesize.cluster.by` and `icesize.cluster.strategy`. The default strategy is sort.
    A string of `columns` is read like the property: names separated by commas. Stored names mean the columns that had
    them when they were stored, even after a rename. A curve over one column is the same order as a sort. `table` is the
    name in messages; the default is the table's location.

    Raises TableError for columns that cannot be clustered by (ClusteringOff if the properties name them). Raises
    PolicyError for invalid property values and unknown strategies, and UnsupportedTable if icesize cannot write files
    of the table.
    """
    properties, called = metadata.properties, table or metadata.location
    names = _wanted_names(properties, columns, called)
    if names is None:
        return None
    how = _wanted_strategy(properties, strategy)
    if columns is None:
        names = _names_now(metadata, names, called)
    try:
        field_ids = _field_ids(metadata, policy, names, how)
    except _Unfit as unfit:
        unfit_names, why = unfit.args
        if columns is not None:
            raise _refused(called, unfit_names, why) from None
        why = f"by {_quoted(unfit_names)} (in '{BY_PROPERTY}'): {why}"
        facts = {"table": called, "column": unfit_names[0], "why": f"{why}; {WAY_ON}"}
        raise ClusteringOff(f"Cannot cluster '{called}' {why}", **facts) from None
    sealed_set_bytes = _sealed_set_bytes(properties, policy.target_file_size_bytes)
    return ClusterBy(names, field_ids, how, sealed_set_bytes, _new_share(properties))


class _Unfit(Exception):
    """Columns that the table cannot be clustered by, and the reason."""


def _refused(table: str, columns: Sequence[str], why: str) -> TableError:
    return TableError(f"Cannot cluster '{table}' by {_quoted(columns)}: {why}", table=table, column=columns[0])


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in columns)


def _names_now(metadata: TableMetadata, names: tuple[str, ...], table: str) -> tuple[str, ...]:
    """Return the current names of the columns that `names` meant when they were stored; `names` if no ids are known."""
    remembered = _remembered_ids(metadata)
    if remembered is None:
        return names
    now = {field.field_id: field.name for field in metadata.schema().fields}
    for name, field_id in zip(names, remembered, strict=True):
        if field_id not in now:
            another = ", and its name is another column's now" if name in now.values() else ""
            why = f"column '{name}' (field {field_id}) was dropped{another}; {WAY_ON}"
            raise ClusteringOff(f"Cannot cluster '{table}': {why}", table=table, column=name, why=why)
    return tuple(now[field_id] for field_id in remembered)


def _remembered_ids(metadata: TableMetadata) -> tuple[int, ...] | None:
    """Return the field ids of the stored names at the time they were stored; None if someone else stored the names."""
    names = _split(metadata.properties.get(BY_PROPERTY, ""))
    pairs = [pair.partition(":") for pair in _split(metadata.properties.get(FIELD_IDS_PROPERTY, ""))]
    are_known = tuple(name for _, _, name in pairs) == names and all(number.isdecimal() for number, _, _ in pairs)
    return tuple(int(number) for number, _, _ in pairs) if are_known else None


def off_because(error: Exception) -> str | None:
    """Return the reason that the table stays unclustered until someone changes it; None for an error that may pass."""
    if isinstance(error, ClusteringOff):
        return str(error.why)
    return str(error) if isinstance(error, PolicyError) else None


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


def _sealed_set_bytes(properties: Mapping[str, str], target_bytes: int) -> int:
    text = properties.get(SEALED_SET_PROPERTY, str(FULL_SET_TARGETS * target_bytes))
    if not re.fullmatch(r"\s*\d+\s*", text, re.ASCII) or int(text) < target_bytes:
        raise PolicyError(
            f"'{SEALED_SET_PROPERTY}' ({text!r}) must be a whole number of bytes >= 'target-file-size-bytes' "
            f"({target_bytes}), e.g. {FULL_SET_TARGETS * target_bytes}: a set would be full before it has one file",
            key=SEALED_SET_PROPERTY,
            value=text,
        )
    return int(text)


def _field_ids(metadata: TableMetadata, policy: SizePolicy, names: Sequence[str], strategy: str) -> tuple[int, ...]:
    """Return the ids of the clustering columns. Raises _Unfit if a column, or all together, cannot be clustered by."""
    schema = metadata.schema()
    top_level = {field.name: field for field in schema.fields}
    columns = {leaf.field_id: leaf for leaf in leaves(WriteSettings.of(metadata, {}, policy.target_file_size_bytes))}
    for number, name in enumerate(names):
        field = top_level.get(name)
        if field is None:
            raise _Unfit([name], _why_not_found(schema, name))
        if name in names[:number]:
            raise _Unfit([name], "it is named twice")
        if not field.field_type.is_primitive:
            raise _Unfit([name], f"a {str(field.field_type).partition('<')[0]} has no order")
        if columns[field.field_id].lower is None:
            raise _Unfit([name], _why_no_bounds(columns[field.field_id], metadata.properties))
    if strategy != SORT and len(names) > MOST_CURVE_COLUMNS:
        why = f"{strategy} takes at most {MOST_CURVE_COLUMNS} columns, as each one more makes all of them narrow less"
        raise _Unfit(names, why)
    field_ids = tuple(top_level[name].field_id for name in names)
    constant = {f.source_id for f in metadata.spec().fields if isinstance(f.transform, IdentityTransform)}
    if constant.issuperset(field_ids):
        raise _Unfit(names, "partition columns are equal in all rows of a partition; name others")
    return field_ids


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
    return f"manifests keep no bounds of it ({said}), so clustered files could not be recognized"


WRITES_FAIL = "Iceberg 1.11 on Spark cannot write to a table"
"""The result of dropping a column of a sort order, also of a former one."""


@dataclass(frozen=True)
class KeptClusterBy:
    """Settings that were newly `stored` in the table, and `notes` for users."""

    stored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences about the table for users, printed even if no rows move."""
        remembered = f"stored in the table: {', '.join(self.stored)}; `icesize cluster TABLE --forget` removes them"
        return (*self.notes, remembered) if self.stored else self.notes


def keep_cluster_by(by: ClusterBy, run_id: str) -> MetadataChange[KeptClusterBy]:
    """Return the change that stores the clustering in the table for every writer.

    Columns, their field ids and the strategy become table properties. A sort also becomes the table's sort order,
    ascending with nulls first, so that writers sort new files. A curve has no sort order: one that an earlier sort set
    is removed. Another writer's order stays, and `notes` report it. Settings that are already stored are not committed.

    The change raises TableError for columns that no longer exist, and for names that the property cannot hold. Such
    names are accepted if the property holds older names of the same columns.
    """

    def build(loaded: Loaded) -> tuple[Staged | None, KeptClusterBy]:
        opening.check_supported(loaded.table)
        metadata = loaded.table.metadata
        ids = {field.name: field.field_id for field in metadata.schema().fields}
        for name, field_id in zip(by.columns, by.field_ids, strict=True):
            if ids.get(name) != field_id:
                raise _refused(loaded.name, [name], "the column was renamed or dropped during the run")
        updates, result = _to_keep(by, metadata)
        same_order = AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        same_schema = AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)
        return loaded.staged(updates, same_schema, same_order) if updates else None, result

    advice = f"Look whether the table's properties have {BY_PROPERTY}={','.join(by.columns)}; storing it again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: not _to_keep(by, loaded.table.metadata)[0])


def _to_keep(by: ClusterBy, metadata: TableMetadata) -> tuple[tuple[TableUpdate, ...], KeptClusterBy]:
    stored = metadata.properties
    properties = {key: value for key, value in _names_to_keep(by, metadata).items() if stored.get(key) != value}
    if _stored_strategy(stored) != by.strategy:
        properties[STRATEGY_PROPERTY] = by.strategy
    wanted = ascending(by.field_ids) if by.strategy == SORT else []
    order, notes = _order_to_keep(metadata, wanted)
    words = [f"{key}={value}" for key, value in properties.items()]
    words += [_order_words(metadata, wanted)] if order else []
    updates = (*((SetPropertiesUpdate(updates=properties),) if properties else ()), *order)
    return updates, KeptClusterBy(tuple(words), notes)


def _names_to_keep(by: ClusterBy, metadata: TableMetadata) -> dict[str, str]:
    """Return the properties that name the columns. Unchanged or older names stay if they mean the same columns."""
    stored, text = metadata.properties.get(BY_PROPERTY, ""), ",".join(by.columns)
    ids = ",".join(f"{i}:{name}" for i, name in zip(by.field_ids, by.columns, strict=True))
    if _split(text) == by.columns:
        is_unchanged = _split(stored) == by.columns
        return {BY_PROPERTY: stored if is_unchanged else text, FIELD_IDS_PROPERTY: ids}
    if _remembered_ids(metadata) == by.field_ids:
        # the new names do not fit into the property; the older names and the ids still identify the columns
        return {}
    raise TableError(f"Cannot keep {by} in '{BY_PROPERTY}': it cannot hold names with commas, or with spaces at an end")


def _order_to_keep(metadata: TableMetadata, wanted: list[SortField]) -> tuple[tuple[TableUpdate, ...], tuple[str, ...]]:
    """Return the updates that make this the table's sort order, and notes.

    There are no updates if the order is set already, or if another writer's order stays.
    """
    order = metadata.sort_order()
    if order.fields == wanted:
        return (), ()
    if order.is_unsorted or _is_ours(metadata):
        return _to_order(metadata, wanted), _columns_to_keep(metadata, order.fields)
    if wanted:
        replaced = f"({_words(metadata, order.fields)}) was replaced by ({_words(metadata, wanted)})"
        notes = (f"the table's sort order {replaced}", *_columns_to_keep(metadata, order.fields))
        return _to_order(metadata, wanted), notes
    stays = f"the table's sort order ({_words(metadata, order.fields)}) stays, as icesize has not set it"
    return (), (f"{stays}: each writer sorts its files by it",)


def _columns_to_keep(metadata: TableMetadata, fields: Sequence[SortField]) -> tuple[str, ...]:
    """Return a note on the columns of a sort order that is replaced, none without a column.

    Iceberg's Java library sends all sort orders of the table to its writers, and looks up their columns in the current
    schema.
    """
    names = ", ".join(filter(None, (metadata.schema().find_column_name(field.source_id) for field in fields)))
    if not names:
        return ()
    note = f"keep the columns it was sorted by ({names}): Iceberg keeps all sort orders, and {WRITES_FAIL}"
    return (f"{note} once a column of one of them is dropped",)


def dead_sort_orders(metadata: TableMetadata) -> list[int]:
    """Return the ids of sort orders with a column that was dropped: `WRITES_FAIL`."""
    ids = metadata.schema().field_ids
    return [each.order_id for each in metadata.sort_orders if any(f.source_id not in ids for f in each.fields)]


@dataclass(frozen=True)
class ForgottenClusterBy(Result):
    """Clustering settings that were removed.

    Attributes:
        removed: The removed properties, and the sort order if a sort of icesize set it.
        notes: Remarks as sentences.
    """

    removed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def forget_cluster_by(run_id: str) -> MetadataChange[ForgottenClusterBy]:
    """Return the change that removes the settings stored by `keep_cluster_by`. Files stay unchanged.

    A sort order is removed only if a sort of icesize set it. The change raises TableError if the table has no
    clustering properties.
    """

    def build(loaded: Loaded) -> tuple[Staged, ForgottenClusterBy]:
        metadata = loaded.table.metadata
        keys = _stored_keys(metadata)
        if not keys:
            raise TableError(
                f"Cannot forget the clustering of '{loaded.name}': the table has no property of clustering",
                table=loaded.name,
            )
        removed = [f"{key}={metadata.properties[key]}" for key in keys]
        order, notes = _order_to_keep(metadata, [])
        if order:
            removed.append(_order_words(metadata, metadata.sort_order().fields))
        updates = (RemovePropertiesUpdate(removals=keys), *order)
        same_order = AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        return loaded.staged(updates, same_order), ForgottenClusterBy(tuple(removed), notes)

    advice = f"Look whether the table's properties have {BY_PROPERTY}; forgetting it again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: not _stored_keys(loaded.table.metadata))


def _stored_keys(metadata: TableMetadata) -> list[str]:
    return [key for key in (BY_PROPERTY, FIELD_IDS_PROPERTY, STRATEGY_PROPERTY) if key in metadata.properties]


def _order_words(metadata: TableMetadata, fields: Sequence[SortField]) -> str:
    return f"sort order ({_words(metadata, fields) or 'none'})"


def _is_ours(metadata: TableMetadata) -> bool:
    """Return True if icesize set the table's sort order, as shown by the properties of a sort."""
    ids = _remembered_ids(metadata)
    is_sort = _stored_strategy(metadata.properties) == SORT
    return ids is not None and is_sort and metadata.sort_order().fields == ascending(ids)


def _to_order(metadata: TableMetadata, fields: list[SortField]) -> tuple[TableUpdate, ...]:
    known = next((order for order in metadata.sort_orders if order.fields == fields), None)
    if known is not None:
        return (SetDefaultSortOrderUpdate(sort_order_id=known.order_id),)
    if not fields:
        unsorted = SetDefaultSortOrderUpdate(sort_order_id=UNSORTED_SORT_ORDER.order_id)
        return AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER), unsorted
    order_id = max((order.order_id for order in metadata.sort_orders), default=0) + 1
    # the catalog may assign another id, so the update without an id makes the order added last the default
    return AddSortOrderUpdate(sort_order=SortOrder(*fields, order_id=order_id)), SetDefaultSortOrderUpdate()


def _words(metadata: TableMetadata, fields: Sequence[SortField]) -> str:
    """Return a sort order as SQL writes it: `user_id ASC NULLS FIRST, bucket[4](id) DESC NULLS LAST`."""
    schema, words = metadata.schema(), []
    for field in fields:
        name = schema.find_column_name(field.source_id)
        plain = isinstance(field.transform, IdentityTransform)
        words.append(f"{name if plain else f'{field.transform}({name})'} {field.direction} {field.null_order}")
    return ", ".join(words)
