"""Merges that copy where input files are damaged, and where storage fails or gives something else: rows are never
wrong, nothing is left over, and what cannot be copied is decoded."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
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
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource, LocalSource, Source
from icesize.parquet.format.thrift import (
    I64,
    bytes_field,
    i64,
    integer,
    integers_field,
    read_struct,
    struct_field,
    structs_field,
    structs_of,
)
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeGroup
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
    foreign_bytes,
    indexes_swapped,
    rows,
    spelt_rows,
    stored,
    with_ids,
    written,
)
from tests.support.footers import Tree, edited, footer_of, mutants, with_footer
from tests.support.object_store import keys
from tests.support.parquet_files import (
    REMOTE,
    RemoteLike,
    fact,
    local,
    rows_decoded,
    settings_of,
    sources_of,
    with_limits,
    write_one,
)

STRATEGIES = pytest.mark.parametrize("count", [WHOLE_ROWS, PAGED_ROWS], ids=["splice", "pages"])
"""Rows of the bad file: both ways of copying meet it."""
START = 10_000
"""First id of the bad file's rows."""


@pytest.fixture
def options(tmp_path: Path) -> WriteSettings:
    return replace(settings_of(tmp_path, SCHEMA), limits=SMALL)


def foreign(count: int, data: pa.Table | None = None, **how: object) -> bytes:
    """A file of another writer with the bad file's rows, or with others."""
    return foreign_bytes(with_ids(rows(count, START)) if data is None else data, **how)


def outcome(options: WriteSettings, inputs: list[FileFact], outputs: int = 1) -> MergeResult:
    """What a merge did; its outputs verified, all other files as they were, and nothing else left."""
    before = {path: path.read_bytes() for path in files_of_table(options)}
    done = merge(MergeGroup(tuple(inputs), KEY, outputs), options, MERGED)
    for file in done.files:
        found = verify(LocalSource(local(file.path)), "merged")
        assert (found.problems, found.rows) == ((), file.rows)
    outputs_now = {Path(local(file.path)) for file in done.files}
    after = {path: path.read_bytes() for path in files_of_table(options)}
    assert {path: data for path, data in after.items() if path not in outputs_now} == before
    return done


def fails(options: WriteSettings, inputs: list[FileFact]) -> RewriteFailed:
    """The error; all files as they were and no other one is there."""
    before = {path: path.read_bytes() for path in files_of_table(options)}
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeGroup(tuple(inputs), KEY), options, MERGED)
    assert {path: path.read_bytes() for path in files_of_table(options)} == before
    return caught.value


