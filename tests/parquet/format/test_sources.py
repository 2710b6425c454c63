"""Bytes of files on disk and in memory: what lies in the file is read, what does not is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import (
    JOIN_GAP_BYTES,
    MOST_JOINED_BYTES,
    BytesSource,
    LocalSource,
    SectionSource,
    Source,
    read_ranges,
)

_DATA = bytes(i * 7 % 251 for i in range(5_000))


@pytest.fixture(params=["memory", "view", "disk", "section"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """The same file in different places."""
    (tmp_path / "file").write_bytes(_DATA)
    (tmp_path / "outer").write_bytes(b"before" + _DATA + b"behind")
    with (tmp_path / "outer").open("rb") as outer:
        yield {
            "memory": BytesSource(_DATA),
            "view": BytesSource(memoryview(bytearray(_DATA))),
            "disk": LocalSource(str(tmp_path / "file")),
            "section": SectionSource(outer.fileno(), len(b"before"), len(_DATA)),
        }[request.param]


def test_a_source_gives_its_bytes(source: Source) -> None:
    """At any place, as new bytes, into memory that is there, and as a stream."""
    target = bytearray(100)
    source.read_into(4_900, memoryview(target))
    assert (source.size_bytes, bytes(target)) == (len(_DATA), _DATA[4_900:])
    assert (source.read(0, 5_000), source.read(17, 3), source.read(5_000, 0)) == (_DATA, _DATA[17:20], b"")
    with source.stream() as stream:
        assert stream.read() == _DATA


@pytest.mark.parametrize(("at", "size_bytes"), [(4_999, 2), (5_001, 0), (0, 5_001), (-1, 1), (10, -1), (0, 2**62)])
def test_what_is_not_in_the_file_is_refused(source: Source, at: int, size_bytes: int) -> None:
    """Before memory of the size that was asked for is taken."""
    with pytest.raises(CopyRefused, match=f"bytes {at}-{at + size_bytes} of a file of 5000") as refused:
        source.read(at, size_bytes)
    assert refused.value.code == Refusal.SHORT_READ


@pytest.mark.parametrize(("at", "size_bytes"), [(4_999, 2), (-1, 1)])
def test_memory_is_not_filled_in_part(source: Source, at: int, size_bytes: int) -> None:
    """Where the file ends too early nothing is read at all."""
    target = bytearray(size_bytes)
    with pytest.raises(CopyRefused) as refused:
        source.read_into(at, memoryview(target))
    assert (refused.value.code, bytes(target)) == (Refusal.SHORT_READ, bytes(size_bytes))


def _read(source: Source) -> None:
    source.read(1_000, 2_000)


def _read_into(source: Source) -> None:
    source.read_into(1_000, memoryview(bytearray(2_000)))


@pytest.mark.parametrize("read", [_read, _read_into])
def test_a_file_that_became_shorter_is_refused(tmp_path: Path, read: Callable[[Source], None]) -> None:
    """What it once had is not there any more."""
    path = tmp_path / "file"
    path.write_bytes(_DATA)
    source = LocalSource(str(path))
    path.write_bytes(_DATA[:1_500])
    with pytest.raises(CopyRefused, match="became shorter") as refused:
        read(source)
    assert refused.value.code == Refusal.SHORT_READ


def test_a_lost_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    """A file that is gone is no reason to decode it instead."""
    path = tmp_path / "file"
    path.write_bytes(_DATA)
    source = LocalSource(str(path))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        source.read(0, 1)


class _Counting(BytesSource):
    """Keeps what was asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[tuple[int, int]] = []

    def read(self, at: int, size_bytes: int) -> bytes:
        self.asked.append((at, size_bytes))
        return super().read(at, size_bytes)


_RANGES = st.sets(st.tuples(st.integers(0, 4_000), st.integers(0, 900)), max_size=20)


@given(_RANGES, st.integers(0, 500), st.integers(1, 2_000))
def test_ranges_are_read_together(ranges: set[tuple[int, int]], gap: int, most: int) -> None:
    """Each range has its bytes; near ones share a read, far ones do not, and no read is longer than allowed."""
    source = _Counting(_DATA)
    found = read_ranges(source, ranges, gap_bytes=gap, most_bytes=most)
    assert found == {(at, size): _DATA[at : at + size] for at, size in ranges}
    assert len(source.asked) <= len(ranges)
    for at, size in source.asked:
        assert size <= most or (at, size) in ranges
    if most == 2_000 and not any(b[0] - sum(a) > gap for a in ranges for b in ranges):
        assert len(source.asked) <= 3


def test_a_gap_is_read_and_thrown_away() -> None:
    """64 KiB between two ranges cost less than another request; a byte more does not."""
    source = _Counting(bytes(JOIN_GAP_BYTES + 30))
    assert len(read_ranges(source, {(0, 10), (10 + JOIN_GAP_BYTES, 5)})) == 2
    assert source.asked == [(0, JOIN_GAP_BYTES + 15)]
    read_ranges(source, {(0, 10), (11 + JOIN_GAP_BYTES, 5)})
    assert source.asked[1:] == [(0, 10), (11 + JOIN_GAP_BYTES, 5)]
    assert MOST_JOINED_BYTES > JOIN_GAP_BYTES
