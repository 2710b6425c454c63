"""Counts of values and NULLs, and the least and greatest value, of each column of the rows that were read.

Files that replace these rows must have the same. Rows are counted as Arrow returns them, before anything is projected,
cast, sorted or encoded. The count has code of its own, which shares nothing with the code that it checks. The least and
the greatest value are those of the footers of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.types import StructType

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.defaults import write_defaults
from icesize.parquet.files.lineage_fields import FIELD_ID, is_lineage
from icesize.parquet.files.metrics import Leaf, fields_below, leaves
from icesize.parquet.files.settings import NAME_MAPPING, WriteSettings, derived
from icesize.parquet.format.footer import Footer
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.extremes import NO_ENDS, OPEN, Ends, stored_ends, written_ends


class Count(NamedTuple):
    """Entries of a column as Parquet counts them, and the number of entries without a value; None if unknown.

    Entries include NULL and empty lists above the column. `ends` are the column's least and greatest value.
    """

    entries: int | None = 0
    nulls: int | None = 0
    ends: Ends = NO_ENDS

    def __str__(self) -> str:
        return f"{self.entries} entries, {'some' if self.nulls is None else self.nulls} of them NULL,"

    def plus(self, other: Count) -> Count:
        """Return the sum."""
        return Count(_sum(self.entries, other.entries), _sum(self.nulls, other.nulls), self.ends.plus(other.ends))

    def agrees(self, other: Count) -> bool:
        """Return whether both may be the count of one column."""
        return self.counts_agree(other) and self.ends.agrees(other.ends)

    def counts_agree(self, other: Count) -> bool:
        """Return whether both may be the count of one column, without a comparison of ends."""
        return all(a is None or b is None or a == b for a, b in zip(self[:2], other[:2], strict=True))


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


Names = Mapping[str, MappedField]
Counts = Mapping[int, Count]
"""Counts by the field id of a leaf column."""


@dataclass
class Conservation:
    """Adds up the rows read from the files of one partition, or new rows; `check` compares the sums with written files.

    `constants` are the columns and nested fields that have a value in all rows of files that lack them. `paths` are the
    files that were read.
    """

    settings: WriteSettings
    constants: frozenset[int] = frozenset()
    paths: set[str] = field(default_factory=set)
    sums: dict[int, Count] = field(default_factory=dict)
    _is_open: bool = False
    _last: tuple[pa.Schema, Sequence[str] | None, _Source] | None = None
    _last_new: tuple[pa.Schema, _Source] | None = None

    def clear(self) -> None:
        """Reset all sums, before the rows are read again."""
        self.paths.clear()
        self.sums.clear()
        self._is_open = False

    def add_file(self, path: str, footer: Footer | None) -> None:
        """Add the ends of a file's columns, once.

        `footer` is None if the ends are unknown, or are not those of the rows that stay.
        """
        if path in self.paths:
            return
        self.paths.add(path)
        if (found := stored_ends(footer, self.settings)) is None:
            self._open()
        else:
            self.add({leaf: Count(ends=ends) for leaf, ends in found.items()})

    def add_rows(self, rows: pa.Table, stored: pa.Schema, names: Sequence[str] | None) -> None:
        """Add rows of a file with the schema `stored`, of which the columns `names` were read; None means all.

        Raises `ValueError` if the file has a column of the table that was not read.
        """
        last = self._last
        if last is None or last[0] is not stored or last[1] is not names:
            self._last = last = stored, names, self._source(stored, names)
        self._add_rows(rows, last[2], self.constants)

    def add_new(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows whose columns have the names of the table's columns."""
        last = self._last_new
        if last is None or not last[0].equals(rows.schema):
            by_name = _by_name(self.settings)
            self._last_new = last = rows.schema, _Source.of(rows.schema, None, by_name, self._target)
        self._add_rows(rows, last[1], frozenset(write_defaults(self.settings)))
        self._open()

    def add(self, counts: Counts) -> None:
        """Add counts from elsewhere."""
        for leaf, count in counts.items():
            self.sums[leaf] = self.sums.get(leaf, Count()).plus(count)

    def check(self, files: Iterable[NewDataFile]) -> list[NewDataFile]:
        """Return the files, without their counts, if they have the values and NULLs that were read.

        Otherwise raises `RewriteFailed`. Its attribute `column` is the name of the first column with other counts, or
        with another least or greatest value.
        """
        files = list(files)
        if (leaf := self.difference(files)) is not None:
            raise self._error(leaf, self._written(leaf, files))
        return [replace(file, counts={}) if file.counts else file for file in files]

    def difference(self, files: Sequence[NewDataFile]) -> Leaf | None:
        """Return the first column whose written counts or ends differ from those read."""
        return next((leaf for leaf in leaves(self.settings) if not self._agree(leaf, self._written(leaf, files))), None)

    def _agree(self, leaf: Leaf, written: Count) -> bool:
        return self.sums.get(leaf.field_id, Count()).agrees(written)

    def _written(self, leaf: Leaf, files: Iterable[NewDataFile]) -> Count:
        found = Count()
        for file in files:
            ends = written_ends(leaf, file) if self.paths else OPEN
            found = found.plus(Count(*file.counts.get(leaf.field_id, (0, 0)), ends))
        return found

    def _error(self, leaf: Leaf, written: Count) -> RewriteFailed:
        read = self.sums.get(leaf.field_id, Count())
        if read.counts_agree(written):
            first, others = min(self.paths), len(self.paths) - 1
            files = f"{first} and {others} more" if others else first
            why = (
                f"Cannot rewrite {files}: column '{leaf.name}' has another minimum or maximum in the new files than in "
                "the footers of these files; icesize removed the new files. Check these files with "
                "python -m icesize.parquet.verify, and write one with wrong statistics again. If all are right, "
                "report this bug"
            )
        else:
            why = (
                f"Cannot rewrite rows: column '{leaf.name}' has {read} in the input files, and {written} in the new "
                "files; icesize removed the new files. Report this bug"
            )
        return RewriteFailed(why, path=None, column=leaf.name)

    def _open(self) -> None:
        """Record that some rows have unknown least and greatest values."""
        if not self._is_open:
            self._is_open = True
            self.add(dict.fromkeys(self._target.leaves, Count(ends=OPEN)))

    @property
    def _target(self) -> _Target:
        return _target(self.settings)

    def _source(self, stored: pa.Schema, names: Sequence[str] | None) -> _Source:
        # files that store no lineage, and no field id either, get the columns of the lineage with their ids
        of_file = [column for column in stored if not is_lineage(column)]
        mapping = None if _has_ids(of_file) else _by_mapping(self.settings)
        return _Source.of(stored, names, mapping, self._target)

    def _add_rows(self, rows: pa.Table | pa.RecordBatch, source: _Source, constants: frozenset[int]) -> None:
        found = dict[int, Count]()
        for node, column in zip(source.nodes, rows.columns, strict=True):
            for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                _count(array, node, 0, found)
        self.add({leaf: found[leaf] for leaf in source.stored if leaf in found})
        for leaf, parent in source.added.items():
            around = Count(rows.num_rows) if parent is None else found.get(parent, Count())
            # a struct that is missing as a whole is NULL, whatever the defaults of its fields are
            has_value = leaf in constants and self._target.parents[leaf] == parent
            self.add({leaf: Count(around.entries, around.nulls if has_value else around.entries)})