def among(options: WriteSettings, bad: FileFact) -> list[FileFact]:
    """The bad one between a file that is copied whole and two of which pages are copied."""
    good = written(options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    return [*good[:2], bad, good[2]]


def extended(data: pa.Table, name: str, values: list[object], field_id: int) -> pa.Table:
    """With one more column."""
    return data.append_column(pa.field(name, pa.array(values).type, metadata=_id(field_id)), pa.array(values))


def _id(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def _changed(data: pa.Table, position: int, kind: pa.DataType) -> pa.Table:
    field = data.schema.field(position)
    return data.set_column(position, field.with_type(kind), data.column(position).cast(kind))


def _lineage(count: int) -> bytes:
    data = extended(with_ids(rows(count, START)), "_row_id", list(range(count)), 2147483540)
    return foreign(count, extended(data, "_last_updated_sequence_number", [7] * count, 2147483539))


def _key(name: bytes, value: bytes) -> Callable[[Tree], None]:
    def add(tree: Tree) -> None:
        tree.file[5] = structs_field([{1: bytes_field(name), 2: bytes_field(value)}])

    return add


def _with(edit: Callable[[Tree], object]) -> Callable[[int], bytes]:
    """A good file under a changed footer."""
    return lambda count: edited(foreign(count), edit)


def _unknown_offset(tree: Tree) -> None:
    tree.metadata[0][0][99] = i64(4)


def _created_by(name: bytes) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        tree.file[6] = bytes_field(name)

    return change


def _orders(tree: Tree) -> None:
    del tree.file[7]


DECODED: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "int96": ("int96", lambda count: foreign(count, use_deprecated_int96_timestamps=True)),
    "legacy dates": ("legacy-values", _with(_key(b"org.apache.spark.legacyDateTime", b""))),
    "legacy int96": ("legacy-values", _with(_key(b"org.apache.spark.legacyINT96", b""))),
    "spark 2": ("legacy-values", _with(_key(b"org.apache.spark.version", b"2.4.8"))),
    "lineage": ("row-lineage", _lineage),
    "an old writer": ("created-by", _with(_created_by(b"parquet-mr version 1.6.0"))),
    "a strange writer": ("created-by", _with(_created_by(b"somebody"))),
    "an unknown offset": ("unknown-field", _with(_unknown_offset)),
    "other orders": ("schema-differs", _with(_orders)),
    "a column of its own": (
        "schema-evolved",
        lambda count: foreign(count, extended(with_ids(rows(count, START)), "more", [1] * count, 9)),
    ),
    "an int": ("schema-evolved", lambda count: foreign(count, _changed(with_ids(rows(count, START)), 0, pa.int32()))),
    "a float": (
        "schema-evolved",
        lambda count: foreign(count, _changed(with_ids(_halves(count)), 2, pa.float32())),
    ),
    "another order": (
        "schema-evolved",
        lambda count: foreign(count, with_ids(rows(count, START)).select(["word", "value", "at", "id"])),
    ),
    "other names": (
        "schema-differs",
        lambda count: foreign(count, with_ids(rows(count, START).rename_columns(["a", "b", "c", "d"]))),
    ),
}
"""Files that are not copied and why; all their rows are in the output."""


def _halves(count: int) -> pa.Table:
    """Rows whose doubles are floats, too."""
    data = rows(count, START)
    return data.set_column(2, "value", pa.array([i / 2 for i in range(count)], pa.float64()))


def _required(data: pa.Table) -> pa.Table:
    return data.cast(pa.schema([data.schema.field(0).with_nullable(False), *list(data.schema)[1:]]))


@STRATEGIES
def test_a_column_that_only_one_file_requires_is_encoded_again(options: WriteSettings, count: int) -> None:
    """No other column is; what it holds may be NULL then, as the table has it, also in a file whose values are none."""
    bad = stored(Path(local(options.table_location)), foreign(count, _required(with_ids(rows(count, START)))), count)
    for inputs in (among(options, bad), among(options, bad)[::-1]):
        done = outcome(options, inputs)
        assert (dict(done.decode_reasons), rows_decoded(done.files)) == ({}, 0)
        assert 0 < done.bytes_decoded < sum(file.size_bytes for file in inputs)
        assert all(pq.read_schema(local(file.path)).field("id").nullable for file in done.files)


def _rows_of(name: str, count: int) -> pa.Table:
    return _halves(count) if name == "a float" else rows(count, START)


@STRATEGIES
@pytest.mark.parametrize("name", DECODED)
def test_what_is_not_copied_is_decoded_with_its_code(options: WriteSettings, name: str, count: int) -> None:
    """The file alone is decoded, under the right code, and no row is lost; the others are copied."""
    code, make = DECODED[name]
    bad = stored(Path(local(options.table_location)), make(count), count)
    inputs = among(options, bad)
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == {code: 1}
    assert done.bytes_decoded == bad.size_bytes
    assert done.pages_copied > 0
    good = content(input_file.path for input_file in inputs if input_file is not bad)
    assert content(file.path for file in done.files) == good + Counter(spelt_rows(_rows_of(name, count)))
    assert sources_of(done.files) == {input_file.path for input_file in inputs if input_file is not bad}


@STRATEGIES
def test_another_codec_matters_to_pages_only(options: WriteSettings, count: int) -> None:
    """Row groups of several codecs may be in one file, pages of several in one chunk may not."""
    bad = stored(Path(local(options.table_location)), foreign(count, compression="snappy"), count)
    inputs = among(options, bad)
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == ({} if count == WHOLE_ROWS else {"codec": 1})
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)


@STRATEGIES
def test_a_column_that_the_file_lacks_is_null(options: WriteSettings, count: int) -> None:
    """A file from before the column was added is decoded."""
    data = with_ids(rows(count, START)).select(["id", "at", "value"])
    bad = stored(Path(local(options.table_location)), foreign(count, data), count)
    inputs = among(options, bad)
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == {"schema-evolved": 1}
    words = pq.read_table(local(done.files[0].path)).column("word")
    assert (len(words), words.null_count) == (done.rows_in, count)


