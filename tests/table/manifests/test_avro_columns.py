"""Records that are read at once have the values that reading one after the other finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder

from icesize.table.manifests.avro_columns import MISSING, ColumnReader, Misfit
from icesize.table.manifests.avro_values import inlined, reader, writer
from tests.support.avro import AVRO_VALUES

MARK = "mark://lake/"
_LONGS = st.integers(-(2**63), 2**63 - 1)
_TEXT, _ABSENT = 100, 999
_NUMBERS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", _LONGS),
    (["null", "long"], st.none() | _LONGS),
    (["int", "null"], st.none() | st.integers(-70, 70)),
]
_PATHS = st.text(st.characters(codec="utf-8"), max_size=200).map(lambda rest: MARK + rest)


def _schema(types: Sequence[Any]) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "field-id": i, "type": kind} for i, kind in enumerate(types)]
    return inlined({"type": "record", "name": "r", "fields": fields})  # type: ignore[no-any-return]


def _columns(schema: dict[str, Any], text: int, blocks: Sequence[Sequence[bytes]]) -> list[tuple[Any, ...]]:
    """The records as `ColumnReader` reads them: every number as a number, every other field as a value."""
    fields = schema["fields"]
    numbers = [f["field-id"] for f in fields if any(f["type"] == kind for kind, _ in _NUMBERS)]
    values = [f["field-id"] for f in fields if f["field-id"] not in (*numbers, text)]
    columns = ColumnReader(fields, text, [*numbers, _ABSENT], values, (fields[0]["field-id"], fields[-1]["field-id"]))
    part = columns.read([b"".join(records) for records in blocks], list(map(len, blocks)))
    assert b"".join(part.spans) == b"".join(record for records in blocks for record in records)
    assert part.numbers[_ABSENT].tolist() == [MISSING] * sum(map(len, blocks))
    nulls, where = columns.values([part], _ABSENT)
    assert [nulls[place] for place in where.tolist()] == [None] * sum(map(len, blocks))
    found: list[list[Any]] = []
    for each in range(len(fields)):
        if each == text:
            found.append([path.decode() for path in part.texts])
        elif each in numbers:
            found.append(part.numbers[each].tolist())
        else:
            distinct, places = columns.values([part], each)
            found.append([distinct[place] for place in places.tolist()])
    return list(zip(*found, strict=True))


def _one_by_one(schema: dict[str, Any], data: bytes, count: int) -> list[tuple[Any, ...]]:
    decoder, read = new_decoder(data), reader(schema)
    numbers = [any(f["type"] == kind for kind, _ in _NUMBERS) for f in schema["fields"]]
    records = [read(decoder) for _ in range(count)]
    if decoder.tell() != len(data):
        raise ValueError
    return [
        tuple(
            MISSING if value is None and is_number else value for value, is_number in zip(record, numbers, strict=True)
        )
        for record in records
    ]


@st.composite
def _blocks(draw: st.DrawFn) -> tuple[dict[str, Any], int, list[list[bytes]]]:
    """A schema, the index of its marked text, and encoded records in blocks."""
    kinds = st.sampled_from([*AVRO_VALUES, *_NUMBERS])
    before, after = draw(st.lists(kinds, max_size=4)), draw(st.lists(kinds, max_size=5))
    # the last byte of the field before the text is below 128, as in manifests
    before.append(draw(st.sampled_from(_NUMBERS)))
    chosen = [*before, ("string", _PATHS), *after]
    schema = _schema([kind for kind, _ in chosen])
    write = writer(schema)

    def encoded(values: tuple[Any, ...]) -> bytes:
        out = bytearray()
        write(out, values)
        return bytes(out)

    record = st.tuples(*[values for _, values in chosen]).map(encoded)
    return schema, len(before), draw(st.lists(st.lists(record, min_size=1, max_size=4), min_size=1, max_size=3))


@given(_blocks())
def test_columns_are_those_of_the_records(case: tuple[dict[str, Any], int, list[list[bytes]]]) -> None:
    """Of any types of manifests, in blocks of any length, with numbers and texts of different lengths."""
    schema, text, blocks = case
    records = list(itertools.chain(*blocks))
    assert _columns(schema, text, blocks) == _one_by_one(schema, b"".join(records), len(records))


@given(_blocks(), st.data())
def test_damage_is_a_misfit_or_reads_as_it_does_one_by_one(
    case: tuple[dict[str, Any], int, list[list[bytes]]], data: st.DataObject
) -> None:
    """Bytes that were changed, cut off or added never give other values, nor any other error."""
    schema, text, blocks = case
    whole = b"".join(itertools.chain(*blocks))
    count = sum(map(len, blocks))
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 3)) :]
    one_block = [[damaged, *[b""] * (count - 1)]]
    try:
        columns = _columns(schema, text, one_block)
    except (Misfit, EOFError, ValueError):
        return
    decoder, read = StreamingBinaryDecoder(damaged), reader(schema)
    assert [read(decoder)[text] for _ in range(count)] == [record[text] for record in columns]
    assert decoder.tell() == len(damaged)
    # printed, because NaN equals nothing
    assert repr(columns) == repr(_one_by_one(schema, damaged, count))


def _encoded(schema: dict[str, Any], *values: Any) -> bytes:
    out = bytearray()
    writer(schema)(out, values)
    return bytes(out)


def test_the_mark_is_a_folder_of_all_texts() -> None:
    """The first texts of blocks have more in common than all of them have."""
    schema = _schema(["string", "long"])
    paths = ["s3://lake/t/day=1/a", "s3://lake/t/day=2/b", "s3://lake/t/day=1/c"]
    first, *more = [_encoded(schema, path, 7) for path in paths]
    assert _columns(schema, 0, [[first, *more], [first]]) == [(path, 7) for path in [*paths, paths[0]]]


@pytest.mark.parametrize("path", ["hdfs://other/t/b", ""])
def test_texts_without_a_common_mark_are_a_misfit(path: str) -> None:
    """Nothing tells where the records begin."""
    schema = _schema(["string", "long"])
    records = [_encoded(schema, each, 7) for each in ("s3://lake/t/a", path)]
    with pytest.raises(Misfit):
        _columns(schema, 0, [records])


def test_a_mark_elsewhere_is_a_misfit() -> None:
    """A column's bound that begins as the paths do is not taken for a path."""
    schema = _schema(["string", "bytes"])
    records = [_encoded(schema, "s3://lake/t/a", b"x"), _encoded(schema, "s3://lake/t/b", b"s3://lake/t/")]
    with pytest.raises(Misfit):
        _columns(schema, 0, [records])


def test_blocks_with_other_numbers_of_records_are_a_misfit() -> None:
    """The counts of the blocks are checked, as their ends are."""
    schema = _schema(["string", "long"])
    record = _encoded(schema, "s3://lake/t/a", 7)
    columns = ColumnReader(schema["fields"], 0, [1], [], (0, 1))
    part = columns.read([record, record * 2], [1, 2])
    assert (part.numbers[1].tolist(), part.spans) == ([7, 7, 7], [record] * 3)
    for counts in ([2, 1], [3, 0], [1, 1], [2, 2]):
        with pytest.raises(Misfit):
            columns.read([record, record * 2], counts)
