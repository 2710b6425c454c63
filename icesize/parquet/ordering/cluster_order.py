"""The row order of a clustering, and its cuts into files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from icesize.parquet.files.partitioning import source_array, source_path
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.curves import CurveRanks, Words, hilbert, zorder
from icesize.parquet.ordering.sort_keys import Rows, as_key, differ, slots, sorted_positions, whole, words_of
from icesize.planning.cluster_by import HILBERT, SORT, ClusterBy

RANK_BITS = 12
"""Bits of each column on a curve: 4,096 ranks, 16 million cells for two columns, finer than the pages of a set."""
CUT_SLACK = 0.02
"""Share of a part's rows by which its ends may move to where a value of an early column ends, so that a value is in one
file and not in two. Outputs are planned 6% above the small file limit, and stay above it when 4% smaller."""


@dataclass(frozen=True)
class RowOrder:
    """The columns that order rows, and the strategy; a small value that pickles.

    A sort compares the columns one after the other: ascending, nulls first, NaN last, -0.0 before 0.0, text and binary
    as unsigned bytes. A curve needs more than one column; with a single column it is a sort. `sort_order_id` is the
    table's if its sort order is exactly this sort, otherwise None.
    """

    strategy: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    sort_order_id: int | None = None

    @staticmethod
    def of(by: ClusterBy, settings: WriteSettings) -> RowOrder:
        """Return the order of `by` over the table's current schema."""
        schema = settings.schema
        paths = [source_path(schema, field_id) for field_id in by.field_ids]
        sources = tuple((schema.fields[path[0]].name, path[1:]) for path in paths)
        strategy = by.strategy if len(sources) > 1 else SORT
        order = settings.sort_order
        is_order = by.strategy == SORT and order.fields == ascending(by.field_ids)
        return RowOrder(strategy, sources, order.order_id if is_order else None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Top-level columns that the keys are made from."""
        return tuple(dict.fromkeys(name for name, _ in self.sources))

    def keys(self, rows: pa.Table) -> pa.Table:
        """Return the keys of rows of the table's Arrow schema, or of its `columns` alone.

        The columns are `key 0`, `key 1`, ..., of types whose natural order, nulls first, is the wanted order.
        """
        arrays = [as_key(source_array(rows.select([name]), (0, *below))) for name, below in self.sources]
        return pa.table({f"key {number}": array for number, array in enumerate(arrays)})

    def fit(self, keys: pa.Table) -> Ranking:
        """Return the ranking of rows like these; `keys` are those of all rows or of a sample of them."""
        if self.strategy == SORT:
            return Ranking()
        scales = tuple(_scale(whole(column)) for column in keys.columns)
        return CurveRanking(self.strategy, scales)


@dataclass(frozen=True, eq=False)
class Ranking:
    """A total order of keys, apart from equal ones: column by column. Pickles, and is the same in every process."""

    def arrange(self, keys: pa.Table) -> Arranged:
        """Return the rows in order, with the function that finds good cuts; equal rows keep their order."""
        words = [words_of(whole(column)) for column in keys.columns]

        def levels(before: Rows, after: Rows) -> npt.NDArray[np.int64]:
            found = np.zeros(len(after), np.int64)
            for level, column in enumerate(reversed(words), 1):
                found[differ(column, before, after)] = level
            return found

        return Arranged(sorted_positions([word for column in words for word in column]), levels)

    def compared(self, keys: pa.Table) -> pa.Table:
        """Return the part of the keys that is compared, column by column."""
        return keys

    def begins(self, compared: pa.Table, levels: npt.NDArray[np.int64]) -> pa.Table:
        """Return the least key of each part, from the key of its first row and the level of the cut before it.

        Columns after the one that changes at the cut are null, which precedes every value.
        """
        kept, rows = compared.num_columns + 1 - np.maximum(levels, 1), np.arange(len(levels))
        columns = [c.take(pa.array(rows, mask=kept <= number)) for number, c in enumerate(compared.columns)]
        return pa.table(columns, names=compared.column_names)

    def cuts(self, sample: pa.Table, shares: Sequence[float]) -> Cuts:
        """Return the cuts that divide rows like the sample's into parts with about these shares.

        A cut moves by up to `CUT_SLACK` to a position at which an early column changes. If equal keys exceed a part,
        other parts are empty.
        """
        if not sample.num_rows:
            return Cuts(self, self.compared(sample))
        arranged = self.arrange(sample)
        places = arranged.best_cuts(shares)
        firsts = self.compared(sample.take(pa.array(arranged.order[places], pa.int64())))
        return Cuts(self, self.begins(firsts, np.array([arranged.level(place) for place in places], np.int64)))


@dataclass(frozen=True, eq=False)
class Cuts:
    """The cuts between parts of the order; equal keys are in one part. Pickles.

    Parts begin at `bounds`, ascending, which have the form that `ranking` compares.
    """

    ranking: Ranking
    bounds: pa.Table

    def part_of(self, keys: pa.Table) -> Rows:
        """Return the part of each row: all rows of part i precede those of part i + 1."""
        return slots(self.bounds, self.ranking.compared(keys))


def by_part(rows: pa.Table, parts: Rows) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each part that has any, part by part; the rows of a part keep their order."""
    # the sort of small integers is faster
    order = np.argsort(parts.astype(np.min_scalar_type(parts.max(initial=0))), kind="stable")
    ordered, parts = rows.take(pa.array(order)), parts[order]
    starts = np.flatnonzero(np.append(True, parts[1:] != parts[:-1])) if len(parts) else parts
    for start, end in pairwise([*starts.tolist(), len(parts)]):
        yield int(parts[start]), ordered.slice(start, end - start)


@dataclass(frozen=True, eq=False)
class Arranged:
    """Rows in order: `order` has their original positions.

    `levels(before, after)` returns the amount of change between pairs of such positions. The level is higher for an
    earlier column, or for a larger square of a curve, and 0 for equal rows.
    """

    order: Rows
    levels: Callable[[Rows, Rows], npt.NDArray[np.int64]]

    def cut(self, wanted: int, slack: int) -> int:
        """Return the best position of a cut, at most `slack` rows away from `wanted`.

        It is between rows with the highest level, at the nearest such position.
        """
        low, high = max(1, wanted - slack), min(len(self.order) - 1, wanted + slack)
        if low > high:
            return wanted
        levels = self.levels(self.order[low - 1 : high], self.order[low : high + 1])
        most = np.flatnonzero(levels == levels.max()) + low
        best = int(most[np.argmin(np.abs(most - wanted))])
        return best if levels[best - low] else wanted

    def level(self, place: int) -> int:
        """Return the level of change before this row."""
        return int(self.levels(self.order[place - 1 : place], self.order[place : place + 1])[0]) if place else 0

    def best_cuts(self, shares: Sequence[float]) -> list[int]:
        """Return the first positions of parts with these shares of the rows, without that of the first part."""
        total, rows = sum(shares), len(self.order)
        wanted = [(done / total * rows, share / total * rows) for done, share in _ends(shares)]
        places = [self.cut(round(place), int(CUT_SLACK * part_rows)) for place, part_rows in wanted]
        return [min(place, rows - 1) for place in accumulate(places, max)]


def _ends(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the end of each share except the last, and the smaller one of the two adjacent shares."""
    neighbours = [min(pair) for pair in pairwise(shares)]
    return list(zip(accumulate(shares[:-1]), neighbours, strict=True))


@dataclass(frozen=True, eq=False)
class Scale:
    """Equal-depth ranks of one column: `ranks` of the values below the first of `bounds`, from it on, and so on."""

    bounds: pa.Array
    ranks: CurveRanks

    def __call__(self, values: pa.Array) -> CurveRanks:
        found = self.ranks[slots(pa.table({"key": self.bounds}), pa.table({"key": values}))]
        return np.where(np.asarray(values.is_valid()), found, np.uint16(0)) if values.null_count else found


def _scale(values: pa.Array) -> Scale:
    """Return ranks from the share of rows below the middle of the rows with one rank; nulls alone have rank 0.

    A value with many rows has one rank, in the middle of all ranks that it could have. The first bits of a rank
    therefore divide the rows as evenly as possible, even with few distinct values.
    """
    words = words_of(values)
    order, rows, nulls = sorted_positions(words), len(values), values.null_count
    most = (1 << RANK_BITS) - 1
    starts = np.flatnonzero(np.append(True, differ(words, order[:-1], order[1:]))) if rows else np.zeros(1, np.int64)
    wanted = nulls + np.arange(1, most) * (rows - nulls) // most
    begins = np.unique(starts[np.searchsorted(starts, wanted, side="right") - 1])
    begins = begins[begins > nulls]
    middles = (np.append(nulls, begins) + np.append(begins, rows)) / 2
    ranks = np.clip(middles / max(1, rows) * (1 << RANK_BITS), 1, most).astype(np.uint16)
    return Scale(values.take(pa.array(order[begins], pa.int64())), ranks)


@dataclass(frozen=True, eq=False)
class CurveRanking(Ranking):
    """An order of keys along a curve through the ranks of the columns."""

    strategy: str
    scales: tuple[Scale, ...]

    def places(self, keys: pa.Table) -> Words:
        """Return the position of each row on the curve."""
        ranks = [scale(whole(column)) for scale, column in zip(self.scales, keys.columns, strict=True)]
        return hilbert(ranks, RANK_BITS) if self.strategy == HILBERT else zorder(ranks, RANK_BITS)

    def compared(self, keys: pa.Table) -> pa.Table:
        return pa.table({"place": self.places(keys)})

    def arrange(self, keys: pa.Table) -> Arranged:
        places = self.places(keys)

        def levels(before: Rows, after: Rows) -> npt.NDArray[np.int64]:
            bits = np.frexp((places[before] ^ places[after]).astype(np.float64))[1]
            return bits.astype(np.int64)

        return Arranged(sorted_positions([places]), levels)

    def begins(self, compared: pa.Table, levels: npt.NDArray[np.int64]) -> pa.Table:
        below = np.maximum(levels - 1, 0).astype(np.uint64)
        return pa.table({"place": compared.column(0).to_numpy() >> below << below})


def ascending(field_ids: Iterable[int]) -> list[SortField]:
    """Return the fields of the table's sort order for a sort by these columns."""
    return [SortField(i, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST) for i in field_ids]