def _fallen_back(count: int) -> bytes:
    """Pages with a dictionary and then plain ones, under a footer that claims that all have the dictionary."""

    def forge(tree: Tree) -> None:
        for fields in tree.metadata[0]:
            stats = structs_of(fields, 13)
            fields[13] = structs_field(
                [s for s in stats if integer(s, 1) == 2 or integer(s, 2) in DICTIONARY_ENCODINGS]
            )

    how = {"dictionary_pagesize_limit": 900, "data_page_size": 2_000, "write_batch_size": 100}
    return edited(foreign(count, use_dictionary=["word"], **how), forge)


LATE: dict[str, tuple[str, int, Callable[[int], bytes]]] = {
    "pages elsewhere": ("pages", WHOLE_ROWS, _with(indexes_swapped)),
    "a dictionary page after plain ones": ("dictionary-order", PAGED_ROWS, _fallen_back),
}


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("name", LATE)
def test_what_is_noticed_while_copying_has_all_decoded(options: WriteSettings, name: str, remote: bool) -> None:
    """What was begun is removed, and the group is decoded as a whole; no row is lost or wrong."""
    code, count, make = LATE[name]
    folder = Path(local(options.table_location))
    # the second one's dictionary would follow the plain pages of the first
    bad = [stored(folder, make(count), count), stored(folder / "more", make(count), count)]
    inputs = [*written(options, WHOLE_ROWS), *bad]
    done = outcome(replace(options, io_properties=REMOTE) if remote else options, inputs)
    assert dict(done.decode_reasons) == {code: 3}
    assert (done.bytes_copied, done.pages_copied, sources_of(done.files)) == (0, 0, set())
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)


def _histogram(tree: Tree) -> None:
    """The histogram of definition levels of the first column has a level too many."""
    for chunks in tree.metadata:
        sizes, _ = read_struct(chunks[0][16][1])
        chunks[0][16] = struct_field({**sizes, 3: integers_field([1, 2, 3], I64)})


def _statistics(tree: Tree) -> None:
    """The maximum of the first column is a number where bytes must be."""
    for chunks in tree.metadata:
        statistics, _ = read_struct(chunks[0][12][1])
        chunks[0][12] = struct_field({**statistics, 5: i64(7)})


@STRATEGIES
@pytest.mark.parametrize("edit", [_histogram, _statistics])
def test_metadata_that_readers_stumble_over_are_not_spread(
    options: WriteSettings, count: int, edit: Callable[[Tree], None]
) -> None:
    """What would make an output unreadable, or end the process, is left out, or the file is named; nothing stays."""
    bad = stored(Path(local(options.table_location)), edited(foreign(count), edit), count)
    inputs = among(options, bad)
    before = files_of_table(options)
    done = attempt(MergeGroup(tuple(inputs), KEY), options)
    if isinstance(done, RewriteFailed):
        assert (done.path, files_of_table(options)) == (bad.path, before)
        return
    assert [p for f in done.files for p in verify(LocalSource(local(f.path)), "merged").problems] == []
    good = content(input_file.path for input_file in inputs if input_file is not bad)
    assert content(file.path for file in done.files) == good + Counter(spelt_rows(rows(count, START)))


def attempt(task: MergeGroup, options: WriteSettings) -> MergeResult | RewriteFailed:
    """What became of a merge."""
    try:
        return merge(task, options, MERGED)
    except RewriteFailed as error:
        return error


@pytest.mark.parametrize("tiny", [1, 3])
def test_nulls_do_not_join_columns_without_them(options: WriteSettings, tiny: int) -> None:
    """Files of which a column is required are copied; rows that are decoded beside may have nulls there, and then all
    is decoded."""
    folder = Path(local(options.table_location))
    strict = [stored(folder, foreign(n, _required(with_ids(rows(n, n)))), n) for n in (WHOLE_ROWS, PAGED_ROWS, 701)]
    odd = pa.table({name: pa.nulls(2, kind) for name, kind in zip(SCHEMA.column_names, _TYPES, strict=True)})
    small = [fact(write_one(options, odd if i == tiny - 1 else rows(9, i))) for i in range(tiny)]
    inputs = [*strict, *small]
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == {"schema-differs": len(inputs)}
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)
    without = outcome(options, [*strict, *small[:-1]])
    assert without.bytes_copied > 0
    assert without.rows_out == done.rows_out - 2


_TYPES = rows(0).schema.types