@dataclass(frozen=True)
class _Target:
    """The table's leaf columns, the parent of each field, and the fields within lists and maps, which need no name."""

    leaves: tuple[int, ...]
    parents: Mapping[int, int | None]
    within: Mapping[int, tuple[int, ...]]

    def nearest(self, leaf: int, present: frozenset[int]) -> int | None:
        """Return the innermost field around a leaf that is present."""
        parent = self.parents.get(leaf)
        while parent is not None and parent not in present:
            parent = self.parents.get(parent)
        return parent


@derived
def _target(settings: WriteSettings) -> _Target:
    parents = dict[int, int | None].fromkeys(settings.schema.field_ids)
    within = dict[int, tuple[int, ...]]()
    for field_id in settings.schema.field_ids:
        kind = settings.schema.find_type(field_id)
        below = tuple(field.field_id for _, field in fields_below(kind))
        parents |= dict.fromkeys(below, field_id)
        if not isinstance(kind, StructType):
            within[field_id] = below
    return _Target(tuple(leaf.field_id for leaf in leaves(settings)), parents, within)


@dataclass(frozen=True)
class _Node:
    """A field of the rows read, its field id in the table, and the fields within."""

    id: int | None
    below: tuple[_Node, ...]

    def ids(self, parent: int | None = None) -> Iterator[tuple[int, int | None]]:
        """Yield the ids of the field and of all fields within it, each with the id of the field around it.

        The field itself is in `parent`.
        """
        if self.id is not None:
            yield self.id, parent
        for node in self.below:
            yield from node.ids(self.id)


