"""Fields of many Avro records at once, as columns, with numpy.

An Avro record has no length: it begins where the one before it ends. So this module guesses where records are. All of
them have a text that begins with the same `mark`, such as the path of a file. From each mark, all records are read to
their ends at once. Then the beginnings of all records are read, each from the end of the record before it, and must end
exactly at the next mark. This holds for no other places than those that reading one record after the other finds, so
that a wrong guess is noticed and never changes a value.

Measured on 1,000,000 entries with statistics of 7 columns: the facts of one take 2.2 us of CPU time instead of 6.6 us.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyiceberg.avro.decoder import new_decoder

from icesize.table.manifests.avro_values import AvroSchema, reader

Longs = NDArray[np.int64]
Places = NDArray[np.intp]
_Move: TypeAlias = "Callable[[_Positions], Longs | None]"

MISSING = -1
"""The mark of null in a column of numbers."""
_MORE = 0x80
"""A byte of a number with this bit is followed by another one."""
_LONG_BYTES = 10
"""Most bytes of a number of 64 bits."""
_PADDING = 4 * _LONG_BYTES
"""Zeros behind the bytes, where reading a number ends; positions are checked only after each number."""
_LENGTH_BYTES = 3
"""Most bytes of the length of a text that has the mark: a million characters."""
_SHORT = np.array([(n >> 1) ^ -(n & 1) for n in range(_MORE)], np.int64)
"""Numbers of one byte, by that byte."""
_MOST_ITEMS = 10_000
"""Manifests with longer lists or maps are read one entry at a time; those of a wide table have an item per column."""
_SAME_BYTES = 32
"""Most bytes of values that are compared with the first one before they are cut out one by one."""


class Misfit(Exception):
    """The records are not where their marks are, or are damaged: they are to be read one by one."""


class _Positions:
    """A position in the bytes for each record. All move together."""

    __slots__ = ("at", "data", "size")

    def __init__(self, data: NDArray[np.uint8], size: int, at: Places) -> None:
        self.data, self.size, self.at = data, size, at

    def part(self, rows: Places) -> _Positions:
        """Return the positions of these records, which then move alone."""
        return _Positions(self.data, self.size, self.at[rows])

    def longs(self) -> Longs:
        """Read an int or a long."""
        first = self.data[self.at]
        self.skip(1)
        return _SHORT[first] if not first.size or first.max() < _MORE else self._longer(first)

    def _longer(self, first: NDArray[np.uint8]) -> Longs:
        raw = (first & 0x7F).astype(np.uint64)
        rows, shift = np.flatnonzero(first >= _MORE), 7
        while rows.size:
            byte = self.data[self.at[rows]]
            if shift == 7 * (_LONG_BYTES - 1) and byte.max() > 1:
                raise Misfit
            raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            self.at[rows] += 1
            rows, shift = rows[byte >= _MORE], shift + 7
        self._check()
        numbers: Longs = ((raw >> np.uint64(1)) ^ (~(raw & np.uint64(1)) + np.uint64(1))).view(np.int64)
        return numbers

    def skip(self, length: int | Longs) -> None:
        """Skip so many bytes: the same number of each record, or a number for each."""
        self.at = self.at + length
        self._check()

    def skip_text(self) -> None:
        """Skip bytes or a string."""
        self.skip_bytes(self.longs())

    def skip_bytes(self, lengths: Longs) -> None:
        """Skip a number of bytes of each record."""
        if lengths.size and not 0 <= lengths.min() <= lengths.max() <= self.size:
            raise Misfit
        self.skip(lengths)

    def _check(self) -> None:
        if self.at.size and self.at.max() > self.size:
            raise Misfit


_MOVES: dict[str, _Move] = {
    "null": lambda positions: None,
    "boolean": lambda positions: positions.skip(1),
    "int": _Positions.longs,
    "long": _Positions.longs,
    "float": lambda positions: positions.skip(4),
    "double": lambda positions: positions.skip(8),
    "bytes": _Positions.skip_text,
    "string": _Positions.skip_text,
}


def _mover(schema: AvroSchema) -> _Move:
    """Return a function that moves over one value of an inlined schema; it returns the numbers of an int or a long."""
    if isinstance(schema, str):
        return _MOVES[schema]
    if isinstance(schema, list):
        return _union([_mover(branch) for branch in schema])
    kind = schema["type"]
    if kind == "record":
        return _each([_mover(field["type"]) for field in schema["fields"]])
    if kind == "map":
        return _array(_each([_MOVES["string"], _mover(schema["values"])]))
    if kind == "array":
        return _array(_mover(schema["items"]))
    if kind == "fixed":
        size: int = schema["size"]
        return lambda positions: positions.skip(size)
    return _MOVES["int" if kind == "enum" else kind]


def _each(moves: Sequence[_Move]) -> _Move:
    def move(positions: _Positions) -> None:
        for step in moves:
            step(positions)

    return move


def _union(moves: Sequence[_Move]) -> _Move:
    def move(positions: _Positions) -> Longs:
        branches = positions.longs()
        numbers = np.full(branches.size, MISSING, np.int64)
        if branches.size and not 0 <= branches.min() <= branches.max() < len(moves):
            raise Misfit
        for branch, step in enumerate(moves):
            rows = np.flatnonzero(branches == branch)
            _of_some(positions, rows, step, numbers)
        return numbers

    return move


def _of_some(positions: _Positions, rows: Places, move: _Move, numbers: Longs | None = None) -> None:
    """Move the positions of these records only, and put what is read into their `numbers`."""
    if not rows.size:
        return
    part = positions if rows.size == positions.at.size else positions.part(rows)
    values = move(part)
    if part is not positions:
        positions.at = positions.at.copy()
        positions.at[rows] = part.at
    if numbers is not None and values is not None:
        numbers[rows] = values


def _array(item: _Move) -> _Move:
    def move(positions: _Positions) -> None:
        counts = positions.longs()
        while (rows := np.flatnonzero(counts)).size:
            # The size of the block follows a negative count, for readers that skip the block.
            _of_some(positions, np.flatnonzero(counts < 0), _Positions.longs)
            counts = np.abs(counts)
            if not 0 <= counts.min() <= counts.max() <= _MOST_ITEMS:
                raise Misfit
            for number in range(int(counts.max())):
                _of_some(positions, np.flatnonzero(counts > number), item)
            counts = np.zeros(counts.size, np.int64)
            _of_some(positions, rows, _Positions.longs, counts)

    return move


@dataclass(frozen=True, eq=False, slots=True)
class RecordColumns:
    """Fields of records in their order.

    Attributes:
        texts: The texts with the mark, as bytes.
        numbers: Ints and longs by field id, `MISSING` for null and for a field that the record does not have.
        values: Distinct encoded values by field id, and the index of each record's value among them.
        data: All records.
        begins: Where the span of each record begins in `data`.
        ends: Where it ends.
    """

    texts: list[bytes]
    numbers: Mapping[int, Longs]
    values: Mapping[int, tuple[list[bytes], Places]]
    data: bytes
    begins: Places
    ends: Places

    @property
    def spans(self) -> list[bytes]:
        """The bytes of each record's span."""
        return _parts(self.data, self.begins, self.ends)