def _header_damaged(count: int) -> bytes:
    """The first page of the last column says that it has more bytes than there are."""
    data = bytearray(foreign(count, write_page_checksum=False))
    chunk = footer_of(bytes(data)).row_groups[0].chunks[-1]
    # after its type: sizes before and after compression
    data[chunk.start + 3 : chunk.start + 8] = b"\xfe" * 5
    return bytes(data)


def _body_damaged(count: int) -> bytes:
    data = bytearray(foreign(count, write_page_checksum=True))
    data[footer_of(bytes(data)).row_groups[0].chunks[-1].end - 9] ^= 4
    return bytes(data)


def _cut(keep: Callable[[bytes], int]) -> Callable[[int], bytes]:
    def cut(count: int) -> bytes:
        data = foreign(count)
        return data[: keep(data)]

    return cut


def _orc(count: int) -> bytes:
    out = io.BytesIO()
    pa.orc.write_table(rows(count, START), out)
    return out.getvalue()


def _encrypted(plaintext_footer: bool) -> Callable[[int], bytes]:
    def make(count: int) -> bytes:
        encryption = pytest.importorskip("pyarrow.parquet.encryption")

        class OwnKeys(encryption.KmsClient):  # type: ignore[misc, name-defined]
            def __init__(self, _config: object) -> None:
                super().__init__()

            def wrap_key(self, key: bytes, _name: str) -> bytes:
                return key.hex().encode()

        asked = encryption.EncryptionConfiguration(
            footer_key="footer", plaintext_footer=plaintext_footer, uniform_encryption=True
        )
        factory = encryption.CryptoFactory(OwnKeys)
        keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), asked)
        return foreign(count, encryption_properties=keys)

    return make


def _external(tree: Tree) -> None:
    tree.chunks[0][0][1] = bytes_field(b"elsewhere.parquet")


HOPELESS: dict[str, Callable[[int], bytes]] = {
    "cut off within its pages": _cut(lambda data: len(data) // 2),
    "cut off within its footer": _cut(lambda data: len(data) - 100),
    "without its last byte": _cut(lambda data: len(data) - 1),
    "only magic": lambda count: b"PAR1" * 20_000,
    "encrypted": _encrypted(plaintext_footer=False),
    "encrypted but for its footer": _encrypted(plaintext_footer=True),
    "orc": _orc,
    "text": lambda count: b"id,at,value,word\n" * 9_000,
    "zeros": lambda count: bytes(90_000),
    "nothing": lambda count: b"",
    "a damaged page header": _header_damaged,
    "a damaged page": _body_damaged,
    "a footer longer than the file": lambda count: foreign(count)[:-8] + struct.pack("<I", 2**30) + b"PAR1",
    "a footer of noise": lambda count: with_footer(foreign(count), bytes(range(256)) * 4),
    "text where numbers were": lambda count: foreign(count, _changed(with_ids(rows(count, START)), 0, pa.string())),
    "columns without ids": lambda count: foreign(count, rows(count, START)),
}
"""Files that cannot be decoded either."""


@STRATEGIES
@pytest.mark.parametrize("name", HOPELESS)
def test_what_cannot_be_decoded_either_is_named(options: WriteSettings, name: str, count: int) -> None:
    """The error says which file it is, nothing is left of the merge, and without that file it works."""
    bad = stored(Path(local(options.table_location)), HOPELESS[name](count), count)
    # its manifest entry may be of the whole file
    bad = replace(bad, size_bytes=max(bad.size_bytes, 60_000))
    inputs = among(options, bad)
    error = fails(options, inputs)
    assert error.path == bad.path
    assert str(error).startswith(("Cannot read", "Cannot merge"))
    good = [input_file for input_file in inputs if input_file is not bad]
    done = outcome(options, good)
    assert (done.bytes_decoded, done.rows_out) == (0, WHOLE_ROWS + 2 * PAGED_ROWS)


def test_columns_in_another_file_are_never_copied(options: WriteSettings) -> None:
    """A footer that points to another file is refused; pyarrow then reads what is at that place of this one."""
    bad = stored(Path(local(options.table_location)), edited(foreign(PAGED_ROWS), _external), PAGED_ROWS)
    inputs = among(options, bad)
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == {"external-file": 1}
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)


