"""How far streaming queries have read, from checkpoint folders as Spark and Iceberg write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from icesize.errors import TableError
from icesize.table.cleanup.checkpoints import NOTHING_READ, read_checkpoint

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def offset(snapshot: int, position: int = 1, scan_all_files: str = "false") -> str:
    return f'{{"version":1,"snapshot_id":{snapshot},"position":{position},"scan_all_files":{scan_all_files}}}'


def put(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    (path.parent / f".{path.name}.crc").write_bytes(b"crc\x00")


def batch(folder: Path, number: int, *offsets: str, committed: bool = True) -> None:
    put(folder, f"offsets/{number}", "v1", METADATA, *offsets)
    if committed:
        put(folder, f"commits/{number}", "v1", '{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The folder of a query that began at snapshot 100 and has had no batch."""
    folder = tmp_path / "checkpoint"
    put(folder, "metadata", '{"id":"4f2c"}')
    put(folder, "sources/0/offsets/0", offset(100, 0))
    (folder / "commits").mkdir()
    return folder


def test_the_newest_committed_batch_counts(checkpoint: Path) -> None:
    """Batches go by number, not by text, and what was read before is needed no more."""
    for number in range(8, 12):
        batch(checkpoint, number, offset(1000 + number))
    assert read_checkpoint(str(checkpoint)).positions == (1011,)


def test_a_batch_that_was_begun_is_repeated(checkpoint: Path) -> None:
    """Both ends of an uncommitted batch are needed: it is read again from the first to the second."""
    batch(checkpoint, 0, offset(101))
    batch(checkpoint, 1, offset(102), committed=False)
    assert read_checkpoint(str(checkpoint)).positions == (101, 102)


def test_without_a_commit_the_beginning_counts(checkpoint: Path) -> None:
    """The first batch starts where the source began, which only its own file tells."""
    batch(checkpoint, 0, offset(101), committed=False)
    assert read_checkpoint(str(checkpoint)).positions == (100, 101)


def test_a_query_without_batches_needs_its_beginning(checkpoint: Path) -> None:
    """Started and stopped before any batch: what comes after its beginning is unread."""
    assert read_checkpoint(str(checkpoint)).positions == (100,)


@pytest.mark.parametrize("text", [offset(100, 3), offset(100, 0, "true"), offset(100, -1)])
def test_a_snapshot_that_is_read_in_part_is_needed(checkpoint: Path, text: str) -> None:
    """However far a snapshot was read, its id is looked up at the next start."""
    batch(checkpoint, 0, text)
    assert read_checkpoint(str(checkpoint)).positions == (100,)


def test_a_beginning_on_an_empty_table_needs_everything(checkpoint: Path) -> None:
    """Iceberg writes -1 for a table without snapshots: the query will start at the oldest one."""
    put(checkpoint, "sources/0/offsets/0", offset(-1, -1))
    assert read_checkpoint(str(checkpoint)).positions == (NOTHING_READ,)
    batch(checkpoint, 0, offset(-1, -1))
    assert read_checkpoint(str(checkpoint)).positions == (NOTHING_READ,)


def test_each_iceberg_source_counts_and_no_other(checkpoint: Path) -> None:
    """Offsets of Kafka, files, rates and sockets are passed over; the order of sources is kept."""
    kafka = '{"events":{"0":42,"1":43}}'
    batch(checkpoint, 0, kafka, offset(7), '{"logOffset":3}', "12", offset(5), offset(7))
    assert read_checkpoint(str(checkpoint)).positions == (7, 5)


def test_a_query_without_iceberg_has_no_positions(checkpoint: Path) -> None:
    """A reader of Kafka alone needs no snapshot, wherever its sources keep what they began with."""
    put(checkpoint, "sources/0/offsets/0", "not JSON at all")
    batch(checkpoint, 0, '{"events":{"0":42}}')
    assert read_checkpoint(str(checkpoint)).positions == ()


