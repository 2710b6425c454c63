"""Avro containers and values: what one side writes, the other reads, and damage is noticed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.errors import TableError
from icesize.table.manifests.avro_container import BLOCK_BYTES, ContainerReader, ContainerWriter, read_records
from icesize.table.manifests.avro_values import inlined, reader, skipper, structure, write_bytes, write_long, writer
from tests.support.avro import AVRO_VALUES, BYTES_MAP, DECIMAL, INT_MAP
from tests.support.foreign_metadata import CODECS


def _record(types: list[Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


@st.composite
def _schema_and_record(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[Any, ...]]:
    chosen = draw(st.lists(st.sampled_from(AVRO_VALUES), min_size=1, max_size=6))
    return inlined(_record([t for t, _ in chosen])), tuple(draw(values) for _, values in chosen)


def _decoders(data: bytes) -> list[BinaryDecoder]:
    """PyIceberg's compiled decoder, where there is one, and the one that is always there."""
    return [new_decoder(data), StreamingBinaryDecoder(data)]


@given(_schema_and_record())
def test_every_type_reads_back_as_written(case: tuple[dict[str, Any], tuple[Any, ...]]) -> None:
    """A record of any types of manifests reads back equal, by both decoders, and skipping it ends at its end."""
    schema, values = case
    out = bytearray()
    writer(schema)(out, values)
    for decoder in _decoders(bytes(out) + b"end"):
        assert reader(schema)(decoder) == values
        assert decoder.tell() == len(out)
    for decoder in _decoders(bytes(out) + b"end"):
        skipper(schema)(decoder)
        assert decoder.tell() == len(out)


def test_nan_keeps_its_bits() -> None:
    """NaN in a double reads back as NaN."""
    out = bytearray()
    writer("double")(out, math.nan)
    assert math.isnan(reader("double")(new_decoder(bytes(out))))


@pytest.mark.parametrize(
    ("schema", "value"),
    [(INT_MAP, {1: 2, 3: 4}), ({"type": "array", "items": "string"}, ["a", "b"]), (BYTES_MAP, {1: b"xy"})],
)
def test_blocks_with_a_size_are_read_and_skipped(schema: Any, value: Any) -> None:
    """Avro allows arrays in blocks with a negative count and their size; they read and skip as the others do."""
    plain = bytearray()
    writer(schema)(plain, value)
    sized = bytearray()
    write_long(sized, -len(value))
    write_bytes(sized, bytes(plain[1:-1]))
    sized.append(0)
    for decoder in _decoders(bytes(sized)):
        assert reader(schema)(decoder) == value
    for decoder in _decoders(bytes(sized)):
        skipper(schema)(decoder)
        assert decoder.tell() == len(sized)


@given(st.lists(st.sampled_from([None, 0, 1, 3]), min_size=1, max_size=8))
def test_runs_of_optional_maps_are_skipped_whole(sizes: list[int | None]) -> None:
    """Skipping ends where the run ends: with maps left out, empty ones, and ones in several blocks with their sizes."""
    out, kinds = bytearray(), list[Any]()
    for place, size in enumerate(sizes):
        kind, value = ((INT_MAP, 1 << 40), (BYTES_MAP, b"xyz"), ({"type": "array", "items": "long"}, None))[place % 3]
        kinds.append(["null", kind])
        write_long(out, 0 if size is None else 1)
        for number in range(size or 0):
            block = bytearray()
            writer(kind)(block, [number] if value is None else {number: value})
            write_long(out, -1)
            write_bytes(out, bytes(block[1:-1]))
        out += b"" if size is None else b"\0"
    schema = inlined(_record(kinds))
    for run in (reader(schema), skipper(schema)):
        for decoder in _decoders(bytes(out) + b"rest"):
            run(decoder)
            assert decoder.tell() == len(out)


def test_types_that_only_others_write_are_read_and_skipped() -> None:
    """String maps, enums and unions of three types, which Iceberg may come to use, are no obstacle."""
    schema = inlined(
        _record(
            [
                {"type": "map", "values": "long"},
                {"type": "enum", "name": "e", "symbols": ["A", "B"]},
                ["null", "long", "string"],
                {"type": {"type": "long"}},
            ]
        )
    )
    data = bytes([2, 2]) + b"k" + bytes([14, 0]) + bytes([2]) + bytes([4, 2]) + b"s" + bytes([8])
    for decoder in _decoders(data):
        assert reader(schema)(decoder) == ({"k": 7}, "B", "s", 4)
    for decoder in _decoders(data):
        skipper(schema)(decoder)
        assert decoder.tell() == len(data)


def test_a_value_of_the_wrong_size_is_refused() -> None:
    """A fixed of another length would shift everything behind it, so it is not written."""
    with pytest.raises(ValueError, match="Cannot write 2 bytes as an Avro fixed of 3"):
        writer({"type": "fixed", "name": "f", "size": 3})(bytearray(), b"ab")
    with pytest.raises(ValueError, match="Cannot write a value of the Avro type"):
        writer(["null", "long", "string"])


