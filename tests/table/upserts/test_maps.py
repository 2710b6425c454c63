"""Maps of keys find what a scan finds, whatever becomes of their files."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    UUIDType,
)

from icesize.concurrency import concurrently
from icesize.parquet.keys.codes import Codes
from icesize.planning.files import FileFact
from icesize.table.upserts import maps
from icesize.table.upserts.index_files import IndexFolder, MapSettings, index_folder
from icesize.table.upserts.lookup import Scan, TableFiles
from icesize.table.upserts.maps import KeyMaps
from tests.support.copying import foreign_bytes, stored, with_ids
from tests.support.examples import examples
from tests.support.parquet_files import schema_of, settings_of

LARGE = 2**30
_DAY = datetime.date(2026, 1, 1)
KINDS: dict[str, tuple[IcebergType, pa.DataType, Callable[[int], Any]]] = {
    "long": (LongType(), pa.int64(), lambda n: n * 2**55 - 3),
    "promoted": (LongType(), pa.int32(), lambda n: n - 3),
    "int": (IntegerType(), pa.int32(), lambda n: n - 3),
    "boolean": (BooleanType(), pa.bool_(), lambda n: n % 2 == 0),
    "date": (DateType(), pa.date32(), lambda n: _DAY + datetime.timedelta(n)),
    "timestamp": (TimestampType(), pa.timestamp("us"), lambda n: datetime.datetime(1960 + n, 1, 1)),
    "string": (StringType(), pa.string(), lambda n: "k" * n),
    "binary": (BinaryType(), pa.binary(), lambda n: b"\x00" * n),
    "decimal": (DecimalType(9, 2), pa.decimal128(9, 2), lambda n: Decimal(n - 3) / 4),
    "wide decimal": (DecimalType(38, 10), pa.decimal128(38, 10), lambda n: Decimal(n - 3) * 10**20),
    "uuid": (UUIDType(), pa.binary(16), lambda n: bytes([n]) * 16),
    "fixed": (FixedType(5), pa.binary(5), lambda n: bytes([n]) * 5),
}
"""Types of key columns: in the table and in the file, with a value for each small number."""


@st.composite
def keys_of_any_types(draw: st.DrawFn) -> tuple[list[str], list[list[int | None]]]:
    """Names of types, and rows with a number for the value of each column, or NULL."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3, unique=True))
    number = st.none() | st.integers(0, 6)
    rows = draw(st.lists(st.lists(number, min_size=len(kinds), max_size=len(kinds)), max_size=40))
    return kinds, rows


def columns(kinds: Sequence[str], rows: Sequence[Sequence[int | None]]) -> pa.Table:
    """The rows with the values of these types."""
    arrays = {}
    for place, kind in enumerate(kinds):
        _, of_file, value = KINDS[kind]
        numbers = [row[place] for row in rows]
        arrays[f"old_{kind}"] = pa.array([None if each is None else value(each) for each in numbers], of_file)
    return with_ids(pa.table(arrays))


def files_of(folder: Path, schema: Schema, **properties: str) -> TableFiles:
    """Reads files of a table below a folder, in format v3."""
    settings = replace(settings_of(folder / "table", schema, properties=properties), format_version=3)
    return TableFiles(settings)


def wanted_codes(scan: Scan, file: FileFact) -> Codes:
    """The codes of the keys of a file, in order, each once."""
    parts = [codes for _, codes in scan.codes(file)]
    lows = [each.low for each in parts if each.low is not None]
    high = np.concatenate([np.empty(0, np.uint64), *(each.high for each in parts)])
    codes = Codes(high, np.concatenate(lows) if lows else None)
    codes = codes.take(codes.order())
    return codes.take(~codes.repeats())


def maps_in(folder: Path, files: TableFiles, key: Sequence[int], most_bytes: int | None = LARGE) -> KeyMaps:
    """Maps of key columns below a folder, as a new process sees them."""
    index = IndexFolder(folder / "maps", most_bytes)
    return KeyMaps.of(files, key, index.begin_batch(), index)


def map_files(folder: Path) -> list[Path]:
    """All files of arrays."""
    return sorted((folder / "maps").glob("*.arrays"))


@examples(300)
@given(keys_of_any_types(), st.data())
def test_a_map_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, keys: Any, data: st.DataObject
) -> None:
    """For files of other writers, of several row groups and parts, with NULL and equal keys, renamed and promoted."""
    kinds, rows = keys
    folder = tmp_path_factory.mktemp("maps")
    files = files_of(folder, schema_of(*((kind.replace(" ", "_"), KINDS[kind][0]) for kind in kinds)))
    how = {"row_group_size": data.draw(st.integers(1, 50)), "use_dictionary": data.draw(st.booleans())}
    file = stored(folder, foreign_bytes(columns(kinds, rows), **how), len(rows))
    asked = data.draw(st.lists(st.lists(st.integers(0, 6), min_size=len(kinds), max_size=len(kinds)), max_size=9))
    wanted = stored(folder, foreign_bytes(columns(kinds, asked)), len(asked))
    key = range(1, 1 + len(kinds))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "PART_ROWS", data.draw(st.integers(1, 50)))
        building = maps_in(folder, files, key)
        codes = wanted_codes(building.scan, wanted)
        expected = building.scan.find(file, codes)
        again = maps_in(folder, files, key)
        for found in (building.find(file, codes), building.find(file, codes), again.find(file, codes)):
            assert found.positions.tolist() == expected.positions.tolist()
            assert found.places.tolist() == expected.places.tolist()
    assert again.scan.secret == building.scan.secret
    assert len(map_files(folder)) == 1


