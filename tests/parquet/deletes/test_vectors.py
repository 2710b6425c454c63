"""Deletion vectors: exactly their rows are deleted, in place of those of position deletes, and damage is refused. What
icesize writes is what Iceberg writes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType
from pyroaring import BitMap, BitMap64

import icesize
from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.deletes.vectors import write_vectors
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import DeleteFile, FileFact
from tests.support.examples import examples
from tests.support.parquet_files import local, schema_of, settings_of
from tests.support.unit_deletes import UNPARTITIONED, data_file, position_deletes
from tests.support.unit_vectors import framed, stored, vector, vectors_in

SCHEMA = schema_of(("id", LongType()))
MOST = 2**32 - 1
FROM_ICEBERG = Path(__file__).parents[2] / "fixtures/vectors/iceberg-1.11.puffin"
"""Written by Spark's DELETE with Iceberg 1.11 in a table of 200,000 and of 100 rows, whose ids are their numbers:
`id BETWEEN 1000 AND 80000 OR id % 5000 = 7 OR id > 200090 OR id = 200005`."""


def settings_in(folder: Path) -> WriteSettings:
    """Settings of a table."""
    return settings_of(folder, SCHEMA)


def found(inputs: Iterable[FileFact], folder: Path) -> dict[str, set[int]]:
    """The deleted rows of the inputs, by path."""
    rows = deleted_rows([*inputs], settings_in(folder), UNPARTITIONED)
    assert rows.equality_number == 0
    return {path: set(positions) for path, positions in rows.positions.items()}


def from_iceberg() -> tuple[list[DeleteFile], list[set[int]], list[int]]:
    """The vectors of Iceberg's file by its footer, the rows that they delete, and those of their data files."""
    data = FROM_ICEBERG.read_bytes()
    size = int.from_bytes(data[-12:-8], "little")
    deletes = [
        DeleteFile(
            str(FROM_ICEBERG), len(data), int(blob["properties"]["cardinality"]), UNPARTITIONED, 1, "PUFFIN",
            referenced_path=blob["properties"]["referenced-data-file"],
            content_offset=blob["offset"], content_size_bytes=blob["length"],
        )
        for blob in json.loads(data[-12 - size : -12])["blobs"]
    ]  # fmt: skip
    ids = [i for i in range(200_100) if 1000 <= i <= 80000 or i % 5000 == 7 or i > 200_090 or i == 200_005]
    deleted = [{i for i in ids if i < 200_000}, {i - 200_000 for i in ids if i >= 200_000}]
    return deletes, deleted, [200_000, 100]


def test_vectors_of_iceberg(tmp_path: Path) -> None:
    """Two vectors of one Puffin file, with runs and single rows."""
    deletes, deleted, rows = from_iceberg()
    paths = [delete.referenced_path or "" for delete in deletes]
    inputs = [data_file(path, count, deletes) for path, count in zip(paths, rows, strict=True)]
    assert found(inputs, tmp_path) == dict(zip(paths, deleted, strict=True))


POSITIONS = st.one_of(
    st.sets(st.integers(0, 20), min_size=1),
    st.sets(st.integers(0, MOST), min_size=1, max_size=5),
    st.builds(lambda start, step: set(range(start, start + 70_000, step)), st.integers(0, 10**9), st.integers(1, 40)),
)


@examples(500)
@given(st.lists(POSITIONS, min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 100_000]))
def test_exactly_the_rows_of_the_vector_are_deleted(
    rows: list[set[int]], number: int, of_data: int, gap_bytes: int
) -> None:
    """Of data files up to its own number; whatever containers its bitmap has, and wherever it lies in its file."""
    with tempfile.TemporaryDirectory() as name:
        positions = {f"file:/t/{i}": some for i, some in enumerate(rows)}
        deletes = vectors_in(Path(name) / "v.puffin", positions, number, gap_bytes)
        inputs = [data_file(f"/t/{i}", 2**32, deletes, of_data) for i in range(len(rows) + 1)]
        expected = {f"/t/{i}": some for i, some in enumerate(rows)} if of_data <= number else {}
        assert found(inputs, Path(name)) == expected


def test_position_deletes_are_ignored_for_a_file_with_a_vector(tmp_path: Path) -> None:
    """The vector has all deleted positions of its file; other files, and those that it is too old for, keep theirs."""
    positions = position_deletes(tmp_path, "d.parquet", [("/t/a", 1), ("/t/b", 2), ("/t/c", 3)], 9)
    vectors = vectors_in(tmp_path / "v.puffin", {"/t/a": [5], "/t/c": [6]}, 4)
    deletes = [positions, *vectors]
    inputs = [data_file("/t/a", 9, deletes, 4), data_file("/t/b", 9, deletes, 4), data_file("/t/c", 9, deletes, 5)]
    assert found(inputs, tmp_path) == {"/t/a": {5}, "/t/b": {2}, "/t/c": {3}}


