"""Merges of which one input file is damaged: `python -m tests.support.damaged_inputs PROGRESS FIRST COUNT`.

Each number stands for one damage, always the same. Prints what became of COUNT of them from the number FIRST on, as
JSON; the file PROGRESS tells which one it is at and what it does, since readers end the process for some damage.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.pages import walk
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from icesize.redaction import redacted
from tests.support.copying import KEY, MERGED, spelt_rows
from tests.support.footers import footer_of, mutants, raw_footer, with_footer
from tests.support.internal_errors import watched
from tests.support.parquet_files import REMOTE, local
from tests.support.whole_tables import LIMITS, WholeTable, Writer, file_bytes, rows_of, settings_of_table

MOST_BYTES = 2**30
"""That a merge of files of some kB may ask the system for."""
_HUNG_S = 60
"""For one merge, which takes milliseconds, and reading what came out."""

_FLAT = ("mode", "key", "price", "discount", "comment")
_NESTED = ("record", "items", "deep")
_BLOOM: dict[str, Any] = {"bloom_filter_options": {"key": True}}
_DELTA: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {"key": "DELTA_BINARY_PACKED", "comment": "DELTA_BYTE_ARRAY", "mode": "DELTA_LENGTH_BYTE_ARRAY"},
}
_WHOLE = replace(LIMITS, good_group_rows=80)
_LARGE = replace(LIMITS, whole_file_bytes=5_000)
"""Files are read as those are of which all rows would be too large at once."""
_TEXTS = ("flag", "mode", "comment", "key")


def _table(names: Sequence[str], how: str, limits: Limits = LIMITS, **options: object) -> WholeTable:
    """Two files, of which one gets damaged."""
    common = {"compression": "none", "max_rows_per_page": 50, **options}
    files = tuple(Writer(90, number, options=common) for number in (1, 2))
    return WholeTable(dict.fromkeys(names, how), files, limits=limits)


TABLES: tuple[WholeTable, ...] = (
    _table(_FLAT, "different"),
    _table(_FLAT, "different", data_page_version="2.0"),
    _table(_FLAT, "different", compression="snappy"),
    _table(_FLAT, "same", write_page_checksum=True),
    _table(_FLAT, "none", compression="zstd"),
    _table(_FLAT, "none", **_DELTA),
    _table(_FLAT, "overflowing", dictionary_pagesize_limit=200),
    _table(_FLAT, "different", _WHOLE, **_BLOOM),
    replace(_table(_FLAT, "different", LIMITS), columns={**dict.fromkeys(_FLAT, "none"), "mode": "different"}),
    _table(_NESTED, "different"),
    _table(_NESTED, "different", data_page_version="2.0", compression="lz4"),
    _table(_NESTED, "none", row_group_size=30),
    _table(_NESTED, "different", compression="zstd", data_page_size=200),
    _table(_NESTED, "same", _WHOLE),
    _table(("flag", "returned", "tax", "mark", "pairs", "at"), "different", write_page_index=False),
    replace(_table(_TEXTS, "different", _LARGE), copying=False),
    replace(_table(_TEXTS, "same", _LARGE, row_group_size=30, data_page_version="2.0"), copying=False),
    replace(_table(_TEXTS, "different", replace(_LARGE, batch_bytes=2_000), compression="zstd"), copying=False),
)


@dataclass(frozen=True)
class IntactTable:
    """A table before the damage: its files and their rows."""

    settings: WriteSettings
    files: tuple[bytes, ...]
    rows: tuple[Counter[str], ...]


@dataclass(frozen=True)
class Damage:
    """What a number stands for."""

    intact: IntactTable
    damaged: bytes
    is_first: bool
    remote: bool
    claims_old_size: bool


@cache
def intact_table(number: int, folder: Path) -> IntactTable:
    """The files of a table."""
    table = TABLES[number]
    settings = settings_of_table(table, folder / str(number))
    rows = [rows_of(table, settings.arrow_schema, at) for at in range(len(table.files))]
    files = [file_bytes(table, some, writer) for some, writer in zip(rows, table.files, strict=True)]
    return IntactTable(settings, tuple(files), tuple(Counter(_spelt(some)) for some in rows))


def damage_of(number: int, folder: Path) -> Damage:
    """The damage that a number stands for; `folder` is where tables are."""
    chance = random.Random(number)
    files = intact_table(chance.randrange(len(TABLES)), folder)
    is_first = chance.random() < 0.5
    data = files.files[0 if is_first else 1]
    if chance.random() < 0.25:
        damaged = with_footer(data, _mutant(data, chance))
    else:
        damaged = data
        for _ in range(chance.choice([1, 1, 1, 2, 5])):
            damaged = _damaged(damaged, _place(data, chance), chance)
    return Damage(files, damaged, is_first, chance.random() < 0.2, chance.random() < 0.1)


def _mutant(data: bytes, chance: random.Random) -> bytes:
    by_fields, by_bytes = mutants(data, 2, chance.getrandbits(32))
    return chance.choice([by_fields, by_bytes])


def _place(data: bytes, chance: random.Random) -> range:
    """A part of the file, each kind as often as the others."""
    places = parts_of(data)
    return chance.choice(places[chance.choice(list(places))])


@cache
def parts_of(data: bytes) -> dict[str, list[range]]:
    """Where the parts of a sound file are, by their kind."""
    footer = footer_of(data)
    found: dict[str, list[range]] = {"anywhere": [range(len(data))]}
    found["footer"] = [range(len(data) - 8 - len(raw_footer(data)), len(data) - 8)]
    for chunk, column in (
        (c, k) for group in footer.row_groups for c, k in zip(group.chunks, footer.columns, strict=True)
    ):
        pages = walk(data[chunk.start : chunk.end], column.flat, chunk.values)
        for kind, some in (("dictionary", [pages.dictionary]), ("page", pages.data)):
            for page in some:
                if page is None:
                    continue
                at = chunk.start + page.at
                found.setdefault(f"{kind} header", []).append(range(at, at + page.header_bytes))
                if page.size_bytes > page.header_bytes:
                    found.setdefault(kind, []).append(range(at + page.header_bytes, at + page.size_bytes))
        for kind, place in (("offset index", chunk.offset_index), ("column index", chunk.column_index)):
            if place is not None:
                found.setdefault(kind, []).append(range(place[0], sum(place)))
    return found


def _damaged(data: bytes, place: range, chance: random.Random) -> bytes:
    """With one change that begins at a place."""
    at = min(chance.choice(place), len(data))
    length = chance.choice([1, 1, 2, 4, 9, 40])
    in_place: list[Callable[[], bytes]] = [
        lambda: bytes([chance.randrange(256)]),
        lambda: bytes([(data[at] + chance.choice([-2, -1, 1, 2])) % 256]) if at < len(data) else b"",
        lambda: bytes([data[at] ^ 1 << chance.randrange(8)]) if at < len(data) else b"",
        lambda: chance.randbytes(length),
        lambda: chance.choice([b"\0", b"\xff", b"\x7f", b"\x80"]) * length,
        lambda: _piece(data, length, chance),
    ]
    new = chance.choice(in_place)()
    if chance.random() < 0.85:
        return data[:at] + new + data[at + len(new) :]
    # all that follows lies elsewhere, or there is nothing
    rest = [data[at:], data[at + length :], data[at + chance.randrange(9) :], b""]
    return data[:at] + new + chance.choice(rest)


def _piece(data: bytes, length: int, chance: random.Random) -> bytes:
    other = chance.randrange(len(data) or 1)
    return data[other : other + length]


class Trial:
    """Damages one after the other, in a folder of their own."""

    def __init__(self, folder: Path, progress: int) -> None:
        self._folder, self._progress = folder, progress
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, number: int) -> None:
        """One damage: what became of it is counted, or what is wrong is told."""
        damage = damage_of(number, self._folder)
        data = Path(local(damage.intact.settings.table_location)) / "data"
        data.mkdir(parents=True, exist_ok=True)
        inputs = _stored(damage, data)
        try:
            self.outcomes[self._outcome(number, damage, inputs)] += 1
        except Exception as error:
            self.problems.append(f"{number}: {type(error).__name__}: {redacted(str(error))[-1500:]}")
        for path in data.iterdir():
            path.unlink()

    def _at(self, number: int, what: str) -> None:
        os.pwrite(self._progress, f"{number:>12} {what:<8}".encode(), 0)

    def _outcome(self, number: int, damage: Damage, inputs: Sequence[FileFact]) -> str:
        bad = inputs[0 if damage.is_first else 1]
        settings = replace(damage.intact.settings, io_properties=REMOTE) if damage.remote else damage.intact.settings
        self._at(number, "merging")
        size = _memory("VmSize")
        peak = _memory("VmPeak")
        with watched() as bugs:
            done = attempt(settings, inputs)
        assert not bugs, bugs[0]
        if _memory("VmPeak") > max(peak, size + MOST_BYTES):
            raise AssertionError(f"{_memory('VmPeak') - size} bytes were asked for")
        files = {Path(local(file.path)) for file in inputs}
        if isinstance(done, RewriteFailed):
            assert done.path == bad.path, f"the error names {done.path}: {done}"
            assert set(Path(local(bad.path)).parent.iterdir()) == files, "something is left"
            return "refused"
        self._at(number, "reading")
        return _judged(damage, done, settings, inputs)


def _stored(damage: Damage, folder: Path) -> list[FileFact]:
    stored = []
    for at, (data, rows) in enumerate(zip(damage.intact.files, damage.intact.rows, strict=True)):
        is_bad = at == (0 if damage.is_first else 1)
        path, content = folder / f"{at}.parquet", damage.damaged if is_bad else data
        path.write_bytes(content)
        size_bytes = len(data) if damage.claims_old_size else len(content)
        stored.append(FileFact(str(path), size_bytes, rows.total(), KEY))
    return stored


def attempt(settings: WriteSettings, inputs: Sequence[FileFact]) -> MergeResult | RewriteFailed:
    """What became of a merge."""
    try:
        return merge(MergeTask(tuple(inputs), KEY), settings, MERGED)
    except RewriteFailed as error:
        return error


def _judged(damage: Damage, done: MergeResult, settings: WriteSettings, inputs: Sequence[FileFact]) -> str:
    """How the output stands to what the damaged file reads as, which is what decoding gives of it."""
    found, before = _rows(done), sum(damage.intact.rows, Counter[str]())
    others = damage.intact.rows[1 if damage.is_first else 0]
    if not done.bytes_copied:
        assert others <= (found or Counter[str]()), "rows of the sound file are lost"
        return "decoded, as before the damage" if found == before else "decoded, as the damaged file reads"
    if found == before:
        _check_claims(done, inputs)
        return "copied, as before the damage"
    decoded = attempt(replace(settings, merge_by_copying=False), inputs)
    expected = None if isinstance(decoded, RewriteFailed) else _rows(decoded)
    if expected is None:
        assert found is None or others <= found, "rows of the sound file are lost"
        return "copied, unreadable as the damaged file" if found is None else "copied, the damaged file is unreadable"
    assert found == expected, f"{_difference(found, expected)} by {dict(done.decode_reasons)}"
    _check_claims(done, inputs)
    return "copied, as the damaged file reads"


def _check_claims(done: MergeResult, inputs: Sequence[FileFact]) -> None:
    """Nothing that an output says of itself is wrong but what an input file says wrongly, too."""
    old = _claims(file.path for file in inputs)
    if any(not column for column, _ in old):
        return  # of a footer that cannot be read no more is told
    new = _claims(file.path for file in done.files) - old
    assert not new, f"the output says wrongly {new}"


def _claims(paths: Iterable[str]) -> set[tuple[str, str]]:
    """What files say wrongly of themselves, by column, without the numbers in it."""
    problems = [p for path in paths for p in verify_file(LocalSource(local(path)), "file").problems]
    told = [problem.split(": ", 2) for problem in problems]
    return {(place.partition(", ")[2], re.split(r"[-0-9'\"]", what)[0]) for _, place, what in told}


def _rows(done: MergeResult) -> Counter[str] | None:
    """The rows of all outputs; None when they cannot be read."""
    try:
        return Counter(row for file in done.files for row in _spelt(pq.read_table(local(file.path))))
    except (pa.ArrowException, OSError, ValueError, OverflowError):
        return None


def _spelt(rows: pa.Table) -> list[str]:
    """Each row as text; damaged text may be no text, and damaged dates none of Python's."""
    return spelt_rows(rows.cast(pa.schema([field.with_type(_raw(field.type)) for field in rows.schema])))


def _raw(kind: pa.DataType) -> pa.DataType:
    """The same type with bytes where it has text, and numbers where it has dates."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_raw(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_raw(kind.value_type)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_raw(kind.item_type))
        return pa.map_(kind.key_field.with_type(_raw(kind.key_type)), item)
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.binary() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else kind


def _difference(found: Counter[str] | None, expected: Counter[str]) -> str:
    if found is None:
        return "the output cannot be read, the damaged file can"
    return f"rows differ: {list((found - expected).items())[:2]} instead of {list((expected - found).items())[:2]}"


def _memory(what: str) -> int:
    """Bytes of address space that this process has, or had at most."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(what + ":"))
    return int(line.split()[1]) * 1024


def main(progress: Path, first: int, count: int) -> None:
    """Try them all, and tell what became of them."""
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder, open(progress, "wb", buffering=0) as file:
        trial = Trial(Path(folder), file.fileno())
        for number in range(first, first + count):
            faulthandler.dump_traceback_later(_HUNG_S, exit=True)
            trial.run(number)
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"outcomes": trial.outcomes, "problems": trial.problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
