"""Merges that copy where input files are damaged or cannot be copied: rows are never wrong, nothing is left over, and
what cannot be copied is decoded."""

from __future__ import annotations

import io
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import LocalSource
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
    WHOLE_ROWS,
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
from tests.support.parquet_files import REMOTE, fact, local, rows_decoded, settings_of, sources_of, write_one

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
    done = merge(MergeTask(tuple(inputs), KEY, outputs), options, MERGED)
    for file in done.files:
        found = verify_file(LocalSource(local(file.path)), "merged")
        assert (found.problems, found.rows) == ((), file.rows)
    outputs_now = {Path(local(file.path)) for file in done.files}
    after = {path: path.read_bytes() for path in files_of_table(options)}
    assert {path: data for path, data in after.items() if path not in outputs_now} == before
    return done


def fails(options: WriteSettings, inputs: list[FileFact]) -> RewriteFailed:
    """The error; all files as they were and no other one is there."""
    before = {path: path.read_bytes() for path in files_of_table(options)}
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeTask(tuple(inputs), KEY), options, MERGED)
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
    done = attempt(MergeTask(tuple(inputs), KEY), options)
    if isinstance(done, RewriteFailed):
        assert (done.path, files_of_table(options)) == (bad.path, before)
        return
    assert [p for f in done.files for p in verify_file(LocalSource(local(f.path)), "merged").problems] == []
    good = content(input_file.path for input_file in inputs if input_file is not bad)
    assert content(file.path for file in done.files) == good + Counter(spelt_rows(rows(count, START)))


def attempt(task: MergeTask, options: WriteSettings) -> MergeResult | RewriteFailed:
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
        done = attempt(MergeTask((*good, bad), KEY), options)
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