@examples(200)
@given(st.lists(st.none() | st.integers(0, 60), max_size=40), st.data())
def test_row_ids_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int | None], data: st.DataObject
) -> None:
    """Whether a row stores its id or inherits it, ids follow each other or not, the array has one part or several."""
    folder = tmp_path_factory.mktemp("ids")
    scale = data.draw(st.sampled_from([1, 2**20, 2**40, 2**56]))
    files = files_of(folder, schema_of(("id", LongType())))
    rows = pa.table({"id": pa.array(range(len(ids)), pa.int64())})
    row_ids = pa.array([None if each is None else each * scale for each in ids], pa.int64())
    named = [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("_row_id", pa.int64(), metadata={"PARQUET:field_id": "2147483540"}),
    ]
    content = foreign_bytes(pa.table([rows.column(0), row_ids], schema=pa.schema(named)))
    file = replace(stored(folder, content, len(ids)), first_row_id=1_000)
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, max(0, len(ids) - 1)))) if ids else []), np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "PART_ROWS", data.draw(st.integers(1, 50)))
        by_map = maps_in(folder, files, [1])
        expected = [1_000 + at if ids[at] is None else ids[at] * scale for at in positions.tolist()]
        for _ in range(2):
            assert by_map.row_ids(file, positions).tolist() == expected


def some_file(folder: Path, rows: int = 100) -> tuple[TableFiles, FileFact]:
    """A file of longs 0, 2, 4, ... in no order."""
    files = files_of(folder, schema_of(("id", LongType())))
    ids = random.Random(rows).sample(range(0, 2 * rows, 2), rows)
    content = foreign_bytes(with_ids(pa.table({"id": pa.array(ids, pa.int64())})), row_group_size=30)
    return files, stored(folder, content, rows)


def codes_of(numbers: Sequence[int]) -> Codes:
    """Codes of longs."""
    return Codes(np.array(sorted(numbers), np.int64).view(np.uint64) ^ np.uint64(1 << 63))


def test_row_ids_that_a_file_does_not_store_are_computed(tmp_path: Path) -> None:
    """They follow from the first row id and the position, and take a few bytes for all rows."""
    files, file = some_file(tmp_path)
    by_map = maps_in(tmp_path, files, [1])
    for first in (5, 5, 1_000):
        ids = by_map.row_ids(replace(file, first_row_id=first), np.array([0, 7, 99]))
        assert ids.tolist() == [first, first + 7, first + 99]
    assert all(each.stat().st_size < 300 for each in map_files(tmp_path))


def test_a_map_takes_12_bytes_a_key(tmp_path: Path) -> None:
    """Codes of longs and positions, and little more for the whole file."""
    files, file = some_file(tmp_path, 10_000)
    by_map = maps_in(tmp_path, files, [1])
    by_map.find(file, codes_of([2]))
    (only,) = map_files(tmp_path)
    assert 120_000 < only.stat().st_size < 120_500


def test_what_a_map_was_made_of_counts(tmp_path: Path) -> None:
    """Another size or number of the file, key, type, secret or name mapping has a map of its own."""
    files, file = some_file(tmp_path)
    codes = codes_of([0, 3, 10])
    index = IndexFolder(tmp_path / "maps", LARGE)
    two = files_of(tmp_path, schema_of(("id", LongType()), ("other", LongType())))
    longer = files_of(tmp_path, schema_of(("id", LongType())), **{"schema.name-mapping.default": "[]"})
    for count, (made, of) in enumerate(
        [
            (KeyMaps.of(files, [1], b"secret", index), file),
            (KeyMaps.of(files, [1], b"secret", index), replace(file, file_sequence_number=2)),
            (KeyMaps.of(files, [1], b"other", index), file),
            (KeyMaps.of(two, [1, 2], b"secret", index), file),
            (KeyMaps.of(longer, [1], b"secret", index), file),
        ],
        1,
    ):
        found = made.find(of, codes)
        assert found.positions.tolist() == made.scan.find(of, codes).positions.tolist()
        assert len(map_files(tmp_path)) == count


def _changed(path: Path) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    others = [each for each in path.parent.glob("*.arrays") if each != path]
    path.write_bytes(others[0].read_bytes() if others else b"\x80pickle")