def test_names_are_spelt_out_once_each() -> None:
    """Java's references to a named type and PyIceberg's repeated definitions become definitions of different names."""
    by_java = _record([DECIMAL, "d"])
    by_pyiceberg = _record([DECIMAL, DECIMAL])
    assert inlined(by_java) == inlined(by_pyiceberg)
    assert [field["type"]["name"] for field in inlined(by_java)["fields"]] == ["d", "d_2"]
    assert by_java == _record([DECIMAL, "d"])


def test_structure_tells_what_can_be_copied() -> None:
    """Names, docs and logical types do not matter to bytes; types, optionality, scale, order and field ids do."""

    def key(kind: Any, field_id: int = 1, **more: str) -> str:
        field = {"name": "x", "type": kind, "field-id": field_id, **more}
        return structure(inlined({"type": "record", "name": "r", "fields": [field]}))

    assert key("int", doc="a", name="y") == key({"type": "int", "logicalType": "date"})
    assert key({**DECIMAL, "name": "other"}) == key(DECIMAL)
    others = [key("int"), key("int", 2), key("long"), key(["null", "int"]), key(["int", "null"]), key(DECIMAL)]
    others.append(key({**DECIMAL, "scale": 3}))
    assert len(set(others)) == len(others)


def _container(records: list[bytes]) -> bytes:
    out = ContainerWriter("bytes", {"a": "b"})
    for record in records:
        encoded = bytearray()
        write_bytes(encoded, record)
        out.add(bytes(encoded[:1]), bytes(encoded[1:]))
    return out.finish()


def _records(data: bytes) -> list[bytes]:
    return list(ContainerReader(data, "m").records(lambda schema: lambda decoder, _: decoder.read_bytes()))


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_container_holds_its_records(records: list[bytes]) -> None:
    """A container gives back its records in order and its header."""
    data = _container(records)
    assert _records(data) == records
    metadata = ContainerReader(data, "m").metadata
    assert (metadata["a"], json.loads(metadata["avro.schema"]), metadata["avro.codec"]) == ("b", "bytes", "deflate")


def test_blocks_are_bounded() -> None:
    """Records are cut into blocks of about 64 kB, so that readers need not hold a whole manifest decoded."""
    data = _container([bytes([i % 251]) * 1000 for i in range(200)])
    counts = [count for count, _ in ContainerReader(data, "m").blocks()]
    assert sum(counts) == 200
    assert max(counts) <= BLOCK_BYTES // 1000 + 1
    assert min(counts[:-1]) >= BLOCK_BYTES // 1002


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_of_other_writers_are_read(codec: str) -> None:
    """Containers in all codecs of Avro are read without further packages, and damage in a block is noticed."""
    body = bytearray()
    for record in (b"one" * 30, b"two"):
        write_bytes(body, record)
    block = CODECS[codec](bytes(body))
    assert _records(_by_hand(codec, block)) == [b"one" * 30, b"two"]
    for bad in (block[:-1], block[:4]) if codec != "null" else ():
        with pytest.raises(TableError, match="Cannot read m: a block does not decompress"):
            _records(_by_hand(codec, bad))


def _by_hand(codec: str, block: bytes, count: int = 2) -> bytes:
    out = bytearray(b"Obj\x01")
    # The header's map in one block with a size, as Java's writer never does but Avro allows.
    pairs = bytearray()
    for text in ("avro.schema", '"bytes"', "avro.codec", codec):
        write_bytes(pairs, text.encode())
    write_long(out, -2)
    write_bytes(out, bytes(pairs))
    out += b"\x00" + b"s" * 16
    write_long(out, count)
    write_bytes(out, block)
    return bytes(out + b"s" * 16)


def test_damage_is_noticed() -> None:
    """A file that is no container, has an unknown codec, is cut off or holds other records than it says is refused."""
    good = _container([b"x" * 40] * 3)
    for bad, why in [
        (b"PAR1" + good, "it is not an Avro file"),
        (b"", "it is not an Avro file"),
        (good[:-1], "it is cut off or damaged"),
        (good[:-20], "it is cut off or damaged"),
        (good[:-16] + b"0" * 16, "it is cut off or damaged"),
        (good[:6], "it is cut off or damaged"),
        (good.replace(b"avro.codec", b"avro.cod\xff\xff"), "its header is damaged"),
        (_by_hand("lzo", b""), "its codec 'lzo' is unknown"),
        (_by_hand("deflate", b"\xff\xff"), "a block does not decompress"),
        (_by_hand("null", b"\x02a\x02b", 1), "it is cut off or damaged"),
    ]:
        with pytest.raises(TableError) as raised:
            _records(bad)
        assert str(raised.value).startswith(f"Cannot read m: {why}")
        assert raised.value.facts == {"path": "m"}


