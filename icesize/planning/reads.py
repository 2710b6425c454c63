"""The reads of a table, as its queries show them: how often, of which partitions, by which columns. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_KINDS = 12
"""Kinds of reads that are distinguished; the rarer ones count as the most frequent one."""


@dataclass(frozen=True)
class Reads:
    """Reads of one kind, by their number per day.

    Partitions are in the order of their first rows. A read skips the newest `skipped` ones, and reads the `partitions`
    before them, or all for None. It selects single values of the columns `points`, and the bounds of the files leave
    `share` of the files of these partitions.
    """

    per_day: float
    partitions: int | None = None
    skipped: int = 0
    points: tuple[str, ...] = ()
    share: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are not at their default, for JSON."""
        document: dict[str, Any] = {"per_day": _significant(self.per_day, 4), "points": list(self.points)}
        document |= {"partitions": self.partitions, "skipped": self.skipped, "share": _significant(self.share, 3)}
        usual: dict[str, Any] = {"partitions": None, "skipped": 0, "points": [], "share": 1.0}
        return {key: value for key, value in document.items() if key not in usual or value != usual[key]}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Reads:
        """Return the value of `to_dict`.

        Raises TypeError or ValueError for another document.
        """
        reads = cls(**{**document, "points": tuple(map(str, document.get("points", ())))})
        if not (reads.per_day > 0 and reads.skipped >= 0 and 0 <= reads.share <= 1):
            raise ValueError(f"'{document}' are no reads")
        return reads


def together(reads: Iterable[Reads], days: float) -> tuple[Reads, ...]:
    """Return reads that were seen in so many days, each kind once, the most frequent first."""
    seen = Counter[Reads]()
    for each in reads:
        kind = replace(each, per_day=1.0, share=_significant(each.share, 1))
        skipped, partitions = int(_significant(each.skipped, 1)), each.partitions
        kind = replace(kind, skipped=skipped, partitions=partitions and int(_significant(partitions, 1)))
        seen[kind] += 1
    frequent = seen.most_common(MOST_KINDS)
    rest = sum(seen.values()) - sum(times for _, times in frequent)
    counts = [times + (rest if place == 0 else 0) for place, (_, times) in enumerate(frequent)]
    return tuple(replace(kind, per_day=times / days) for (kind, _), times in zip(frequent, counts, strict=True))


def _significant(number: float, digits: int) -> float:
    """Return a number with so many significant digits: 7, 20, 300 and 0.04 with one."""
    return float(f"{number:.{digits}g}")


def columns_read(reads: Sequence[Reads]) -> tuple[str, ...]:
    """Return all columns of which reads select single values, the most frequent first."""
    counts = Counter[str]()
    for each in reads:
        counts.update(dict.fromkeys(each.points, each.per_day))
    return tuple(name for name, _ in counts.most_common())