@dataclass(frozen=True)
class _Source:
    """The columns that are read, and the table's leaves among them.

    For each other leaf, `added` has the innermost of these fields around it.
    """

    nodes: tuple[_Node, ...]
    stored: tuple[int, ...]
    added: Mapping[int, int | None]

    @staticmethod
    def of(schema: pa.Schema, names: Sequence[str] | None, mapping: Names | None, target: _Target) -> _Source:
        """Return the columns of `schema` that are among `names`, or all if None.

        Fields are identified by their ids if there is no mapping of names; columns of the row lineage always are.
        """
        entries = [None if mapping is None else mapping.get(name) for name in schema.names]
        nodes = [
            _node(f, None, entry, target, mapping is None or is_lineage(f))
            for f, entry in zip(schema, entries, strict=True)
        ]
        for own, parent in (pair for node in nodes for pair in node.ids()):
            if target.parents.get(own, parent) != parent:
                raise CastingError(f"field id {own} is not where the table has it; write the file with its field ids")
        wanted = schema.names if names is None else set(names)
        read = [node for node, name in zip(nodes, schema.names, strict=True) if name in wanted]
        present, everywhere = (frozenset(own for node in some for own, _ in node.ids()) for some in (read, nodes))
        stored = tuple(leaf for leaf in target.leaves if leaf in present)
        added = [leaf for leaf in target.leaves if leaf not in present]
        if unread := everywhere.intersection(added):
            raise ValueError(f"the column of field id {min(unread)} is in the file and is not read, report this")
        return _Source(tuple(read), stored, {leaf: target.nearest(leaf, present) for leaf in added})


def _node(field: pa.Field, within: int | None, entry: MappedField | None, target: _Target, has_ids: bool) -> _Node:
    """Return the field with its id.

    The id follows from the position `within` a list or map; otherwise it is the field's own, or the name mapping's.
    """
    text = (field.metadata or {}).get(FIELD_ID) if has_ids else None
    named = None if entry is None else entry.field_id
    own = within if within is not None else named if text is None else int(text)
    fields, names = _fields(field.type)
    below = {} if entry is None else _named(entry.fields)
    inner = target.within.get(own, ()) if own is not None else ()
    ids = inner if len(inner) == len(fields) else (None,) * len(fields)
    nodes = (_node(f, n, below.get(name), target, has_ids) for f, n, name in zip(fields, ids, names, strict=True))
    return _Node(own, tuple(nodes))


def _fields(kind: pa.DataType) -> tuple[list[pa.Field], list[str]]:
    """Return the fields within a type, and their names in a name mapping."""
    if isinstance(kind, pa.BaseExtensionType):
        return _fields(kind.storage_type)
    if types.is_map(kind):
        return [kind.key_field, kind.item_field], ["key", "value"]
    fields = [kind.field(i) for i in range(kind.num_fields)] if types.is_nested(kind) else []
    return fields, [f.name for f in fields] if types.is_struct(kind) else ["element"] * len(fields)


def _named(entries: Iterable[MappedField]) -> Names:
    return {name: entry for entry in entries for name in entry.names}


def _has_ids(fields: Iterable[pa.Field]) -> bool:
    return any(FIELD_ID in (field.metadata or {}) or _has_ids(_fields(field.type)[0]) for field in fields)


@derived
def _by_mapping(settings: WriteSettings) -> Names:
    mapping = settings.properties.get(NAME_MAPPING)
    return {} if mapping is None else _named(parse_mapping_from_json(mapping))


@derived
def _by_name(settings: WriteSettings) -> Names:
    return _named(settings.schema.name_mapping)


def _count(array: pa.Array, node: _Node, ended: int, found: dict[int, Count]) -> None:
    """Count a field and all fields within.

    `ended` entries have no such field, because a list around it is NULL or empty.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if node.id is not None:
        found[node.id] = found.get(node.id, Count()).plus(Count(len(array) + ended, _nulls(array) + ended))
    if not node.below:
        return
    if types.is_struct(array.type):
        for child, below in zip(array.flatten(), node.below, strict=True):
            _count(child, below, ended, found)
        return
    values, without = _values(array)
    children = values.flatten() if types.is_map(array.type) else [values]
    for child, below in zip(children, node.below, strict=True):
        _count(child, below, ended + without, found)


def _nulls(array: pa.Array) -> int:
    """Return the number of NULLs, including values whose dictionary entry is NULL."""
    if types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    return int(array.null_count)


def _values(array: pa.Array) -> tuple[pa.Array, int]:
    """Return the values in all lists, or entries in all maps, and the number of lists or maps without any."""
    kind = array.type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)):
        lengths = np.asarray(array.value_lengths().fill_null(0))
        return array.flatten(), int(np.count_nonzero(lengths == 0))
    if array.null_count == len(array):  # if every list is NULL, offsets can be any number
        return array.values.slice(0, 0), len(array)
    offsets = np.asarray(array.offsets)
    filled = offsets[1:] != offsets[:-1]
    if array.null_count and (filled > _is_there(array)).any():  # values below NULL lists do not count
        values, without = _values(array.drop_null())
        return values, without + array.null_count
    first, last = int(offsets[0]), int(offsets[-1])
    return array.values.slice(first, last - first), len(array) - int(np.count_nonzero(filled))


def _is_there(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 1 for each list that is not NULL, in a tenth of the time of `is_null` and a conversion to NumPy."""
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)]