@pytest.mark.parametrize("number", [-1, 2, 3, 2**62])
@pytest.mark.parametrize(
    "schema", [["null", "int"], ["int", "null"], {"type": "enum", "name": "e", "symbols": ["a", "b"]}]
)
def test_a_choice_that_the_schema_does_not_have_is_damage(schema: Any, number: int) -> None:
    """A number of no type and of no symbol is never taken for another one, by either decoder."""
    out = bytearray()
    write_long(out, number)
    for decoder in (new_decoder(bytes(out)), StreamingBinaryDecoder(bytes(out))):
        with pytest.raises(ValueError, match=r"no type or symbol has the number"):
            reader(schema)(decoder)


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 20])
def test_a_length_that_no_text_can_have_is_damage(tmp_path: Path, length: int) -> None:
    """Python's OverflowError for it becomes a TableError that names the file."""
    out = bytearray()
    write_long(out, length)
    (tmp_path / "m.avro").write_bytes(_by_hand("null", bytes(out), 1))
    read = reader("bytes")
    with pytest.raises(TableError, match=r"m\.avro: an entry is damaged"):
        list(
            read_records(PyArrowFileIO(), f"file://{tmp_path}/m.avro", lambda schema: lambda decoder, _: read(decoder))
        )


@pytest.mark.parametrize("count", [2**40, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("schema", [INT_MAP, BYTES_MAP, {"type": "array", "items": "long"}])
def test_a_count_above_the_bytes_is_damage(schema: Any, count: int) -> None:
    """Neither decoder reads on behind its bytes, nor takes memory for so many items."""
    out = bytearray()
    write_long(out, count)
    if count < 0:
        write_long(out, 600)
    out += bytes([2, 2]) * 600
    for make in (reader, skipper):
        for decoder in _decoders(bytes(out)):
            with pytest.raises(EOFError):
                make(schema)(decoder)


@pytest.mark.parametrize("count", [199, 200, 201, 1000])
def test_blocks_of_any_length_are_read(count: int) -> None:
    """An array or map of more items than one call reads is whole."""
    for schema, value in (
        (INT_MAP, {n: -n for n in range(count)}),
        (BYTES_MAP, dict.fromkeys(range(count), b"xy")),
        ({"type": "array", "items": "long"}, list(range(count))),
    ):
        out = bytearray()
        writer(schema)(out, value)
        for decoder in _decoders(bytes(out)):
            assert reader(schema)(decoder) == value
            assert decoder.tell() == len(out)


def test_a_bug_in_reading_an_entry_is_no_damage(tmp_path: Path) -> None:
    """An IndexError comes out as it is: no decoder raises one, whatever the bytes are."""
    (tmp_path / "m.avro").write_bytes(_container([b"x"]))

    def reader_with_a_bug(schema: str) -> Callable[[BinaryDecoder, bytes], object]:
        return lambda decoder, buffer: [][0]

    with pytest.raises(IndexError):
        list(read_records(PyArrowFileIO(), f"file://{tmp_path}/m.avro", reader_with_a_bug))


def test_values_are_pyicebergs() -> None:
    """Decimals and UUIDs are objects, dates and timestamps numbers, as in PyIceberg's partition records."""
    schema = inlined(
        _record([DECIMAL, {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, AVRO_VALUES[8][0]])
    )
    out = bytearray()
    values = (Decimal("-1.50"), UUID(int=7), 19000)
    writer(schema)(out, values)
    assert reader(schema)(new_decoder(bytes(out))) == values


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 2**31), ("int", -(2**31) - 1), ("int", 3_000_000_000), ("long", 2**63), ("long", -(2**63) - 1),
        ("float", 0.1), ("float", 1e300), ("float", 16_777_217), ("double", 2**53 + 1),
        (DECIMAL, Decimal("99999999.99")), (DECIMAL, Decimal("12345678901234.50")), (DECIMAL, Decimal("1.5")),
        ({**DECIMAL, "type": "bytes"}, Decimal("99999999.99")), ({**DECIMAL, "type": "bytes"}, Decimal("1.500")),
        ({"type": "fixed", "name": "f", "size": 3}, b"four"), ("null", 1),
    ],
)  # fmt: skip
def test_numbers_without_a_place_in_their_type_are_refused(schema: Any, value: Any) -> None:
    """A number that would come back as another one is an error: nothing is wrapped, rounded or cut off."""
    with pytest.raises(ValueError, match=r"Cannot write .* as an Avro"):
        writer(schema)(bytearray(), value)


@given(st.integers(-(2**33), 2**33))
def test_ints_are_written_or_refused(value: int) -> None:
    """Whatever an int has a place for reads back equal, and only that is written."""
    out = bytearray()
    if -(2**31) <= value < 2**31:
        writer("int")(out, value)
        assert reader("int")(new_decoder(bytes(out))) == value
    else:
        with pytest.raises(ValueError, match=f"Cannot write {value} as an Avro int"):
            writer("int")(out, value)