def test_a_source_that_had_nothing_needs_its_beginning(checkpoint: Path) -> None:
    """A dash stands for a source that no batch has read yet; one without a file has not begun."""
    put(checkpoint, "sources/1/offsets/0", offset(55, 0))
    batch(checkpoint, 0, offset(101), "-", "-")
    assert read_checkpoint(str(checkpoint)).positions == (101, 55)


def test_named_sources(checkpoint: Path) -> None:
    """Version 2 of the log, of Spark 4.1 on, has the name of the source before each offset."""
    put(checkpoint, "sources/late/offsets/0", offset(66, 0))
    put(checkpoint, "offsets/0", "v2", METADATA, f"0:{offset(101)}", "late:-")
    put(checkpoint, "commits/0", "v1", "{}")
    assert read_checkpoint(str(checkpoint)).positions == (101, 66)


def test_where_queries_began(checkpoint: Path) -> None:
    """What AvailableNow asks for at every start is told apart: it is no position once a batch is committed."""
    put(checkpoint, "sources/1/offsets/0", offset(55, 0))
    batch(checkpoint, 0, offset(101), offset(102))
    assert read_checkpoint(str(checkpoint)).positions == (101, 102)
    assert read_checkpoint(str(checkpoint)).beginnings == (100, 55)


def test_locations_are_uris_too(checkpoint: Path) -> None:
    """The folder is given as Spark is given it."""
    batch(checkpoint, 0, offset(101))
    spellings = [str(checkpoint), f"{checkpoint}/", f"file://{checkpoint}", f"file:{checkpoint}"]
    assert [read_checkpoint(each).positions for each in spellings] == [(101,)] * 4


@pytest.mark.parametrize("files", [{}, {"offsets.txt": "v1"}, {"data/part-0.parquet": "PAR1"}, {"0/offsets/0": "v1"}])
def test_other_folders_are_refused(tmp_path: Path, files: dict[str, str]) -> None:
    """What is no checkpoint, or holds several, is said to be none rather than taken for one without positions."""
    folder = tmp_path / "x"
    for name, text in files.items():
        put(folder, name, text)
    with pytest.raises(TableError) as refused:
        read_checkpoint(str(folder))
    assert str(refused.value) == (
        f"Cannot read the checkpoint {folder}: it has no 'offsets' and no 'metadata'; expected the checkpoint folder "
        "of a Spark streaming query, with 'offsets' and 'commits' in it"
    )
    assert refused.value.path == str(folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "offsets/3 is cut off: it has no offset"),
        (f"v1\n{METADATA}", "offsets/3 is cut off: it has no offset"),
        ("v9\n{}\n{}", "offsets/3 begins with 'v9' and not with 'v1' or 'v2'"),
        ('v1\n{}\n{"version":1,"snap', """offsets/3 is damaged: '{"version":1,"snap' is cut off or no JSON"""),
        (
            'v1\n{}\n{"version":2,"snapshot_id":5}',
            """offsets/3 has an Iceberg offset of an unknown version: '{"version":2,"snapshot_id":5}'""",
        ),
    ],
)
def test_damaged_offsets_are_refused(checkpoint: Path, text: str, why: str) -> None:
    """A position that cannot be read is an error: guessing would let rows of a reader be deleted."""
    put(checkpoint, "offsets/3", text)
    put(checkpoint, "commits/3", "v1", "{}")
    with pytest.raises(TableError, match="Cannot read the checkpoint") as refused:
        read_checkpoint(str(checkpoint))
    assert why in str(refused.value)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """What storage says about it is passed on in the sentence."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match=r"NotADirectoryError: .* expected the checkpoint folder"):
        read_checkpoint(str(tmp_path / "file"))


def test_an_unknown_scheme_is_refused() -> None:
    """A filesystem that nobody here can reach is an error of the argument, said in a sentence."""
    with pytest.raises(TableError, match="Cannot read the checkpoint ftp://host/x: "):
        read_checkpoint("ftp://host/x")
