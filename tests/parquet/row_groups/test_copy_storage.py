"""Merges that copy from and to remote storage: each file is fetched once, and nothing is left over if storage fails or
gives something else."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem
from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import Refusal
from icesize.parquet.format.sources import BytesSource, LocalSource, Source
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from tests.support.copying import (
    KEY,
    MERGED,
    PAGED_ROWS,
    SCHEMA,
    SMALL,
    TINY_ROWS,
    WHOLE_ROWS,
    bytes_of,
    content,
    files_of_table,
    indexes_swapped,
    stored,
    written,
)
from tests.support.footers import edited
from tests.support.object_store import keys
from tests.support.parquet_files import RemoteLike, fact, local, rows_decoded, settings_of, sources_of, with_limits


@dataclass
class Store:
    """What a store was asked for, in order, and how it fails."""

    events: list[tuple[str, str]] = field(default_factory=list)
    fail_write: int = 0
    """The number of the write that fails, counted over all outputs from 1 on."""
    fail_close: int = 0
    lasting: bool = False
    """Whether what failed once fails ever after."""
    size_error: int = 0
    """By how many bytes the size of an output is told wrong."""
    tail_damaged: bool = False
    lost: str = ""
    """A location that cannot be opened."""
    counts: dict[str, int] = field(default_factory=dict)

    def tell(self, event: str, location: str) -> None:
        self.events.append((event, Path(local(location)).name))

    def of(self, event: str) -> list[str]:
        """Names of the files it happened to."""
        return [name for kind, name in self.events if kind == event]

    def fails(self, event: str, number: int) -> None:
        """Count an event; the one of this number fails."""
        self.counts[event] = count = self.counts.get(event, 0) + 1
        if number and (count == number or (self.lasting and count > number)):
            raise OSError(f"{event} {count} failed")


class Watched(RemoteLike):
    """A FileIO that tells `store` what it is asked for, and fails as that says."""

    store: ClassVar[Store] = Store()

    def new_input(self, location: str) -> InputFile:
        return _Input(super().new_input(location), self.store)

    def new_output(self, location: str) -> OutputFile:
        return _Output(super().new_output(location), self.store)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.store.tell("delete", str(location))
        super().delete(location)


class _Input(InputFile):
    def __init__(self, file: InputFile, store: Store) -> None:
        super().__init__(file.location)
        self._file, self._store = file, store

    def __len__(self) -> int:
        return len(self._file) + self._store.size_error

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        self._store.tell("open", self.location)
        if Path(local(self.location)).name == self._store.lost:
            raise OSError("gone for now")
        stream = self._file.open(seekable)
        return _Reading(self.location, stream, self._store)


class _Reading(InputStream):
    """Tells each read with the number of bytes asked for."""

    def __init__(self, location: str, stream: InputStream, store: Store) -> None:
        self._location, self._stream, self._store = location, stream, store

    def read(self, size: int = -1) -> bytes:
        self._store.tell(f"read {size}", self._location)
        data = self._stream.read() if size < 0 else self._stream.read(size)
        is_ours = Path(local(self._location)).name.startswith(MERGED.prefix)
        return data[:-9] + b"?" + data[-8:] if self._store.tail_damaged and is_ours else data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._store.tell("closed", self._location)
        self._stream.close()

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Output(OutputFile):
    def __init__(self, file: OutputFile, store: Store) -> None:
        super().__init__(file.location)
        self._file, self._store = file, store

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def to_input_file(self) -> InputFile:
        return _Input(self._file.to_input_file(), self._store)

    def create(self, overwrite: bool = False) -> OutputStream:
        self._store.tell("create", self.location)
        return _Writing(self.location, self._file.create(overwrite), self._store)  # type: ignore[return-value]


class _Writing(io.RawIOBase):
    """Publishes what it has when it is closed, whole or not, as object stores' streams do."""

    def __init__(self, location: str, stream: OutputStream, store: Store) -> None:
        super().__init__()
        self._location, self._stream, self._store, self._written = location, stream, store, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._store.fails("write", self._store.fail_write)
        count = self._stream.write(data)
        self._written += len(data)
        return count

    def tell(self) -> int:
        return self._written

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._stream.close()
        self._store.tell("complete", self._location)
        self._store.fails("close", self._store.fail_close)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that works."""
    made = Store()
    monkeypatch.setattr(Watched, "store", made)
    return made


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files wait on the local disk."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    return folder


@pytest.fixture
def store_options(tmp_path: Path) -> WriteSettings:
    """Of a table in the watched store; its files are written beside."""
    watched = {"py-io-impl": f"{__name__}.Watched"}
    return replace(settings_of(tmp_path / "table", SCHEMA), io_properties=watched, limits=SMALL)


def beside(store_options: WriteSettings, *counts: int) -> list[FileFact]:
    """Input files, written without the store."""
    return written(replace(store_options, io_properties={}), *counts)


def names(inputs: list[FileFact]) -> list[str]:
    return [Path(local(input_file.path)).name for input_file in inputs]


def merged(store_options: WriteSettings, inputs: list[FileFact], outputs: int = 1) -> MergeResult:
    """The outcome, no row lost, its files verified, and none besides the input files and them."""
    done = merge(MergeTask(tuple(inputs), KEY, outputs), store_options, MERGED)
    for file in done.files:
        assert verify_file(LocalSource(local(file.path)), "merged").problems == ()
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)
    assert set(map(str, files_of_table(store_options))) == {local(each.path) for each in (*inputs, *done.files)}
    return done


def test_each_file_is_fetched_whole_by_one_request(store_options: WriteSettings, store: Store) -> None:
    """Copied ones once, by one open and one read of everything; decoded ones once as well."""
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, TINY_ROWS, PAGED_ROWS)
    done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert done.pages_copied > 0
    (output,) = names([fact(file) for file in done.files])
    assert sorted(store.of("open")) == sorted([*names(inputs), output])
    assert sorted(store.of("read -1")) == sorted(names(inputs))
    assert sorted(store.of("closed")) == sorted(store.of("open"))
    assert store.of("create") == [output]
    assert store.of("delete") == []


def test_outputs_have_names_of_their_own(store_options: WriteSettings, store: Store) -> None:
    """Several outputs, and a second merge of the same task attempt, never write to a name twice."""
    inputs = beside(store_options, *[PAGED_ROWS] * 6)
    first = merged(store_options, inputs, outputs=3)
    again = merge(MergeTask(tuple(inputs), KEY, 3), store_options, MERGED)
    assert len(set(store.of("create"))) == 6
    assert len(first.files) == len(again.files) == 3
    assert content(file.path for file in first.files) == content(file.path for file in again.files)


def test_the_next_file_is_fetched_while_one_is_put_away(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Putting a file away waits here until the next one was asked for, and the one after that is not asked for yet."""
    inputs = beside(store_options, *[PAGED_ROWS] * 5)
    asked = {name: threading.Event() for name in names(inputs)}
    kept: list[int] = []

    def tell(event: str, location: str) -> None:
        Store.tell(store, event, location)
        if event == "open":
            asked[Path(local(location)).name].set()

    class WaitingFile(io.FileIO):
        def write(self, data: Any, /) -> int:
            number = len(kept)
            if number + 1 < len(inputs):
                assert asked[names(inputs)[number + 1]].wait(60)
            if number + 2 < len(inputs):
                assert not asked[names(inputs)[number + 2]].is_set()
            kept.append(len(data))
            return super().write(data)

    monkeypatch.setattr(store, "tell", tell)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: WaitingFile(temporary / "put-away", "w+"))
    with Fetched(with_limits(store_options, fetched_in_memory_bytes=0, requests=2)) as fetched:
        found = fetched.fetch(inputs)
    assert kept == [input_file.size_bytes for input_file in inputs]
    assert [source.size_bytes for source in found if not isinstance(source, Refusal)] == kept
    assert sorted(store.of("open")) == sorted(names(inputs))