@STRATEGIES
@pytest.mark.parametrize("copying", [True, False])
def test_text_that_is_no_utf8_stays_what_it_is(options: WriteSettings, count: int, copying: bool) -> None:
    """Spark keeps any bytes in a string column; the merge does, too, and has no bounds for it."""
    words = pa.array([b"\xff\x87" + bytes([i % 251]) for i in range(count)], pa.binary())
    data = rows(count, START).set_column(3, "word", words.view(pa.string()))
    bad = stored(Path(local(options.table_location)), foreign(count, with_ids(data)), count)
    done = outcome(replace(options, merge_by_copying=copying), [bad, *written(options, PAGED_ROWS)])
    assert (done.bytes_copied > 0) is copying
    stored_words = pq.read_table(local(done.files[0].path), columns=["word"]).column(0).cast(pa.binary()).to_pylist()
    assert Counter(word for word in stored_words if word.startswith(b"\xff")) == Counter(words.to_pylist())
    assert 4 not in done.files[0].upper_bounds


@STRATEGIES
def test_row_groups_without_rows_are_left_out(options: WriteSettings, count: int) -> None:
    """A file with empty row groups is copied without them, one that has nothing else adds nothing."""
    data, out = with_ids(rows(count, START)), io.BytesIO()
    with pq.ParquetWriter(out, data.schema, use_dictionary=False, compression="zstd", store_schema=False) as writer:
        for part in (data.slice(0, 0), data, data.slice(0, 0)):
            writer.write_table(part)
    assert pq.read_metadata(io.BytesIO(out.getvalue())).num_row_groups == 3
    folder = Path(local(options.table_location))
    holes = stored(folder, out.getvalue(), count)
    empty = stored(folder, foreign(0, data.slice(0, 0)), 0)
    inputs = [*among(options, holes), empty]
    done = outcome(options, inputs)
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert content(file.path for file in done.files) == content(input_file.path for input_file in inputs)
    groups = pq.read_metadata(local(done.files[0].path))
    assert all(groups.row_group(i).num_rows for i in range(groups.num_row_groups))


@STRATEGIES
def test_a_single_file_is_copied(options: WriteSettings, count: int) -> None:
    """A merge of one file is a copy of it."""
    (input_file,) = written(options, count)
    done = outcome(options, [input_file])
    assert (done.bytes_decoded, done.rows_out, len(done.files)) == (0, count, 1)
    assert content([done.files[0].path]) == content([input_file.path])
    assert 0 < done.bytes_copied <= input_file.size_bytes


@STRATEGIES
def test_a_single_bad_file_is_named(options: WriteSettings, count: int) -> None:
    """Also when there is nothing else to merge."""
    bad = stored(Path(local(options.table_location)), _body_damaged(count), count)
    assert fails(options, [bad]).path == bad.path


def test_every_file_bad_in_its_own_way_is_counted(options: WriteSettings) -> None:
    """One merge tells all reasons; what is good among them is copied still."""
    folder = Path(local(options.table_location))
    names = [name for name in DECODED if name not in ("other orders", "other names")]
    bad = [stored(folder, DECODED[name][1](PAGED_ROWS), PAGED_ROWS) for name in names]
    good = written(options, WHOLE_ROWS, WHOLE_ROWS)
    done = outcome(options, [*bad, *good])
    assert dict(done.decode_reasons) == dict(Counter(DECODED[name][0] for name in names))
    assert rows_decoded(done.files) == PAGED_ROWS * len(names)
    assert sources_of(done.files[:1]) == {input_file.path for input_file in good}


ZSTD = 6
"""CompressionCodec (parquet.thrift) of the files here."""


def codecs(data: bytes) -> set[int]:
    """What a footer says of compression, nothing when it is refused."""
    try:
        return {chunk.codec for group in footer_of(data).row_groups for chunk in group.chunks}
    except CopyRefused:
        return set()