def test_ignored_position_deletes_name_their_files(tmp_path: Path) -> None:
    """A merge removes them if it replaces all of these files, each of which has got a vector (upgraded to v3)."""
    positions = position_deletes(tmp_path, "d.parquet", [("/t/a", 1), ("/t/b", 2)], 9)
    # one that names a single file by its entry is not needed, and not read
    alone = replace(positions, path=str(tmp_path / "missing.parquet"), referenced_path="/t/a")
    deletes = [positions, alone, *vectors_in(tmp_path / "v.puffin", {"/t/a": [5], "/t/b": [6]}, 12)]
    inputs = [data_file("/t/a", 9, deletes, 4), data_file("/t/b", 9, deletes, 4)]
    rows = deleted_rows(inputs, settings_in(tmp_path), UNPARTITIONED)
    assert rows.positions == {"/t/a": BitMap([5]), "/t/b": BitMap([6])}
    assert rows.named == {positions.path: frozenset({"/t/a", "/t/b"})}


@pytest.mark.parametrize(("gap_bytes", "reads"), [(0, 1), (2**17, 3)])
def test_near_vectors_are_read_together_and_no_others(tmp_path: Path, gap_bytes: int, reads: int) -> None:
    """Of a file with a hundred vectors, three are needed: one request if they are near, and three if not."""
    deletes = vectors_in(tmp_path / "v.puffin", {f"/t/{i}": [i] for i in range(100)}, gap_bytes=gap_bytes)
    settings, sizes = settings_in(tmp_path), list[int]()
    stream_of = settings.storage.stream

    class Counted:
        """A stream that notes how much is read of it at once."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def read(self, size_bytes: int) -> bytes:
            sizes.append(size_bytes)
            return bytes(self._stream.read(size_bytes))

    settings.storage.__dict__["stream"] = lambda path: Counted(stream_of(path))
    inputs = [data_file(f"/t/{i}", 100, deletes) for i in (10, 11, 12)]
    rows = deleted_rows(inputs, settings, UNPARTITIONED)
    assert (rows.rows, len(sizes)) == (3, reads)
    assert sum(sizes) == sum(delete.content_size_bytes or 0 for delete in deletes[10:13])


def refused(folder: Path, deletes: list[DeleteFile], rows: int = 100) -> str:
    """Why a vector of `/t/a` cannot be applied, without its path."""
    with pytest.raises(RewriteFailed) as caught:
        deleted_rows([data_file("/t/a", rows, deletes)], settings_in(folder), UNPARTITIONED)
    assert caught.value.path == deletes[-1].path
    return str(caught.value).removeprefix(f"Cannot apply the deletes in {deletes[-1].path}: ")


@examples(200)
@given(st.data(), st.sampled_from([[3], range(50), [*range(0, 90, 2), 95]]))
def test_no_damage_goes_unnoticed(data: st.DataObject, positions: Iterable[int]) -> None:
    """Whatever byte of a vector is another one, its rows are not the ones that are deleted, but an error."""
    bitmap = BitMap(positions)
    bitmap.run_optimize()
    blob = bytearray(framed((1).to_bytes(8, "little") + bytes(4) + bitmap.serialize()))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as name:
        deletes = stored(Path(name) / "v.puffin", {"/t/a": (bytes(blob), len(bitmap))})
        assert refused(Path(name), deletes).startswith("the ")


@pytest.mark.parametrize(
    ("blob", "rows", "why"),
    [
        (vector([1, 2]), 3, "its deletion vector has 2 rows, its manifest records 3, check the table's metadata"),
        (vector([1, 100]), 2, "it deletes row 100 of /t/a, which has 100 rows"),
        (vector([1, 2**32 + 7]), 2, f"it deletes row {2**32 + 7} of /t/a, which has 100 rows"),
        (framed(BitMap64([1]).serialize(), b"PFA1"), 1, "it has no deletion vector at that place, check the table's "
         "metadata"),
        (b"\0\0", 1, "the length of its deletion vector is wrong, check that the file is whole"),
        (vector([1])[:-1], 1, "the length of its deletion vector is wrong, check that the file is whole"),
        (framed(b""), 1, "its deletion vector is no bitmap: Out of bounds on buffer access (axis 0)"),
    ],
)  # fmt: skip
def test_what_does_not_fit(tmp_path: Path, blob: bytes, rows: int, why: str) -> None:
    """Another number of rows than the manifest says, rows that the data file does not have, other bytes."""
    assert refused(tmp_path, stored(tmp_path / "v.puffin", {"/t/a": (blob, rows)})) == why


def test_rows_of_files_that_are_too_large(tmp_path: Path) -> None:
    """Positions beyond 2**32 are refused, also if the data file has that many rows; an empty upper half is none."""
    deletes = vectors_in(tmp_path / "v.puffin", {"/t/a": [2**32]})
    assert refused(tmp_path, deletes, 2**33) == f"it deletes row {2**32} of /t/a, which has {2**33} rows"
    low, empty = BitMap([7]).serialize(), BitMap().serialize()
    bitmap = b"".join([(2).to_bytes(8, "little"), bytes(4), low, (1).to_bytes(4, "little"), empty])
    deletes = stored(tmp_path / "w.puffin", {"/t/a": (framed(bitmap), 1)})
    assert found([data_file("/t/a", 9, deletes)], tmp_path) == {"/t/a": {7}}


def test_a_vector_outside_of_its_file(tmp_path: Path) -> None:
    """Its place is wrong, or the file was cut or is gone."""
    [delete] = vectors_in(tmp_path / "v.puffin", {"/t/a": [1]})
    size = delete.size_bytes
    for offset in (size, -1):
        assert refused(tmp_path, [replace(delete, content_offset=offset)]) == (
            f"it has {size} bytes, a deletion vector of {delete.content_size_bytes} bytes begins at {offset}, check "
            "that the file is whole"
        )
    Path(delete.path).write_bytes(Path(delete.path).read_bytes()[:-1])
    assert refused(tmp_path, [delete]).startswith(f"it has {size - 1} bytes, ")
    Path(delete.path).unlink()
    assert "No such file or directory" in refused(tmp_path, [delete])


def test_two_vectors_of_one_file(tmp_path: Path) -> None:
    """Nobody knows which one holds: Iceberg's readers refuse the table."""
    deletes = [vectors_in(tmp_path / f"{i}.puffin", {"/t/a": [i]})[0] for i in (1, 2)]
    assert refused(tmp_path, deletes) == "/t/a has another deletion vector, check the table's metadata"


