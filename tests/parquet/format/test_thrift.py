"""Thrift's compact protocol: what is read is written again byte for byte, and no bytes do harm."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.thrift import (
    BINARY,
    BOOLEAN_FALSE,
    BOOLEAN_TRUE,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    UUID,
    Fields,
    binary,
    boolean,
    boolean_field,
    bytes_field,
    check_widths,
    i16,
    i32,
    i64,
    integer,
    integers_field,
    integers_of,
    list_header,
    raw_of,
    read_list_header,
    read_struct,
    read_structs,
    read_varint,
    required_integer,
    signed,
    skip,
    struct_field,
    struct_of,
    structs_field,
    structs_of,
    varint,
    write_struct,
    zigzag,
)
from tests.support.examples import examples

_BITS = {I16: 16, I32: 32, I64: 64}
_SCALARS: dict[int, st.SearchStrategy[bytes]] = {
    BYTE: st.binary(min_size=1, max_size=1),
    **{kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(zigzag) for kind, bits in _BITS.items()},
    DOUBLE: st.binary(min_size=8, max_size=8),
    UUID: st.binary(min_size=16, max_size=16),
    BINARY: st.binary(max_size=150).map(lambda value: varint(len(value)) + value),
}


def _structs(values: st.SearchStrategy[tuple[int, bytes]]) -> st.SearchStrategy[Fields]:
    return st.dictionaries(st.integers(1, 40) | st.integers(1, 2**15 - 1), values, max_size=6)


def _lists(values: st.SearchStrategy[tuple[int, bytes]]) -> st.SearchStrategy[tuple[int, bytes]]:
    """Lists and sets of the type of one value, up to sixteen times."""
    return st.builds(
        lambda kind, value, count: (kind, list_header(count, value[0]) + value[1] * count),
        st.sampled_from((LIST, SET)),
        values.filter(lambda value: value[0] > BOOLEAN_FALSE),
        st.integers(0, 16),
    )


_FLAGS = st.sampled_from(((BOOLEAN_TRUE, b""), (BOOLEAN_FALSE, b"")))
_LEAVES = _FLAGS | st.sampled_from(sorted(_SCALARS)).flatmap(lambda kind: st.tuples(st.just(kind), _SCALARS[kind]))
_VALUES = st.recursive(_LEAVES, lambda inner: _lists(inner) | _structs(inner).map(struct_field), max_leaves=8)


@examples(40)
@given(_structs(_VALUES), st.binary(max_size=5))
def test_every_struct_is_written_as_it_was_read(fields: Fields, behind: bytes) -> None:
    """Fields of any types, nested, are read back equal and written to the same bytes; skipping ends at their end."""
    raw = write_struct(fields)
    assert read_struct(raw + behind) == (fields, len(raw))
    assert write_struct(read_struct(raw)[0]) == raw
    assert skip(raw + behind, 0, STRUCT) == len(raw)


@examples(20)
@given(_structs(_VALUES))
def test_a_view_reads_as_its_bytes_do(fields: Fields) -> None:
    """Memory that is not copied gives the same struct, which is written to the same bytes."""
    raw = write_struct(fields)
    read, end = read_struct(memoryview(b"before" + raw), 6)
    assert (read, end) == (fields, 6 + len(raw))
    assert write_struct(read) == raw


@examples(40)
@given(_structs(_VALUES), st.integers(0))
def test_a_struct_that_is_cut_is_noticed(fields: Fields, cut: int) -> None:
    """No beginning of a struct is a struct."""
    raw = write_struct(fields)
    cut %= len(raw)
    with pytest.raises(DamagedFile):
        read_struct(raw[:cut])
    with pytest.raises(DamagedFile):
        skip(raw[:cut], 0, STRUCT)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_malformed(data: bytes) -> None:
    """Bytes of chance are read to a struct whose writing reads back equal, or refused; skipping agrees on the end."""
    try:
        fields, end = read_struct(data)
    except DamagedFile:
        return
    assert read_struct(write_struct(fields))[0] == fields
    assert skip(data, 0, STRUCT) == end


@given(st.integers(0, 2**64 - 1))
def test_unsigned_numbers_have_64_bits(value: int) -> None:
    """Each number of up to 64 bits reads back; seven bits of it take a byte."""
    raw = varint(value)
    assert read_varint(b"x" + raw + b"x", 1) == (value, 1 + len(raw))
    assert len(raw) == max(1, -(-value.bit_length() // 7))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_have_64_bits(value: int) -> None:
    """Each signed number reads back, and small ones of both signs are short."""
    assert signed(read_varint(zigzag(value), 0)[0]) == value
    assert (len(zigzag(value)) == 1) == (-64 <= value < 64)


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_numbers_that_are_cut_or_too_long_are_malformed(raw: bytes) -> None:
    """Nothing that has no end within 64 bits is a number."""
    with pytest.raises(DamagedFile, match="a number is cut off or longer than 64 bits"):
        read_varint(raw, 0)


def test_the_bytes_are_those_of_the_specification() -> None:
    """Short steps between fields share a byte with the type, long ones do not; lists of 15 and more have a length."""
    assert write_struct({1: i32(1), 16: i64(-1), 40: bytes_field(b"ab")}) == bytes(
        [0x15, 2, 0xF6, 1, 0x08, 80, 2, 0x61, 0x62, 0]
    )
    assert (list_header(14, I64), list_header(15, I64)) == (b"\xe6", b"\xf6\x0f")
    assert [read_list_header(list_header(count), 0) for count in (0, 14, 15, 300)] == [
        (0, STRUCT, 1),
        (14, STRUCT, 1),
        (15, STRUCT, 2),
        (300, STRUCT, 3),
    ]


def test_single_fields_read_as_made() -> None:
    """Each kind of field that icesize makes has the value it was made of."""
    fields: Fields = {
        1: i16(-(2**15)),
        2: i32(2**31 - 1),
        3: i64(-(2**63)),
        4: bytes_field(b"some bytes"),
        5: boolean_field(True),
        6: boolean_field(False),
        7: struct_field({1: i32(5)}),
        8: structs_field([{1: i32(5)}, {}]),
        9: integers_field([1, -1, 2**40], I64),
    }
    read, _ = read_struct(write_struct(fields))
    assert [integer(read, i) for i in (1, 2, 3)] == [-(2**15), 2**31 - 1, -(2**63)]
    assert (binary(read, 4), boolean(read, 5), boolean(read, 6)) == (b"some bytes", True, False)
    assert (struct_of(read, 7), structs_of(read, 8)) == ({1: i32(5)}, [{1: i32(5)}, {}])
    assert integers_of(read, 9) == [1, -1, 2**40]


def test_absent_fields_have_no_value() -> None:
    """What is not there is None or empty, unless it must be there."""
    assert (integer({}, 1), binary({}, 1), boolean({}, 1), struct_of({}, 1)) == (None, None, None, None)
    assert (structs_of({}, 1), integers_of({}, 1)) == ([], [])
    with pytest.raises(DamagedFile, match="field 1 is missing"):
        required_integer({}, 1)
    with pytest.raises(DamagedFile, match="field 1 is missing or of type 0"):
        raw_of({}, 1, LIST)


@pytest.mark.parametrize("read", [integer, binary, boolean, struct_of, structs_of, integers_of])
def test_fields_of_another_type_are_malformed(read: Callable[[Fields, int], Any]) -> None:
    """A value is never taken for one of another type."""
    with pytest.raises(DamagedFile, match="field 1 is"):
        read({1: (DOUBLE, bytes(8))}, 1)


@pytest.mark.parametrize(("kind", "bits"), [(I16, 16), (I32, 32)])
def test_integers_fit_their_type(kind: int, bits: int) -> None:
    """A number that other readers would cut to the bits of its type is refused; the extremes are not."""
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for value in ends:
        check_widths({1: (kind, zigzag(value)), 2: i64(2**62)})
    for value in (ends[0] - 1, ends[1] + 1):
        with pytest.raises(DamagedFile, match="field 1 is too large for its type"):
            check_widths({1: (kind, zigzag(value))})


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x10\0", "field 1 of type 0"),
        (b"\x15\0\x05\x02\0\0", "field 1 of type 5"),
        (b"\x05\x01\0\0", "field -1 of type 5"),
        (b"\x05" + zigzag(2**15) + b"\0\0", "field 32768 of type 5"),
        (b"\x1b\0\0", "type 11"),
        (b"\x1d" + bytes(15), "a value is cut off"),
        (b"\x18" + varint(2**60), "a value is cut off"),
        (b"\x19\xf6" + varint(2**60), "a list is longer than the data"),
        (b"\x19\xf3" + varint(2**60), "a value is cut off"),
        (b"\x19\xf7" + varint(2**60), "a value is cut off"),
        (b"\x19\xff" + varint(2**60), "a list is longer than the data"),
        (b"\x19\x10\0\0", "type 0"),
        (b"\x1c\x10\0\0", "a field without type"),
    ],
)
def test_what_the_protocol_does_not_have_is_malformed(raw: bytes, why: str) -> None:
    """Fields twice, without type or with impossible numbers, maps, and counts that no data follow."""
    with pytest.raises(DamagedFile, match=why):
        read_struct(raw)


@pytest.mark.parametrize("kind", [MAP, 0, 14, 15, BOOLEAN_TRUE])
def test_only_values_with_bytes_are_skipped(kind: int) -> None:
    """There is nothing to skip of a type that Parquet does not have, or that has no bytes."""
    with pytest.raises(DamagedFile, match=f"type {kind}"):
        skip(bytes(9), 0, kind)


def test_a_list_of_something_else_is_not_one_of_structs() -> None:
    """Numbers are not read as structs."""
    with pytest.raises(DamagedFile, match="not a list of structs"):
        read_structs(list_header(1, I32) + b"\0", 0, read_struct)


@pytest.mark.parametrize("opening", [b"\x1c", b"\x19\x1c", b"\x19" + b"\x19", b"\x1a\x1a"], ids=["s", "ls", "l", "set"])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    """A hundred thousand structs or lists in each other are malformed, not the end of the interpreter's stack."""
    with pytest.raises(DamagedFile, match="nested too deeply"):
        read_struct(opening * 100_000)


def test_a_list_of_a_million_empty_structs_takes_no_memory() -> None:
    """More structs than any footer has are refused before they are made."""
    count = 2**22
    data = list_header(count) + bytes(count)
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="a list is longer than the data, or than any of Parquet"):
        read_structs(data, 0, read_struct)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def _calls(function: Callable[[], object]) -> int:
    """How many calls of Python functions it makes, whether it fails or not."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function()
    except DamagedFile:
        return calls
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x19\xf9" + varint(2_000) + (b"\xf9" + varint(500)) * 4_000,
        b"\x19\xfc" + varint(20_000) + bytes(20_000),
        b"\x19\xf8" + varint(20_000) + bytes(19_000),
        (b"\x19" + b"\x1c" * 30) * 1_000,
        b"\x16" + b"\xff" * 100_000,
    ],
    ids=["lists", "structs", "strings", "nested", "number"],
)
def test_work_is_bounded_by_the_size_of_the_data(hostile: bytes) -> None:
    """No bytes make the reader go over them again and again."""
    assert _calls(lambda: read_struct(hostile)) <= 3 * len(hostile)
