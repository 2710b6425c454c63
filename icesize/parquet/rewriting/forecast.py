"""A forecast of how planned merges move bytes, from a bounded number of footers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap

from icesize.concurrency import concurrently
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.pages import data_pages, dictionary_page
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import Source, StreamSource
from icesize.parquet.rewriting.copy_merge import CopyPlan, plan_copy
from icesize.parquet.rewriting.copy_or_decode import Candidate, candidate, forbidden, judge, likely_copied
from icesize.planning.files import FileFact
from icesize.planning.plan import Forecast, MergeTask

MOST_GROUPS = 16
FILES_PER_GROUP = 4
"""Groups, spread over the plan, and files of each that are looked at: 64 small reads."""
COPY_COST = 1 / 8
"""Time of copying a byte by pages, of decoding and encoding it: 500 MB/s against 65."""


class _Stored(StreamSource):
    """A data file whose footer and dictionaries are read, each of them once."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._read: dict[tuple[int, int], bytes] = {}

    def read(self, at: int, size_bytes: int) -> bytes:
        if (at, size_bytes) not in self._read:
            self._read[at, size_bytes] = super().read(at, size_bytes)
        return self._read[at, size_bytes]

    def read_into(self, at: int, target: memoryview) -> None:
        target[:] = self.read(at, len(target))

    def stream(self) -> Any:
        return self._stream


@dataclass(frozen=True)
class _Scan:
    """The result of a scan of some files of a group: their bytes, and how they move."""

    bytes_seen: int
    bytes_copied: int = 0
    pages: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)


def forecast(groups: Sequence[MergeTask], settings: WriteSettings) -> Forecast:
    """Return the bytes that merging `groups` would copy and decode.

    Files that were not scanned are assumed to be like the scanned ones. The merge itself decides with the same function
    (`plan_copy`), from footers and dictionaries. So a merge whose files were all scanned does as forecast, unless pages
    turn out to be damaged. Dictionaries are a small read for each column of the files whose pages would be joined. A
    file that cannot be read counts as decoded.
    """
    settings, size = settings.with_lineage, sum(group.size_bytes for group in groups)
    reason = Refusal.MOVED if groups and groups[0].moves else forbidden(settings)
    if reason is not None:
        return Forecast(0, size, 0, {reason.value: sum(len(group.inputs) for group in groups)})
    likely = [likely_copied(group.inputs, settings) for group in groups]
    worth = [n for n, files in enumerate(likely) if _bytes_of(files) >= settings.limits.least_copied_bytes]
    chosen = [*_spread(worth, MOST_GROUPS)]
    seen = [_scan(groups[n], likely[n], settings) for n in chosen]
    seen_bytes = sum(scan.bytes_seen for scan in seen)
    share = sum(_bytes_of(likely[n]) for n in worth) / seen_bytes if seen_bytes else 0.0
    copied, pages = round(share * sum(s.bytes_copied for s in seen)), round(share * sum(s.pages for s in seen))
    codes = sum((Counter(scan.codes) for scan in seen), Counter[str]())
    # the codes of a scanned group include all of its files already
    others = set(range(len(groups))).difference(chosen)
    codes[Refusal.TINY.value] += sum(len(groups[n].inputs) for n in others)
    codes[Refusal.TINY.value] -= sum(len(likely[n]) for n in others.intersection(worth))
    return Forecast(copied, size - copied, pages, dict(+codes))


def _bytes_of(files: Iterable[FileFact]) -> int:
    return sum(file.size_bytes for file in files)


def work_bytes(inputs: Sequence[FileFact], settings: WriteSettings) -> int:
    """Return the likely work of merging these files, in bytes that are decoded and encoded again.

    It follows from manifest entries alone: files that are not too small to be copied cost `COPY_COST` of their bytes.
    """
    size = _bytes_of(inputs)
    if forbidden(settings) is not None:
        return size
    likely = _bytes_of(likely_copied([file for file in inputs if not file.delete_files], settings))
    return size - round((1 - COPY_COST) * likely) if likely >= settings.limits.least_copied_bytes else size


def _scan(group: MergeTask, likely: Sequence[FileFact], settings: WriteSettings) -> _Scan:
    """Plan a merge of a few files of the group; of all of them if the group has only a few."""
    files = [*_spread(likely, FILES_PER_GROUP)]
    whole = len(files) == len(likely)
    facts, outputs = (group.inputs, group.outputs) if whole else (tuple(files), 1)
    tiny = 0 if whole else len(group.inputs) - len(likely)
    bytes_seen = _bytes_of(files)

    # deletes are not read: a row of the first row group represents the deleted rows
    deleted = {file.path: BitMap([0]) for file in facts if file.delete_files}
    with ExitStack() as opened:

        def find(wanted: Sequence[FileFact]) -> list[Source | Refusal]:
            return list(concurrently(lambda file: _stored(file, settings, opened), wanted))

        try:
            plan = plan_copy(facts, outputs, settings, find, bytes_seen / _bytes_of(likely), deleted)
        except CopyRefused as refused:
            codes = Counter({refused.code.value: len(facts), Refusal.TINY.value: tiny})
            return _Scan(bytes_seen, codes=codes)
        copied = _bytes_of(facts) - plan.bytes_decoded
        codes = plan.decode_reasons + Counter({Refusal.TINY.value: tiny})
        return _Scan(bytes_seen, copied, _pages(plan), codes)


def _stored(file: FileFact, settings: WriteSettings, opened: ExitStack) -> Source | Refusal:
    """Open the file, for `opened` to close, and read what a plan needs of it.

    Runs in threads, because a remote read is mostly waiting.
    """
    try:
        source = _Stored(opened.enter_context(settings.storage.stream(file.path, file.size_bytes)))
        if isinstance(found := candidate(file, source, settings), Candidate):
            judge([found], settings)
            groups = found.footer.row_groups if found.has_pages else []
            for chunk in (chunk for group in groups for chunk in group.chunks):
                dictionary_page(source, chunk)
    except CopyRefused as refused:
        return refused.code
    except OSError:
        return Refusal.SHORT_READ
    return source


def _pages(plan: CopyPlan) -> int:
    """Return the pages that are moved one by one, as footers count them."""
    return sum(
        data_pages(chunk)
        for run in plan.runs
        for part in run.parts
        for column, chunk in zip(part.footer.columns, part.group.chunks, strict=True)
        if column.top not in run.plan.reencode
    )


def _spread(items: Sequence[Any], most: int) -> Iterable[Any]:
    """Return up to `most` of the items, at equal distances."""
    return (items[i * len(items) // min(most, len(items))] for i in range(min(most, len(items))))
