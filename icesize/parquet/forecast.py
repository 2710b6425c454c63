"""How the bytes of planned merges are expected to move, from a bounded number of footers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from icesize.parquet.lanes import LEAST_COPIED_BYTES, Judged, judge
from icesize.parquet.refusal import Refusal
from icesize.parquet.settings import WriteSettings
from icesize.parquet.storage import Storage
from icesize.parquet.wanted import footer_or_refusal, forbidden, likely_copied, wanted_of
from icesize.planning.layout import FileFact
from icesize.planning.plan import Forecast, MergeGroup

MOST_GROUPS = 16
FILES_PER_GROUP = 4
"""Of so many groups, spread over the plan, so many files each are looked at: 64 small reads."""
COPY_COST = 1 / 8
"""Time of copying a byte by pages, of decoding and encoding it: 500 MB/s against 65."""
_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Stored:
    """A data file of which only the footer is read."""

    storage: Storage
    file: FileFact

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    def read(self, at: int, size_bytes: int) -> bytes:
        return self.storage.tail(self.file.path, self.file.size_bytes, self.file.size_bytes - at)[:size_bytes]


def forecast(groups: Sequence[MergeGroup], settings: WriteSettings) -> Forecast:
    """What merging `groups` would copy and decode; files that were not looked at are taken to be like those that were.

    Dictionaries are not compared, and a merge may still find a reason to decode. A file that cannot be read counts as
    decoded.
    """
    size = sum(group.size_bytes for group in groups)
    files = sum(len(group.victims) for group in groups)
    if (reason := forbidden(settings)) is not None:
        return Forecast(0, size, 0, {reason.value: files})
    likely = {id(g): likely_copied(g.victims, settings) for g in groups}
    worth = [g for g in groups if sum(v.size_bytes for v in likely[id(g)]) >= LEAST_COPIED_BYTES]
    seen = list(_look(([*_spread(likely[id(g)], FILES_PER_GROUP)] for g in _spread(worth, MOST_GROUPS)), settings))
    possible = sum(v.size_bytes for g in worth for v in likely[id(g)])
    seen_bytes = sum(file.size_bytes for file, _ in seen)
    copied_bytes = sum(file.size_bytes for file, judged in seen if judged.refused is None)
    share = possible / seen_bytes if seen_bytes else 0.0
    copied, pages = round(share * copied_bytes), round(share * sum(judged.pages for _, judged in seen))
    codes = Counter(judged.refused.code.value for _, judged in seen if judged.refused is not None)
    tiny = files - sum(len(likely[id(g)]) for g in worth)
    return Forecast(copied, size - copied, pages, dict(codes + Counter({Refusal.TINY.value: tiny})), len(seen))


def work_bytes(victims: Sequence[FileFact], settings: WriteSettings) -> int:
    """How much work merging these files is likely to be, in bytes that are decoded and encoded again.

    Known from manifest entries alone: files that are not too small to be copied cost `COPY_COST` of their bytes.
    """
    size = sum(victim.size_bytes for victim in victims)
    if forbidden(settings) is not None:
        return size
    likely = sum(victim.size_bytes for victim in likely_copied(victims, settings))
    return size - round((1 - COPY_COST) * likely) if likely >= LEAST_COPIED_BYTES else size


def _look(groups: Iterable[list[FileFact]], settings: WriteSettings) -> Iterable[tuple[FileFact, Judged]]:
    wanted = settings.derived(wanted_of)
    with ThreadPoolExecutor(_THREADS) as pool:
        for files in groups:
            stored = [_Stored(settings.storage, file) for file in files]
            yield from zip(files, judge(list(pool.map(footer_or_refusal, stored)), wanted), strict=True)


def _spread(items: Sequence[Any], most: int) -> Iterable[Any]:
    """Up to `most` of them, at equal distances."""
    return (items[i * len(items) // min(most, len(items))] for i in range(min(most, len(items))))