class ColumnReader:
    """Reads fields of the records of one schema at once.

    Args:
        fields: All fields of the record in their order, inlined; those of a record within it are part of them.
        text: Field id of the string with the mark.
        numbers: Field ids of ints and longs to read.
        values: Field ids of other fields to read.
        span: Field ids of the first field and the last field of the span.
    """

    def __init__(
        self,
        fields: Sequence[Mapping[str, Any]],
        text: int,
        numbers: Iterable[int],
        values: Iterable[int],
        span: tuple[int, int],
    ) -> None:
        at = next(place for place, field in enumerate(fields) if field["field-id"] == text)
        steps = [(field["field-id"], _mover(field["type"])) for field in fields]
        self._before, self._after = steps[:at], steps[at + 1 :]
        self._text, self._numbers, self._span, wanted = text, frozenset(numbers), span, frozenset(values)
        self._readers = {field["field-id"]: reader(field["type"]) for field in fields if field["field-id"] in wanted}

    def read(self, contents: Sequence[bytes], counts: Sequence[int]) -> RecordColumns:
        """Return the columns of the records of blocks with these contents and numbers of records.

        Raises Misfit if the records are not found by a mark, or are damaged.
        """
        data = b"".join(contents)
        ends = np.cumsum([len(content) for content in contents])
        padded = np.zeros(len(data) + _PADDING, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        first = _Positions(padded, len(data), np.concatenate([[0], ends[:-1]]))
        starts = _marked(data, self._first_texts(first, data), sum(counts))
        lengths = _lengths_before(padded, starts)
        after = _Positions(padded, len(data), starts)
        after.skip_bytes(lengths)
        text_ends, values = after.at, dict[int, tuple[list[bytes], Places]]()
        numbers = {field_id: np.full(starts.size, MISSING, np.int64) for field_id in self._numbers}
        places = dict[int, tuple[Places, Places]]()
        self._read(after, self._after, data, numbers, values, places)
        before = _Positions(padded, len(data), np.concatenate([[0], after.at[:-1]]))
        self._read(before, self._before, data, numbers, values, places)
        places[self._text] = before.at, text_ends
        if not (
            np.array_equal(before.longs(), lengths)
            and np.array_equal(before.at, starts)
            and np.array_equal(after.at[np.cumsum(counts) - 1], ends)
        ):
            raise Misfit
        first_field, last_field = self._span
        begins, ends = places[first_field][0], places[last_field][1]
        return RecordColumns(_parts(data, starts, text_ends), numbers, values, data, begins, ends)

    def _first_texts(self, positions: _Positions, data: bytes) -> list[bytes]:
        """Return the texts of the records at these positions."""
        for _, move in self._before:
            move(positions)
        lengths = positions.longs()
        starts = positions.at
        positions.skip_bytes(lengths)
        return _parts(data, starts, positions.at)

    def _read(
        self, positions: _Positions, steps: Sequence[tuple[int, _Move]], data: bytes, numbers: dict[int, Longs],
        values: dict[int, tuple[list[bytes], Places]], places: dict[int, tuple[Places, Places]],
    ) -> None:  # fmt: skip
        for field_id, move in steps:
            start = positions.at
            column = move(positions)
            if field_id in self._span:
                places[field_id] = start, positions.at
            if field_id in numbers and column is not None:
                numbers[field_id] = column
            elif field_id in self._readers:
                values[field_id] = _distinct(positions.data, data, start, positions.at)

    def values(self, parts: Sequence[RecordColumns], field_id: int) -> tuple[list[Any], Places]:
        """Return the decoded distinct values of all parts, and the index of each record's value among them.

        A field that the schema does not have is null in all records. Raises what decoders raise for damaged values.
        """
        if field_id not in self._readers:
            return [None], np.zeros(sum(len(part.texts) for part in parts), np.intp)
        indexes, read = dict[bytes, int](), self._readers[field_id]
        places = list[Places]()
        for distinct, place in (part.values[field_id] for part in parts):
            joint = [indexes.setdefault(value, len(indexes)) for value in distinct]
            places.append(np.array(joint, np.intp)[place])
        return [read(new_decoder(value)) for value in indexes], np.concatenate(places)


def _marked(data: bytes, texts: Sequence[bytes], count: int) -> Places:
    """Return the places of the mark: the longest folder of these texts that is in the data so many times."""
    mark = os.path.commonprefix(texts)  # noqa: RUF071 - bytes are meant, not folders
    while mark:
        starts = [found.start() for found in re.finditer(re.escape(mark), data)]
        if len(starts) >= count:
            break
        mark = mark[: mark.rfind(b"/", 0, -1) + 1]
    if not mark or len(starts) > count:
        raise Misfit
    return np.array(starts, np.intp)


def _parts(data: bytes, starts: Places, ends: Places) -> list[bytes]:
    return [data[begin:end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _lengths_before(data: NDArray[np.uint8], starts: Places) -> Longs:
    """Return the numbers that end before these positions, if each is preceded by a byte below 128.

    In manifests it is, because a number precedes. `ColumnReader` reads the lengths again from the beginnings of their
    records, so that a wrong one is noticed.
    """
    begins = starts - 1
    for _ in range(_LENGTH_BYTES - 1):
        # the padding lies before position 0
        begins = begins - (data[begins - 1] >= _MORE)
    return _Positions(data, data.size, begins).longs()


def _distinct(data: NDArray[np.uint8], raw: bytes, starts: Places, ends: Places) -> tuple[list[bytes], Places]:
    """Return the distinct parts of the bytes in order of their first use, and the index of each part."""
    length = int(ends[0] - starts[0])
    is_short = length <= _SAME_BYTES and (ends - starts == length).all()
    if is_short and all((data[starts + at] == data[starts[0] + at]).all() for at in range(length)):
        return [raw[starts[0] : ends[0]]], np.zeros(starts.size, np.intp)
    places: dict[bytes, int] = {}
    indexes = [places.setdefault(part, len(places)) for part in _parts(raw, starts, ends)]
    return list(places), np.array(indexes, np.intp)