def new_files(folder: Path) -> NewFiles:
    """The files of a new table."""
    return NewFiles(settings_in(folder), FileNames("run", 0, 0))


@examples(300)
@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_what_is_written_is_read(rows: list[set[int]]) -> None:
    """By icesize and by PyIceberg, which finds the vectors by the footer; both find them at the same places."""
    with tempfile.TemporaryDirectory() as name:
        files = [data_file(f"/t/{i}", 2**32, ()) for i in range(len(rows))]
        vectors = write_vectors(
            new_files(Path(name)), UNPARTITIONED, {f: BitMap(some) for f, some in zip(files, rows, strict=True)}, 5
        )
        data = Path(local(vectors[0].path)).read_bytes()
        deletes = [
            DeleteFile(
                each.path, each.size_bytes, each.rows, each.partition, each.sequence_number or 0, "PUFFIN",
                referenced_path=each.deletes_of, content_offset=each.content_offset,
                content_size_bytes=each.content_size_bytes,
            )
            for each in vectors
        ]  # fmt: skip
        inputs = [data_file(file.path, file.rows, deletes, 5) for file in files]
        assert found(inputs, Path(name)) == {file.path: some for file, some in zip(files, rows, strict=True)}
    puffin = PuffinFile(data)
    assert [(b.offset, b.length) for b in puffin.footer.blobs] == [
        (each.content_offset, each.content_size_bytes) for each in vectors
    ]
    if sum(map(len, rows)) < 1_000:  # PyIceberg needs a second for a million
        read = {each.referenced_data_file: set(each.to_vector().to_pylist())
                for each in deletion_vectors_from_puffin_file(puffin)}  # fmt: skip
        assert read == {file.path: some for file, some in zip(files, rows, strict=True)}
    assert {(each.size_bytes, each.path.rpartition(".")[2]) for each in vectors} == {(len(data), "puffin")}
    assert [each.rows for each in vectors] == [len(some) for some in rows]


def test_the_same_bytes_as_icebergs(tmp_path: Path) -> None:
    """For the same rows of the same files, all but the name of the writer."""
    deletes, deleted, _ = from_iceberg()
    rows = {
        data_file(delete.referenced_path or "", 10**6, ()): BitMap(some)
        for delete, some in zip(deletes, deleted, strict=True)
    }
    [vector, _] = write_vectors(new_files(tmp_path), UNPARTITIONED, rows, 1)
    mine, theirs = Path(local(vector.path)).read_bytes(), FROM_ICEBERG.read_bytes()
    start, end = deletes[-1].content_offset or 0, b'"created-by":'
    assert mine[:start] == theirs[:start]
    assert mine.partition(end)[0] == theirs.partition(end)[0]
    assert mine[-8:] == theirs[-8:]
    assert PuffinFile(mine).footer.properties == {"created-by": f"icesize version {icesize.__version__}"}


def test_a_file_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    """Storage does not hold all bytes: nothing stays."""
    files = new_files(tmp_path)
    files.settings.storage.__dict__["size"] = lambda location: 7
    with pytest.raises(RewriteFailed, match="storage holds 7 bytes of"), files.all_or_none():
        write_vectors(files, UNPARTITIONED, {data_file("/t/a", 9, ()): BitMap([1])}, 1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
