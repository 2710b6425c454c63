"""Events of a batch -> the newest event of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from icesize.errors import BatchError, SchemaMismatch
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.keys.codes import Codes, Places, codes_of, without_null
from icesize.parquet.keys.ranks import by_order, row_ranks, sortable
from icesize.parquet.reading.projection import ColumnAligner
from icesize.planning.upsert_rule import UpsertRule

Mask = NDArray[np.bool_]
_MOST_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Events:
    """At most one event of each key, in ascending order of codes.

    Attributes:
        rows: The rows of the batch, with all of its columns. Only key and order of a delete have a meaning.
        codes: The codes of the keys.
        is_delete: Which events delete the row of their key.
        keys: The key columns, with the types of the table.
        order: The columns of the order, with the types of the table; None for the order of arrival.
        received: The number of events before older and equal ones were left out.
    """

    rows: pa.Table
    codes: Codes
    is_delete: Mask
    keys: pa.Table
    order: pa.Table | None
    received: int

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, places: Places) -> Events:
        """Return the events at these places."""
        taken = pa.array(places)
        order = None if self.order is None else self.order.take(taken)
        return Events(
            self.rows.take(taken), self.codes.take(places), self.is_delete[places], self.keys.take(taken), order,
            self.received,
        )  # fmt: skip

    @property
    def checksum(self) -> int:
        """A number that differs, practically always, if the keys, their order or their delete flags differ."""
        order = () if self.order is None else self.order.columns
        arrays = [pa.array(self.codes.high), pa.array(self.is_delete.view(np.uint8)), *order]
        return checksum_of(pa.table(arrays, [str(number) for number in range(len(arrays))]))

    def shown(self, places: Sequence[int]) -> str:
        """Return a few keys as text for messages: `(id=5), (id=7) and 3 more`."""
        return shown_keys(self.keys.take(pa.array(places[:_MOST_SHOWN], pa.int64())), len(places))


def checksum_of(rows: pa.Table) -> int:
    """Return a checksum of rows that `take` returned, in any chunks, without dictionaries: bytes under NULL count."""
    checksum = 0
    for batch in rows.combine_chunks().to_batches():
        checksum = crc32(batch.serialize(), checksum)
    return checksum


def shown_keys(keys: pa.Table, count: int) -> str:
    """Return some of `count` keys as text for messages: `(id=5), (id=7) and 3 more`."""
    columns = [[f"{name}={_shown(value)}" for value in keys.column(name)] for name in keys.column_names]
    texts = [f"({', '.join(values)})" for values in zip(*columns, strict=True)]
    more = f" and {count - len(texts):,} more" if count > len(texts) else ""
    return ", ".join(texts) + more


def _shown(value: pa.Scalar) -> str:
    """Return a value as text, also one that Python does not have, such as the year 10000."""
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):
        is_text = types.is_string(value.type) or types.is_large_string(value.type)
        return repr(value.as_buffer().to_pybytes()) if is_text else str(value.cast(pa.string()))


def newest_events(
    rows: pa.Table, is_delete: Mask, rule: UpsertRule, settings: WriteSettings, secret: bytes, *, skip_null_keys: bool
) -> Events:
    """Return the event of each key with the greatest order; equal events are one.

    Args:
        rows: The events, with columns of the table's names. Those of key and order must be among them.
        is_delete: Which events are deletes, a mask of the length of `rows`.
        rule: The rule of the table.
        settings: The settings of the table's files.
        secret: The secret of codes.
        skip_null_keys: Leave out events whose key has a NULL, instead of an error.

    Raises:
        SchemaMismatch: Key or order has a NULL, the order has a NaN, or a column does not fit the table.
        BatchError: Different events of a key have the same order, and the rule has no answer.
    """
    names = {field.field_id: field.name for field in settings.schema.fields}
    key_names, order_names = ([names[each] for each in ids] for ids in (rule.key, rule.order))
    received = rows.num_rows
    rows, is_delete = _with_keys(rows, is_delete, key_names, skip_null_keys)
    for name in order_names:
        _refuse_null(rows, name, "the order")
        _refuse_nan(rows, name)
    wanted = list(dict.fromkeys((*key_names, *order_names)))
    aligned = ColumnAligner(pruned(settings, wanted))(rows.select(wanted))
    keys, order = aligned.select(key_names), aligned.select(order_names) if order_names else None
    events = Events(rows, codes_of(keys.columns, secret), is_delete, keys, order, received)
    in_order = events.take(sorted_places(events.codes, order))
    # a batch may have its columns in any order
    return in_order.take(_winners(in_order, rule, [name for name in names.values() if name in rows.column_names]))


def _with_keys(rows: pa.Table, is_delete: Mask, names: Sequence[str], skip: bool) -> tuple[pa.Table, Mask]:
    if not skip:
        for name in names:
            _refuse_null(rows, name, "the key")
        return rows, is_delete
    has_key = without_null(rows.column(name) for name in names)
    return (rows, is_delete) if has_key.all() else (rows.filter(pa.array(has_key)), is_delete[has_key])


def _refuse_null(rows: pa.Table, name: str, role: str) -> None:
    if count := rows.column(name).null_count:
        way_on = "; leave such rows out with null_key='skip'" if role == "the key" else ""
        raise SchemaMismatch(
            f"Cannot upsert: column '{name}' of {role} is NULL in {count:,} of {rows.num_rows:,} rows{way_on}",
            column=name,
        )


def _refuse_nan(rows: pa.Table, name: str) -> None:
    """Refuse NaN in the order: it compares with nothing, so that the row would depend on the split into batches."""
    column = rows.column(name)
    if pa.types.is_floating(column.type) and (count := pc.sum(pc.is_nan(column)).as_py()):
        raise SchemaMismatch(
            f"Cannot upsert: column '{name}' of the order is NaN in {count:,} of {rows.num_rows:,} rows; replace it by "
            "a number",
            column=name,
        )


def sorted_places(codes: Codes, order: pa.Table | None) -> Places:
    """Return the places of rows with these codes, by code and then by the columns of their order, NULL first."""
    if order is None:
        return codes.order()
    columns = {"high": pa.array(codes.high)}
    if codes.low is not None:
        columns["low"] = pa.array(codes.low)
    return by_order(columns, order.columns)


def _winners(events: Events, rule: UpsertRule, names: Sequence[str]) -> Places:
    """Return the place of the newest event of each key, of events that are sorted by key and order."""
    lasts = np.flatnonzero(events.codes.lasts())
    is_tie = events.codes.repeats()
    for column in map(sortable, events.order.columns if events.order is not None else ()):
        same = pc.fill_null(pc.equal(column.slice(1), column.slice(0, max(0, len(column) - 1))), False)
        is_tie[1:] &= np.asarray(same)
    is_tied = is_tie[lasts]
    if is_tied.any():
        # the start of the run of equal events that each last one ends
        begins, ends = np.flatnonzero(~is_tie), lasts[is_tied]
        starts = begins[np.searchsorted(begins, ends, side="right") - 1]
        lasts[is_tied] = _decided(events, starts, ends, rule, names)
    return lasts


def _decided(events: Events, starts: Places, ends: Places, rule: UpsertRule, names: Sequence[str]) -> Places:
    """Return the winner of each run of events with the same key and order: a delete, or the greatest row by `names`."""
    counts = ends - starts + 1
    firsts = np.cumsum(counts) - counts
    run = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(run)) + (starts - firsts)[run]
    is_delete, ranks = events.is_delete[places], row_ranks(events.rows.select(names).take(pa.array(places)))
    lowest = np.minimum.reduceat(np.where(is_delete, len(run), ranks), firsts)
    highest = np.maximum.reduceat(np.where(is_delete, -1, ranks), firsts)
    has_delete, has_row = np.logical_or.reduceat(is_delete, firsts), highest >= 0
    has_answer = np.where(has_delete, ~has_row | (rule.ties != "error"), (lowest == highest) | (rule.ties == "max_row"))
    if not has_answer.all():
        _refuse_ties(events, ends[~has_answer].tolist(), rule)
    winners: Places = places[np.lexsort((ranks, is_delete, run))[firsts + counts - 1]]
    return winners


def _refuse_ties(events: Events, places: Sequence[int], rule: UpsertRule) -> None:
    keys = events.shown(places)
    has = "has" if len(places) == 1 else "have"
    if rule.order:
        why = f"{has} different events of the same order. Add a column to 'order_by' that orders them"
    else:
        why = f"{has} more than one event in the batch. Name the columns that order them in 'order_by'"
    count = "1 key" if len(places) == 1 else f"{len(places):,} keys"
    raise BatchError(f"Cannot upsert: {count} {why}, or set 'ties': {keys}", keys=len(places))