def merge_damaged(options: WriteSettings, count: int, mutated: int, seed: int) -> Counter[str]:
    """Merge a file with a damaged footer and good ones, many times; how often each outcome was seen."""
    folder, outcomes = Path(local(options.table_location)), Counter[str]()
    how = {"use_dictionary": ["id"], "bloom_filter_options": {"id": True}, "max_rows_per_page": 300}
    raw, good = foreign(count, **how), written(options, PAGED_ROWS, PAGED_ROWS)
    rows_in = content(input_file.path for input_file in good) + Counter(spelt_rows(rows(count, START)))
    for footer in mutants(raw, mutated, seed):
        if codecs(with_footer(raw, footer)) - {ZSTD}:
            continue  # bytes that are copied whole are not decompressed: what a footer says of that is believed
        bad = stored(folder / "damaged", with_footer(raw, footer), count)
        before = files_of_table(options)
        done = attempt(MergeGroup((*good, bad), KEY), options)
        if isinstance(done, RewriteFailed):
            assert (done.path, files_of_table(options)) == (bad.path, before)
            outcomes["failed"] += 1
        else:
            outcomes["decoded" if done.decode_reasons else "copied"] += 1
            # pyarrow believes some footers that are refused here, and reads other values then
            assert done.decode_reasons or content(file.path for file in done.files) == rows_in
            assert sum(content(file.path for file in done.files).values()) == done.rows_in
        for path in {*files_of_table(options)} - {Path(local(input_file.path)) for input_file in good}:
            path.unlink()
    return outcomes


@STRATEGIES
def test_damaged_footers_spread_no_damage(options: WriteSettings, count: int) -> None:
    """What is copied is readable and has the rows; else it is decoded, or the file is named and nothing is left."""
    outcomes = merge_damaged(options, count, 40, 3)
    assert min(outcomes[name] for name in ("failed", "decoded", "copied")) > 0


@pytest.mark.slow
@STRATEGIES
def test_damaged_footers_spread_no_damage_often(options: WriteSettings, count: int) -> None:
    """The same with more footers."""
    outcomes = merge_damaged(options, count, 2_000, 4)
    assert min(outcomes[name] for name in ("failed", "decoded", "copied")) > 30


@pytest.mark.slow
def test_five_thousand_files_of_one_row(options: WriteSettings) -> None:
    """They are decoded without a look at their footers, beside a large file that is copied."""
    folder, count = Path(local(options.table_location)) / "data", 5_000
    folder.mkdir(parents=True, exist_ok=True)
    data = rows(count, START)
    tiny = []
    for i in range(count):
        path = folder / f"{i}.parquet"
        pq.write_table(with_ids(data.slice(i, 1)), path, store_schema=False)
        tiny.append(FileFact(str(path), path.stat().st_size, 1, KEY))
    (large,) = written(options, WHOLE_ROWS)
    done = outcome(options, [*tiny, large])
    assert dict(done.decode_reasons) == {"tiny": count}
    assert content(file.path for file in done.files) == content([large.path]) + Counter(spelt_rows(data))
    bad = replace(tiny[777], rows=2)
    assert fails(options, [*tiny[:777], bad, *tiny[778:], large]).path == bad.path


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
    done = merge(MergeGroup(tuple(inputs), KEY, outputs), store_options, MERGED)
    for file in done.files:
        assert verify(LocalSource(local(file.path)), "merged").problems == ()
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
    opened = store.of("open")
    copied = [names(inputs)[i] for i in (0, 1, 3)]
    assert opened == [*copied, names(inputs)[2], output]
    assert store.of("read -1") == [*copied, names(inputs)[2]]
    assert store.of("closed") == opened
    assert store.of("create") == [output]
    assert store.of("delete") == []


def test_outputs_have_names_of_their_own(store_options: WriteSettings, store: Store) -> None:
    """Several outputs, and a second merge of the same task attempt, never write to a name twice."""
    inputs = beside(store_options, *[PAGED_ROWS] * 6)
    first = merged(store_options, inputs, outputs=3)
    again = merge(MergeGroup(tuple(inputs), KEY, 3), store_options, MERGED)
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
    with Fetched(with_limits(store_options, fetched_in_memory_bytes=0)) as fetched:
        found = fetched.fetch(inputs)
    assert kept == [input_file.size_bytes for input_file in inputs]
    assert [source.size_bytes for source in found if not isinstance(source, Refusal)] == kept
    assert store.of("open") == names(inputs)