def test_files_beyond_the_memory_wait_on_the_disk(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds what fits and what may be in flight, however many there are; nothing stays on the disk."""
    inputs = beside(store_options, *[PAGED_ROWS] * 27)
    largest = max(input_file.size_bytes for input_file in inputs)
    store_options = with_limits(store_options, fetched_in_memory_bytes=3 * largest, requested_bytes=2 * largest)
    with Fetched(store_options) as before:
        before.fetch(inputs[:5])  # so that what is imported on the way does not count
    with Fetched(store_options) as fetched:
        tracemalloc.start()
        found = fetched.fetch(inputs)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 4 * largest
        assert peak < 8 * largest < sum(input_file.size_bytes for input_file in inputs) / 3
        for source, input_file in zip(found, inputs, strict=True):
            assert not isinstance(source, Refusal)
            assert (whole(source), fetched.get(input_file.path)) == (bytes_of(input_file), source)
        assert len(open_files(temporary)) == 1
        assert list(temporary.iterdir()) == []
    assert open_files(temporary) == []


def whole(source: Source) -> bytes:
    return source.read(0, source.size_bytes)


def open_files(folder: Path) -> list[str]:
    """Files of a folder that this process has open, also such without a name."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]


def test_a_merge_of_files_on_the_disk_is_the_same(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a file was kept in memory or on the disk, its bytes are copied; each is fetched once."""
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    in_memory = merged(store_options, inputs)
    (first,) = [bytes_of(fact(file)) for file in in_memory.files]
    os.remove(local(in_memory.files[0].path))
    store_options = with_limits(store_options, fetched_in_memory_bytes=1)
    store.events.clear()
    on_disk = merged(store_options, inputs)
    assert [bytes_of(fact(file)) for file in on_disk.files] == [first]
    assert sorted(store.of("read -1")) == sorted(names(inputs))
    assert list(temporary.iterdir()) == []


def test_a_large_file_comes_piece_by_piece(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the local disk by requests of a fixed size; small ones stay whole."""
    inputs = beside(store_options, PAGED_ROWS, WHOLE_ROWS, PAGED_ROWS)
    large = inputs[1].size_bytes
    store_options = with_limits(store_options, fetched_whole_bytes=large - 1, fetched_piece_bytes=large // 3)
    done = merged(store_options, inputs)
    assert done.bytes_decoded == 0
    assert sorted(store.of("read -1")) == sorted([names(inputs)[0], names(inputs)[2]])
    assert store.of(f"read {large // 3}") == [names(inputs)[1]] * 3
    # the rest of no more than two bytes, and one byte that a longer file would have
    assert store.of(f"read {large % 3 + 1}") == [names(inputs)[1]] * (large % 3 > 0)
    assert (list(temporary.iterdir()), open_files(temporary)) == ([], [])
    longer = replace(inputs[1], size_bytes=large + 1)
    with Fetched(store_options) as fetched:
        found, behind = fetched.fetch([longer, inputs[1]])
        assert not isinstance(behind, Refusal)
        assert whole(behind) == bytes_of(inputs[1])
        assert fetched.get(longer.path) is behind
    assert found is Refusal.SHORT_READ


def test_memory_does_not_grow_with_the_files_of_a_merge(tmp_path: Path) -> None:
    """Of files on this machine the footers and page indexes are held, and one column chunk of one file."""
    store_options = replace(settings_of(tmp_path, SCHEMA), limits=SMALL)
    (file,) = written(store_options, 12_000)

    def peak(count: int) -> int:
        links = [f"{local(file.path)}-{i}" for i in range(count)]
        for link in links:
            os.link(local(file.path), link)
        task = MergeTask(tuple(replace(file, path=link) for link in links), KEY)
        merge(task, store_options, MERGED)  # so that what is imported and remembered does not count
        tracemalloc.start()
        done = merge(task, store_options, MERGED)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (done.bytes_decoded, done.rows_out) == (0, count * 12_000)
        for link in links:
            os.remove(link)
        return found

    assert peak(24) - peak(6) < 18 * file.size_bytes / 8


def test_a_full_local_disk_has_files_decoded(
    store_options: WriteSettings,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What cannot wait anywhere is decoded, which reads it from storage again; reason and log do not blame storage."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "missing"))
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    store_options = with_limits(store_options, fetched_in_memory_bytes=inputs[0].size_bytes)
    monkeypatch.setattr(tempfile, "TemporaryFile", _full)
    with caplog.at_level(logging.WARNING):
        done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {"no-room": 2}
    assert "No space left on device" in caplog.text
    assert sources_of(done.files[:1]) == {inputs[0].path}


def _full(**_arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_an_object_of_another_length_is_not_copied(store_options: WriteSettings, store: Store) -> None:
    """A file that is shorter or longer than its manifest entry says is no source."""
    inputs = beside(store_options, PAGED_ROWS, PAGED_ROWS, PAGED_ROWS)
    wrong = [
        replace(inputs[0], size_bytes=inputs[0].size_bytes - 1),
        replace(inputs[1], size_bytes=inputs[1].size_bytes + 1),
        inputs[2],
    ]
    with Fetched(store_options) as fetched:
        found = fetched.fetch(wrong)
    codes = [source if isinstance(source, Refusal) else None for source in found]
    assert codes == [Refusal.SHORT_READ, Refusal.SHORT_READ, None]


def test_an_object_that_cannot_be_opened_is_named(store_options: WriteSettings, store: Store) -> None:
    """It is tried once to copy and once to decode; nothing is left and no other file is touched."""
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    store.lost = names(inputs)[1]
    before = files_of_table(store_options)
    with pytest.raises(RewriteFailed, match="gone for now") as caught:
        merge(MergeTask(tuple(inputs), KEY), store_options, MERGED)
    assert caught.value.path == inputs[1].path
    assert files_of_table(store_options) == before
    assert store.of("delete") == store.of("create")


WRITES = 42
"""What a copied output of the input files below takes: so many writes are made to fail, each in turn."""


def several_ways(store_options: WriteSettings) -> list[FileFact]:
    return beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS, TINY_ROWS)


def test_no_write_is_left_out_below(store_options: WriteSettings, store: Store) -> None:
    """Row groups, pages, decoded rows, indexes and the footer."""
    done = merged(store_options, several_ways(store_options))
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert store.counts == {"write": WRITES, "close": 1}


@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_write_that_fails_once_has_all_decoded(store_options: WriteSettings, store: Store, number: int) -> None:
    """What was begun is completed and removed before another output is begun, under another name; no row is lost."""
    store.fail_write = number
    done = merged(store_options, several_ways(store_options))
    assert dict(done.decode_reasons) == {"short-read": 4}
    failed, last = store.of("create")
    assert names([fact(file) for file in done.files]) == [last]
    assert [event for event in store.events if event[0] in ("create", "complete", "delete")] == [
        ("create", failed),
        ("complete", failed),
        ("delete", failed),
        ("create", last),
        ("complete", last),
    ]


@pytest.mark.parametrize("number", [1, 2, 9, WRITES - 1, WRITES])
def test_writes_that_fail_for_good_leave_nothing(store_options: WriteSettings, store: Store, number: int) -> None:
    """The merge fails, both outputs that were begun are removed, and the input files are as they were."""
    inputs = several_ways(store_options)
    before = {path: path.read_bytes() for path in files_of_table(store_options)}
    store.fail_write, store.lasting = number, True
    with pytest.raises(RewriteFailed, match=r"write \d+ failed; the files written so far were removed"):
        merge(MergeTask(tuple(inputs), KEY), store_options, MERGED)
    assert {path: path.read_bytes() for path in files_of_table(store_options)} == before
    assert len(store.of("create")) == 2
    assert store.of("delete") == store.of("create")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_output_that_cannot_be_completed_is_removed(
    store_options: WriteSettings, store: Store, number: int, lasting: bool
) -> None:
    """Of three outputs one fails when it is closed: those before it go, too, and all is decoded or nothing is done."""
    inputs = beside(store_options, *[PAGED_ROWS] * 6)
    before = files_of_table(store_options)
    store.fail_close, store.lasting = number, lasting
    if not lasting:
        done = merged(store_options, inputs, outputs=3)
        assert dict(done.decode_reasons) == {"short-read": 6}
        assert sorted(store.of("delete")) == sorted(store.of("create")[:number])
        return
    with pytest.raises(RewriteFailed, match=r"close \d+ failed"):
        merge(MergeTask(tuple(inputs), KEY, 3), store_options, MERGED)
    assert files_of_table(store_options) == before
    assert set(store.of("delete")) == set(store.of("create"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size_error": 1}, "storage holds {more} bytes of {size}"),
        ({"size_error": -1}, "storage holds {less} bytes of {size}"),
        ({"tail_damaged": True}, "the footer read back from storage differs"),
    ],
)
def test_an_output_that_storage_has_otherwise_is_removed(
    store_options: WriteSettings, store: Store, change: Mapping[str, Any], message: str
) -> None:
    """Its size and its footer are compared with what was written before anybody hears of it."""
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    done = merged(store_options, inputs)
    size = done.files[0].size_bytes
    os.remove(local(done.files[0].path))
    store.events.clear()
    for name, value in change.items():
        setattr(store, name, value)
    expected = message.format(size=size, more=size + 1, less=size - 1)
    before = files_of_table(store_options)
    with pytest.raises(RewriteFailed, match=expected) as caught:
        merge(MergeTask(tuple(inputs), KEY), store_options, MERGED)
    (output,) = store.of("create")
    assert Path(str(caught.value.path)).name == output
    assert store.of("delete") == [output]
    assert files_of_table(store_options) == before


@pytest.mark.parametrize(
    ("error", "code"), [(OSError("Couldn't deserialize thrift"), "short-read"), (MemoryError(), "no-room")]
)
def test_an_output_that_pyarrow_cannot_describe_is_removed(
    store_options: WriteSettings, store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """Something in an input file's footer that only pyarrow stumbles over shows when the output is complete."""
    inputs = several_ways(store_options)

    def stumble(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("icesize.parquet.rewriting.output_file.describe", stumble)
    done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {code: 4}
    assert store.of("delete") == store.of("create")[:1]


def test_a_refusal_while_copying_has_the_group_decoded(store_options: WriteSettings, store: Store) -> None:
    """What was written until then is removed first; decoding takes the bytes that were fetched already."""
    good = beside(store_options, PAGED_ROWS, PAGED_ROWS, WHOLE_ROWS)
    folder = Path(local(store_options.table_location)) / "late"
    bad = stored(folder, edited(bytes_of(good[2]), indexes_swapped), WHOLE_ROWS)
    inputs = [*good, bad]
    done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {"pages": 4}
    failed, last = store.of("create")
    assert store.of("delete") == [failed]
    assert sorted(store.of("read -1")) == sorted(names(inputs))
    assert names([fact(file) for file in done.files]) == [last]


def test_files_in_s3_are_merged_by_copying(
    endpoint: str,
    bucket: str,
    client: Any,
    properties: dict[str, str],
) -> None:
    """Through both of PyIceberg's FileIOs: whole row groups, pages and decoded rows in one object, nothing besides."""
    store_options = replace(settings_of(f"s3://{bucket}/t", SCHEMA), io_properties=properties, limits=SMALL)
    inputs = written(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS, TINY_ROWS)
    done = merge(MergeTask(tuple(inputs), KEY), store_options, MERGED)
    (file,) = done.files
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert (done.pages_copied > 0, rows_decoded([file])) == (True, TINY_ROWS)
    wanted = sorted(location.removeprefix(f"s3://{bucket}/") for location in (file.path, *(v.path for v in inputs)))
    assert sorted(keys(client, bucket)) == wanted
    stored_bytes = client.get_object(Bucket=bucket, Key=file.path.removeprefix(f"s3://{bucket}/"))["Body"].read()
    found = verify_file(BytesSource(stored_bytes), "merged")
    assert (found.problems, found.rows) == ((), 2 * PAGED_ROWS + WHOLE_ROWS + TINY_ROWS)
    host = endpoint.removeprefix("http://")
    s3 = S3FileSystem(access_key="key", secret_key="secret", endpoint_override=host, scheme="http", region="us-east-1")

    def ids(location: str) -> list[int]:
        column: pa.ChunkedArray = pq.read_table(location.removeprefix("s3://"), filesystem=s3).column("id")
        return column.to_pylist()

    assert sorted(ids(file.path)) == sorted(i for input_file in inputs for i in ids(input_file.path))
