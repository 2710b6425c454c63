"""Finds keys in data files: the positions of rows whose key has one of the wanted codes, and values at positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icesize.parquet.files.lineage_fields import LINEAGE_FIELDS
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.keys.codes import Codes, Places, codes_of, without_null
from icesize.parquet.reading.inputs import read_inputs
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup
from icesize.planning.upsert_rule import UpsertRule

Positions = NDArray[np.int64]


class Hits(NamedTuple):
    """Rows of one data file, live or deleted: their positions in ascending order, and the place of each row's key."""

    positions: Positions
    places: Places

    def where(self, mask: NDArray[np.bool_]) -> Hits:
        """Return the hits of a mask."""
        return Hits(self.positions[mask], self.places[mask])


class Lookup(Protocol):
    """Finds keys in data files. A result depends on the file only, and not on its deletes."""

    def find(self, file: FileFact, codes: Codes) -> Hits:
        """Return the rows of a file whose key is one of these ascending codes.

        Raises `RewriteFailed` for a file that is missing or damaged.
        """

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        """Return the row ids at ascending positions of a file that has row ids."""


@dataclass(frozen=True)
class TableFiles:
    """Reads columns of the data files of a table, of any partition spec.

    Attributes:
        settings: The settings of the table's files, without the columns of the row lineage.
    """

    settings: WriteSettings

    def names(self, field_ids: Sequence[int]) -> list[str]:
        """Return the current names of columns."""
        names = {field.field_id: field.name for field in self.settings.schema.fields}
        return [names[each] for each in field_ids]

    def read(self, file: FileFact, columns: Sequence[str], *, lineage: bool = False) -> Iterator[pa.Table]:
        """Yield some columns of all rows of a file, in the types of the table; with `lineage`, also its columns.

        The columns are in the order of `columns`, in which the code of a key and the order of events are computed.
        """
        settings = pruned(self.settings.of_spec(file.partition.spec_id), columns)
        settings = settings.with_lineage if lineage else settings
        names = [*columns, *(field.name for field in LINEAGE_FIELDS if lineage)]
        for rows in read_inputs(FileGroup((file,), file.partition), settings):
            yield rows.select(names)

    def at(self, file: FileFact, positions: Positions, columns: Sequence[str], *, lineage: bool = False) -> pa.Table:
        """Return some columns of the rows at ascending positions of a file."""
        parts, first = list[pa.Table](), 0
        for table in self.read(file, columns, lineage=lineage):
            start, end = np.searchsorted(positions, (first, first + table.num_rows))
            parts.append(table.take(pa.array(positions[start:end] - first)))
            first += table.num_rows
        return pa.concat_tables(parts)


@dataclass(frozen=True)
class KeyedFiles:
    """Data files whose rows have a key.

    Attributes:
        rule: The rule of the table: the key, and the order of rows.
        files: Reads columns of the files.
        lookup: Finds keys in them.
    """

    rule: UpsertRule
    files: TableFiles
    lookup: Lookup

    @property
    def order_names(self) -> list[str]:
        """The current names of the columns of the order."""
        return self.files.names(self.rule.order)


@dataclass(frozen=True)
class Scan:
    """Reads the key columns of each file in each batch. `key` are the names of these columns."""

    files: TableFiles
    key: tuple[str, ...]
    secret: bytes

    def find(self, file: FileFact, codes: Codes) -> Hits:
        positions, places = [np.empty(0, np.int64)], [np.empty(0, np.intp)]
        for rows, here in self.codes(file):
            rows_found, places_found = codes.matches(here)
            positions.append(rows[rows_found])
            places.append(places_found)
        return Hits(np.concatenate(positions), np.concatenate(places))

    def codes(self, file: FileFact) -> Iterator[tuple[Positions, Codes]]:
        """Yield the positions of the rows of a file, in order, and their codes.

        A row with a NULL in its key equals no key, and is left out.
        """
        first = 0
        for table in self.files.read(file, self.key):
            positions = np.arange(first, first + table.num_rows)
            first += table.num_rows
            if any(column.null_count for column in table.columns):
                has_key = without_null(table.columns)
                positions, table = positions[has_key], table.filter(pa.array(has_key))
            yield positions, codes_of(table.columns, self.secret)

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        ids: Positions = self.files.at(file, positions, self.key[:1], lineage=True).column("_row_id").to_numpy()
        return ids
