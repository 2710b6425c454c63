"""Deletes that become vectors in format v3: of which rows, in which file, and what goes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.deletes.position_files import write_position_deletes
from icesize.parquet.files.data_file import NewDeleteFile, RewrittenDeletes
from icesize.parquet.files.names import FileNames
from icesize.planning.deletes.delete_plan import DeleteRewrite
from icesize.planning.files import DeleteFile, FileFact
from icesize.table.commit.steps.rewrite_deletes import DELETED, TAKEN, replaceable
from tests.support.parquet_files import local, schema_of, settings_of, write_one
from tests.support.unit_deletes import (
    UNPARTITIONED,
    data_file,
    delete_file,
    field,
    position_deletes,
    written,
)
from tests.support.unit_vectors import vectors_in

SCHEMA = schema_of(("id", LongType()))


def rewritten(folder: Path, files: Sequence[FileFact]) -> RewrittenDeletes:
    """The deletes of all the files, in a table of format v3."""
    settings = replace(settings_of(folder, SCHEMA), format_version=3)
    return write_position_deletes(
        DeleteRewrite(UNPARTITIONED, "", (*files,), (*files,)), settings, FileNames("run", 0, 0)
    )


def as_listed(file: NewDeleteFile) -> DeleteFile:
    """The vector as the manifests of its commit have it."""
    return DeleteFile(
        file.path, file.size_bytes, file.rows, file.partition, file.sequence_number or 0, "PUFFIN",
        referenced_path=file.deletes_of, content_offset=file.content_offset, content_size_bytes=file.content_size_bytes,
    )  # fmt: skip


def test_all_kinds_become_one_vector_for_each_file(tmp_path: Path) -> None:
    """Position deletes, keys, and an older vector, which has what was deleted by position before; all of them go. The
    vectors lie in one Puffin file, have the greatest number, and delete the same rows."""
    settings = settings_of(tmp_path, SCHEMA)
    a, b, c = (
        write_one(settings, pa.table({"id": pa.array(range(start, start + 50), pa.int64())})) for start in (0, 50, 100)
    )
    keys = pa.table({"id": pa.array([7, 60, 999], pa.int64())}, schema=pa.schema([field(1, "id", pa.int64())]))
    deletes = [
        position_deletes(tmp_path, "p.parquet", [(a.path, 3), (b.path, 4)], 2),
        delete_file(*written(tmp_path, "e.parquet", keys), 3, 4, [1]),
        *vectors_in(tmp_path / "v.puffin", {a.path: [3, 5]}, 3),
    ]
    files = [data_file(file.path, 50, deletes, 1, file.size_bytes) for file in (a, b, c)]
    before = deleted_rows(files, settings, UNPARTITIONED)
    result = rewritten(tmp_path, files)
    assert {path: list(rows) for path, rows in before.positions.items()} == {a.path: [3, 5, 7], b.path: [4, 10]}
    assert ({each.id for each in result.replaced}, result.covered) == ({each.id for each in deletes}, (*files,))
    assert [(each.deletes_of, each.rows, each.sequence_number) for each in result.files] == [
        (a.path, 3, 4), (b.path, 2, 4)
    ]  # fmt: skip
    assert len({each.path for each in result.files}) == 1
    after = [replace(file, deletes=tuple(map(as_listed, result.files))) for file in files]
    assert deleted_rows(after, settings, UNPARTITIONED).positions == before.positions


def test_no_file_without_rows(tmp_path: Path) -> None:
    """Keys that no row has go without anything in their place."""
    file = write_one(settings_of(tmp_path, SCHEMA), pa.table({"id": pa.array([1], pa.int64())}))
    keys = pa.table({"id": pa.array([7], pa.int64())}, schema=pa.schema([field(1, "id", pa.int64())]))
    delete = delete_file(*written(tmp_path, "e.parquet", keys), 1, 4, [1])
    result = rewritten(tmp_path, [data_file(file.path, 1, [delete], 1, file.size_bytes)])
    assert (result.files, result.replaced) == ((), (delete,))
    assert {path.name for path in tmp_path.rglob("*.*")} == {Path(local(file.path)).name, "e.parquet"}


def test_vectors_that_share_a_file_are_told_apart(tmp_path: Path) -> None:
    """A file whose own vector nobody writes again keeps it, although the Puffin file is that of one that goes. Position
    deletes of both go, because they are ignored beside a vector."""
    shared = vectors_in(tmp_path / "v.puffin", {"/t/a": [1], "/t/b": [2]}, 3)
    positions = position_deletes(tmp_path, "p.parquet", [("/t/a", 1)], 2)
    a, b = (data_file(path, 9, [*shared, positions], 1) for path in ("/t/a", "/t/b"))
    result = rewritten(tmp_path, [a])
    assert {each.id for each in result.replaced} == {shared[0].id, positions.id}
    [kept], lost = replaceable([result], (), [*shared, positions], [a, b])
    assert ({each.id for each in kept.replaced}, lost) == ({shared[0].id, positions.id}, {})


@pytest.mark.parametrize("kind", ["vector", "position", "equality", "other", "moved"])
def test_deletes_of_others_in_between(tmp_path: Path, kind: str) -> None:
    """A vector would hide a position delete, and be the second one beside another vector: the partition stays as it is.
    Keys, and deletes of other files, hold as before."""
    known = [
        position_deletes(tmp_path, "p.parquet", [("/t/a", 1), ("/t/b", 1)], 2),
        *vectors_in(tmp_path / "v.puffin", {"/t/a": [1, 2]}, 3),
    ]
    a, b = (data_file(path, 9, known, 1) for path in ("/t/a", "/t/b"))
    result = rewritten(tmp_path, [a, b])
    new = {
        "vector": vectors_in(tmp_path / "w.puffin", {"/t/b": [4]}, 5),
        "position": [position_deletes(tmp_path, "q.parquet", [("/t/b", 4)], 5)],
        "equality": [delete_file("e.parquet", 1, 1, 5, [1])],
        "other": vectors_in(tmp_path / "x.puffin", {"/t/c": [4]}, 5),
        "moved": vectors_in(tmp_path / "y.puffin", {"/t/a": [1, 2, 3]}, 5),
    }[kind]
    listed = [*(known[:1] if kind == "moved" else known), *new]
    kept, lost = replaceable([result], (), listed, [a, b])
    refusal = {"vector": DELETED, "position": DELETED, "moved": TAKEN}.get(kind)
    assert lost == ({UNPARTITIONED: refusal} if refusal else {})
    assert [len(each.files) for each in kept] == ([] if refusal else [2])