def test_files_beyond_the_memory_wait_on_the_disk(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory holds what fits and two files besides, however many there are; nothing stays on the disk."""
    inputs = beside(store_options, *[PAGED_ROWS] * 24)
    largest = max(input_file.size_bytes for input_file in inputs)
    store_options = with_limits(store_options, fetched_in_memory_bytes=3 * largest)
    with Fetched(store_options) as before:
        before.fetch(inputs[:5])  # so that what is imported on the way does not count
    with Fetched(store_options) as fetched:
        tracemalloc.start()
        found = fetched.fetch(inputs)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 4 * largest
        assert peak < 7 * largest < sum(input_file.size_bytes for input_file in inputs) / 3
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
    assert store.of("read -1") == names(inputs)
    assert list(temporary.iterdir()) == []


def test_a_large_file_comes_piece_by_piece(
    store_options: WriteSettings, store: Store, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the local disk by requests of a fixed size, in file order, through one open; small ones stay whole."""
    inputs = beside(store_options, PAGED_ROWS, WHOLE_ROWS, PAGED_ROWS)
    large = inputs[1].size_bytes
    store_options = with_limits(store_options, fetched_whole_bytes=large - 1, fetched_piece_bytes=large // 3)
    done = merged(store_options, inputs)
    assert done.bytes_decoded == 0
    assert store.of("read -1") == [names(inputs)[0], names(inputs)[2]]
    pieces = store.of(f"read {large // 3}")
    # three and a rest of no more than two bytes, and one that finds the end
    assert pieces == [names(inputs)[1]] * (4 + (large % 3 > 0))
    assert store.of("open")[:3] == names(inputs)
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
        task = MergeGroup(tuple(replace(file, path=link) for link in links), KEY)
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
    store_options: WriteSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot wait anywhere is decoded, which reads it from storage again."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "missing"))
    inputs = beside(store_options, WHOLE_ROWS, PAGED_ROWS, PAGED_ROWS)
    store_options = with_limits(store_options, fetched_in_memory_bytes=inputs[0].size_bytes)
    monkeypatch.setattr(tempfile, "TemporaryFile", _full)
    done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {"short-read": 2}
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
        merge(MergeGroup(tuple(inputs), KEY), store_options, MERGED)
    assert caught.value.path == inputs[1].path
    assert files_of_table(store_options) == before
    assert store.of("delete") == store.of("create")


WRITES = 36
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
    with pytest.raises(RewriteFailed, match=r"write \d+ failed, what was written is removed"):
        merge(MergeGroup(tuple(inputs), KEY), store_options, MERGED)
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
        merge(MergeGroup(tuple(inputs), KEY, 3), store_options, MERGED)
    assert files_of_table(store_options) == before
    assert set(store.of("delete")) == set(store.of("create"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size_error": 1}, "storage holds {more} bytes of {size}"),
        ({"size_error": -1}, "storage holds {less} bytes of {size}"),
        ({"tail_damaged": True}, "storage gives another footer than was written"),
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
        merge(MergeGroup(tuple(inputs), KEY), store_options, MERGED)
    (output,) = store.of("create")
    assert Path(str(caught.value.path)).name == output
    assert store.of("delete") == [output]
    assert files_of_table(store_options) == before


def test_an_output_that_pyarrow_cannot_describe_is_removed(
    store_options: WriteSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something in an input file's footer that only pyarrow stumbles over shows when the output is complete."""
    inputs = several_ways(store_options)

    def stumble(*_arguments: object) -> None:
        raise OSError("Couldn't deserialize thrift")

    monkeypatch.setattr("icesize.parquet.rewriting.output_file.describe", stumble)
    done = merged(store_options, inputs)
    assert dict(done.decode_reasons) == {"short-read": 4}
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
    assert store.of("read -1") == names(inputs)
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
    done = merge(MergeGroup(tuple(inputs), KEY), store_options, MERGED)
    (file,) = done.files
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert (done.pages_copied > 0, rows_decoded([file])) == (True, TINY_ROWS)
    wanted = sorted(location.removeprefix(f"s3://{bucket}/") for location in (file.path, *(v.path for v in inputs)))
    assert sorted(keys(client, bucket)) == wanted
    stored_bytes = client.get_object(Bucket=bucket, Key=file.path.removeprefix(f"s3://{bucket}/"))["Body"].read()
    found = verify(BytesSource(stored_bytes), "merged")
    assert (found.problems, found.rows) == ((), 2 * PAGED_ROWS + WHOLE_ROWS + TINY_ROWS)
    host = endpoint.removeprefix("http://")
    s3 = S3FileSystem(access_key="key", secret_key="secret", endpoint_override=host, scheme="http", region="us-east-1")

    def ids(location: str) -> list[int]:
        column: pa.ChunkedArray = pq.read_table(location.removeprefix("s3://"), filesystem=s3).column("id")
        return column.to_pylist()

    assert sorted(ids(file.path)) == sorted(i for input_file in inputs for i in ids(input_file.path))
