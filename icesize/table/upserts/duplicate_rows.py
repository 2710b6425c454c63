"""Rows of a table whose key another live row also has."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyroaring import BitMap

from icesize.concurrency import concurrently, workers
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.keys.codes import Codes
from icesize.parquet.keys.ranks import by_order, row_ranks
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.steps.row_delta import RowChanges
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.upserts.deletes import DeleteFiles, Dying
from icesize.table.upserts.lookup import Positions, Scan, TableFiles
from icesize.table.upserts.maps import joined
from icesize.table.upserts.newest_events import shown_keys
from icesize.table.upserts.state_files import COMPARE_KEYS, FilesWithBounds, check_format

MOST_ROWS_AT_ONCE = 8_000_000
"""Rows whose keys are compared at one time, at about 60 bytes each.

A larger table is compared in slices by the hash of keys, and its key columns are read once for each slice.
"""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)

Living = tuple[FileFact, BitMap]
"""A data file, and its deleted rows."""


@dataclass(frozen=True, eq=False)
class Doubled:
    """The rows of a state that have no key of their own.

    Attributes:
        live: The files of the state.
        dying: The rows that go, so that each key keeps its newest row.
        keys: Keys with several live rows.
        without_key: Live rows with a NULL in the key, which equals no key.
        examples: A few of the keys, as text.
    """

    live: FilesWithBounds
    dying: tuple[Dying, ...] = ()
    keys: int = 0
    without_key: int = 0
    examples: str = ""

    @property
    def rows(self) -> int:
        """Rows that go."""
        return sum(len(each.rows) for each in self.dying)


@dataclass(eq=False)
class Duplicates:
    """Finds rows of the same key in any state of a table. Writes nothing.

    Attributes:
        rule: The key, and the order by which the newest row of a key is recognized. Without an order, it is the row of
            the newest commit.
        files: Reads columns of data files.
        secret: The secret of codes.
        reader: Reads the live files.
        most_rows: Rows whose keys are compared at one time.
    """

    rule: UpsertRule
    files: TableFiles
    secret: bytes
    reader: ClusterReader
    most_rows: int = MOST_ROWS_AT_ONCE
    _last: tuple[Hashable, Doubled] | None = None

    def at(self, state: Loaded) -> Doubled:
        """Return the rows that go in a state. A state with the same files and deletes as the last one costs nothing.

        Raises UnsupportedTable for a file that icesize cannot read, `RewriteFailed` for a damaged one.
        """
        live = FilesWithBounds.of(state, self.reader)
        live.check_specs(self.files.settings)
        facts = [live.noted(file, COMPARE_KEYS) for file in live.files]
        contents = frozenset((file.path, file.delete_ids) for file in facts)
        if self._last is None or self._last[0] != contents:
            self._last = contents, self._doubled(live, live.with_deleted(facts, self.files))
        return self._last[1]

    def if_restored(self, state: Loaded, partition: PartitionKey, files: Sequence[FileFact]) -> Doubled:
        """Return the rows that would have no key of their own with these files in place of those of a partition."""
        live, spec = FilesWithBounds.of(state, self.reader), state.table.metadata.specs()[partition.spec_id]
        # a key whose columns decide the partition has no row in another one of the same spec
        is_fixed = {each.source_id for each in spec.fields} <= set(self.rule.key)
        others = [
            live.noted(file, COMPARE_KEYS) for file in live.files
            if file.fact.partition != partition and not (is_fixed and file.fact.partition.spec_id == partition.spec_id)
        ]  # fmt: skip
        living = live.with_deleted([*others, *files], self.files)
        after = self._doubled(live, living)
        if after.rows and after.rows == self._doubled(live, living[: len(others)]).rows:
            return Doubled(live)
        return after

    def _doubled(self, live: FilesWithBounds, living: Sequence[Living]) -> Doubled:
        rows = sum(file.rows - len(deleted) for file, deleted in living)
        slices = max(1, -(-rows // self.most_rows))
        dying = [BitMap() for _ in living]
        keys, with_key, examples = 0, 0, list[tuple[int, int]]()
        for number in range(slices):
            of_file, positions, codes = self._slice(living, number, slices)
            with_key += len(codes)
            order = codes.order()
            repeats = codes.take(order).repeats()
            in_group = repeats | np.append(repeats[1:], False)
            group = np.cumsum(~repeats)[in_group]
            places = order[in_group]
            keys += len(np.unique(group))
            examples += zip(of_file[places[:3]].tolist(), positions[places[:3]].tolist(), strict=True)
            losers = places[~self._is_newest(living, of_file[places], positions[places], group)]
            for file, some in _by_file(of_file, losers):
                dying[file] |= BitMap(positions[some].astype(np.uint32))
        gone = [Dying(file, deleted, mark) for (file, deleted), mark in zip(living, dying, strict=True) if mark]
        return Doubled(live, tuple(gone), keys, rows - with_key, self._shown(living, examples, keys))

    def _slice(self, living: Sequence[Living], number: int, slices: int) -> tuple[NDArray[np.int32], Positions, Codes]:
        """Return the live rows of a slice of all keys: the number of their file, their position, and their code."""
        scan = Scan(self.files, tuple(self.files.names(self.rule.key)), self.secret)

        def read(each: Living) -> tuple[Positions, Codes]:
            (file, deleted), parts = each, list[tuple[Positions, Codes]]()
            gone = np.frombuffer(deleted.to_array(), np.uint32)
            for positions, codes in scan.codes(file):
                of_slice = ((codes.high * _GOLDEN) >> _HALF) % np.uint64(slices) == number
                of_slice &= ~np.isin(positions, gone)
                parts.append((positions[of_slice], codes.take(of_slice)))
            return joined(parts)

        parts = list(concurrently(read, living, workers()))
        of_file = np.repeat(np.arange(len(parts), dtype=np.int32), [len(codes) for _, codes in parts])
        return of_file, *joined(parts)

    def _is_newest(
        self, living: Sequence[Living], of_file: NDArray[np.int32], positions: Positions, group: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Return which rows are the newest of their group: by order, commit, file and position."""
        if not len(group):
            return np.zeros(0, np.bool_)
        by_file = np.lexsort((positions, of_file))
        names, parts = self.files.names(self.rule.order), list[pa.Table]()
        for file, some in _by_file(of_file, by_file) if names else ():
            parts.append(self.files.at(living[file][0], positions[some], names))
        paths = {path: rank for rank, path in enumerate(sorted(file.path for file, _ in living))}
        order = pa.concat_tables(parts).columns if parts else ()
        numbers = np.array([file.sequence_number for file, _ in living], np.int64)
        ranks = np.array([paths[file.path] for file, _ in living], np.int64)
        found_in = of_file[by_file]
        age = {"commit": numbers[found_in], "path": ranks[found_in], "position": positions[by_file]}
        by_age = by_order(
            {"group": pa.array(group[by_file])}, order, {name: pa.array(each) for name, each in age.items()}
        )
        ascending = group[by_file][by_age]
        newest = by_file[by_age[np.append(ascending[1:] != ascending[:-1], True)]]
        result = np.zeros(len(group), np.bool_)
        result[newest] = True
        return result

    def _shown(self, living: Sequence[Living], rows: Sequence[tuple[int, int]], keys: int) -> str:
        names = self.files.names(self.rule.key)
        found = [self.files.at(living[file][0], np.array([position]), names) for file, position in rows[:6]]
        if not found:
            return ""
        known = pa.concat_tables(found)
        firsts = np.sort(np.unique(row_ranks(known), return_index=True)[1])[:3]
        return shown_keys(known.take(pa.array(firsts)), keys)


@dataclass(eq=False)
class DuplicateDeletes:
    """A `RowSource` that deletes all rows of a key but the newest."""

    duplicates: Duplicates
    deletes: DeleteFiles

    def __post_init__(self) -> None:
        self.doubled: Doubled | None = None

    @property
    def written(self) -> Sequence[NewDataFile | NewDeleteFile]:
        """All files that were written so far, for any state."""
        return self.deletes.written

    def at(self, state: Loaded) -> RowChanges:
        """Return the deletes for a state."""
        check_format(state, self.deletes.files.settings)
        doubled = self.doubled = self.duplicates.at(state)
        return self.deletes.changes(doubled.dying, doubled.live)


def _by_file(of_file: NDArray[np.int32], places: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each file of some places, and its places in their order."""
    by_file = places[np.argsort(of_file[places], kind="stable")]
    files, starts = np.unique(of_file[by_file], return_index=True)
    yield from zip(files.tolist(), np.split(by_file, starts)[1:], strict=True)