LOSSES = [_changed, _cut, _emptied, _foreign, Path.unlink]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("which", ["*.arrays", "secret", "lock"])
@pytest.mark.parametrize("is_new_process", [False, True])
def test_losses_cost_time_only(
    tmp_path: Path, loss: Callable[[Path], object], which: str, is_new_process: bool
) -> None:
    """Damaged, cut off, emptied, exchanged or missing files change no result, and are replaced."""
    files, first = some_file(tmp_path)
    _, second = some_file(tmp_path, 101)
    codes = codes_of(range(0, 60, 3))
    index = IndexFolder(tmp_path / "maps", LARGE)

    def results(folder: IndexFolder) -> list[list[int]]:
        by_map = KeyMaps.of(files, [1], folder.begin_batch(), folder)
        hits = [by_map.find(each, codes) for each in (first, second)]
        row_ids = by_map.row_ids(replace(first, first_row_id=5), hits[0].positions)
        return [*(each.tolist() for some in hits for each in some), row_ids.tolist()]

    expected = results(index)
    assert expected == results(index)
    assert expected[4] == [5 + at for at in expected[0]]
    for path in sorted((tmp_path / "maps").glob(which)):
        loss(path)
    if is_new_process:
        index = IndexFolder(tmp_path / "maps", LARGE)
    assert expected == results(index) == results(index)


def test_a_lost_directory_costs_time_only(tmp_path: Path) -> None:
    """It is made again by the process that uses it."""
    files, file = some_file(tmp_path)
    by_map = maps_in(tmp_path, files, [1])
    expected = by_map.find(file, codes_of([4, 8])).positions.tolist()
    for each in (tmp_path / "maps").iterdir():
        each.unlink()
    (tmp_path / "maps").rmdir()
    assert by_map.find(file, codes_of([4, 8])).positions.tolist() == expected
    assert len(map_files(tmp_path)) == 1


def test_a_damaged_data_file_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The error is that of a scan, and no part of a map stays."""
    files, file = some_file(tmp_path)
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:50])
    by_map = maps_in(tmp_path, files, [1])
    with pytest.raises(Exception) as by_scan:
        by_map.scan.find(file, codes_of([4]))
    with pytest.raises(type(by_scan.value)):
        by_map.find(file, codes_of([4]))
    assert [each.name for each in (tmp_path / "maps").iterdir() if each.name not in ("lock", "secret")] == []


def test_maps_of_one_table_are_shared(tmp_path: Path) -> None:
    """All callers of a process have one object for a table and a directory, and one for each other table."""
    settings = MapSettings(str(tmp_path))
    assert index_folder(settings, "u") is index_folder(settings, "u")
    assert index_folder(settings, "u") is not index_folder(settings, "v")


def test_threads_share_a_small_bound(tmp_path: Path) -> None:
    """Files are found whether their maps are there, are made, or make room, and the bound holds."""
    files = files_of(tmp_path, schema_of(("id", LongType())))
    facts = [some_file(tmp_path, rows)[1] for rows in range(100, 130)]
    by_map = maps_in(tmp_path, files, [1], 10_000)
    codes = codes_of(range(0, 200, 3))
    expected = [by_map.scan.find(file, codes).positions.tolist() for file in facts]
    for number in range(6):
        by_map.folder.begin()
        some = list(zip(facts, expected, strict=True))[:: 1 + number % 3]
        found = concurrently(lambda pair: by_map.find(pair[0], codes).positions.tolist(), some, 4)
        assert list(found) == [positions for _, positions in some]
        assert 0 < sum(each.stat().st_size for each in map_files(tmp_path)) <= 10_000


def test_a_default_bound_is_taken_from_the_disk(tmp_path: Path) -> None:
    """Without a bound, maps are kept."""
    files, file = some_file(tmp_path)
    maps_in(tmp_path, files, [1], None).find(file, codes_of([4]))
    assert len(map_files(tmp_path)) == 1


def test_codes_with_one_upper_half_are_told_apart(tmp_path: Path) -> None:
    """Codes of 128 bits are compared as a whole, also several times in one file."""
    rows = [(7, 1), (7, 2), (7, 1), (8, 1), (7, 3)]
    high, low = (np.array(each, np.uint64) for each in zip(*rows, strict=True))
    batch = Codes(np.array([7, 7, 7, 9], np.uint64), np.array([1, 3, 4, 1], np.uint64))
    order = np.argsort(high, kind="stable")
    part = (high[order], low[order], order.astype(np.uint32))
    found = maps.hits_in(part, batch)
    pairs = sorted(zip(found.positions.tolist(), found.places.tolist(), strict=True))
    assert pairs == [(0, 0), (2, 0), (4, 1)]


@examples(200)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9)), st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 9)))
def test_all_pairs_of_equal_codes_are_found(rows: list[int], wanted: set[int]) -> None:
    """Whether the file or the batch has more keys, also if the file repeats some."""
    high = np.sort(np.array(rows, np.uint64))
    batch = Codes(np.array(sorted(wanted), np.uint64))
    found = maps.hits_in((high, np.arange(len(high), dtype=np.uint32)), batch)
    pairs = sorted(zip(found.positions.tolist(), found.places.tolist(), strict=True))
    both = itertools.product(enumerate(high.tolist()), enumerate(batch.high.tolist()))
    assert pairs == sorted((row, place) for (row, one), (place, other) in both if one == other)
