"""The expected rows of the rivals' benchmark: the rows of the stream, changed by each committed statement.

Statements act on committed rows that only their own thread changes. Only their order among each other counts, and
appends of the stream change none of these rows.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("DELETE", "UPDATE", "MERGE")
MODES = ("copy-on-write", "merge-on-read")
FIRST_INSERTED = 10**9
"""Ids from this number on are rows that MERGE inserts; the stream never reaches it."""
INSERTED_V = 10
IDS_PER_STATEMENT = 20

Row = tuple[int, str, int, str]
"""id, part, v, text."""


def row_of(number: int, partitions: int, v: int = 0) -> Row:
    """Return the row with this id, which determines its partition and its text."""
    return number, f"h{number % partitions}", v, hashlib.sha1(str(number).encode()).hexdigest()


@dataclass(frozen=True)
class Statement:
    """A row-level statement on ids of one partition; `inserted` ids are new, and only MERGE has them."""

    kind: str
    mode: str
    part: str
    ids: tuple[int, ...]
    inserted: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Kind and mode, by which failures are counted."""
        return f"{self.kind} {self.mode}"

    def sql(self, table: str) -> str:
        """Return the statement for Spark; its partition is a constant, so that Iceberg plans only that partition."""
        listed = ", ".join(map(str, self.ids))
        if self.kind == "DELETE":
            return f"DELETE FROM {table} WHERE part = '{self.part}' AND id IN ({listed})"
        if self.kind == "UPDATE":
            return f"UPDATE {table} SET v = v + 1 WHERE part = '{self.part}' AND id IN ({listed})"
        values = ", ".join(f"({i}L)" for i in (*self.ids, *self.inserted))
        return (
            f"MERGE INTO {table} t USING (SELECT id FROM VALUES {values} AS s(id)) s "
            f"ON t.part = '{self.part}' AND t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + {INSERTED_V} "
            f"WHEN NOT MATCHED THEN INSERT (id, part, v, text) "
            f"VALUES (s.id, '{self.part}', {INSERTED_V}, sha1(cast(s.id AS string)))"
        )


@dataclass
class Chooser:
    """Chooses statements by a seed, on the first `touched` partitions; the caller passes committed ones to `landed`."""

    partitions: int
    touched: int
    rng: random.Random
    deleted: set[int] = field(default_factory=set)
    inserted: list[int] = field(default_factory=list)
    _next_inserted: int = FIRST_INSERTED

    def choose(self, kind: str, mode: str, committed_rows: int) -> Statement:
        """Return a statement on live rows of one partition: the stream's first `committed_rows`, or inserted rows.

        Raises ValueError if the partition has no live rows.
        """
        number = self.rng.randrange(self.touched)
        older = [i for i in self.inserted if i % self.partitions == number]
        live = [i for i in (*range(number, committed_rows, self.partitions), *older) if i not in self.deleted]
        if not live:
            raise ValueError(f"Cannot choose rows of partition h{number}: it has none")
        ids = tuple(self.rng.sample(live, min(IDS_PER_STATEMENT, len(live))))
        inserted: tuple[int, ...] = ()
        if kind == "MERGE":
            first = self._next_inserted + (number - self._next_inserted) % self.partitions
            inserted = tuple(range(first, first + 5 * self.partitions, self.partitions))
            self._next_inserted = inserted[-1] + 1
        return Statement(kind, mode, f"h{number}", ids, inserted)

    def landed(self, statement: Statement) -> None:
        """Record a committed statement, so that the next ones use its inserted rows and not its deleted ones."""
        if statement.kind == "DELETE":
            self.deleted.update(statement.ids)
        self.inserted.extend(statement.inserted)


def expected_rows(appended: int, partitions: int, landed: Iterable[Statement]) -> dict[int, Row]:
    """Return the rows by id, after the stream's ids 0 to `appended` - 1 and these statements were committed."""
    values = dict.fromkeys(range(appended), 0)
    for statement in landed:
        if statement.kind == "DELETE":
            for number in statement.ids:
                del values[number]
            continue
        for number in statement.ids:
            values[number] += 1 if statement.kind == "UPDATE" else INSERTED_V
        values |= dict.fromkeys(statement.inserted, INSERTED_V)
    return {number: row_of(number, partitions, v) for number, v in values.items()}


@dataclass(frozen=True)
class Differences:
    """Ids of wrong rows; `resurrected` ones were deleted before, or belong to statements that failed."""

    lost: tuple[int, ...] = ()
    duplicated: tuple[int, ...] = ()
    resurrected: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.lost or self.duplicated or self.resurrected or self.changed)

    def __str__(self) -> str:
        parts = vars(self).items()
        return ", ".join(f"{len(ids)} {name}" + (f" {list(ids[:5])}" if ids else "") for name, ids in parts)


def compare(expected: Mapping[int, Row], found: Iterable[Row]) -> Differences:
    """Return the differences between the rows found and those expected."""
    counts: Counter[int] = Counter()
    changed: set[int] = set()
    for row in found:
        counts[row[0]] += 1
        if row[0] in expected and row != expected[row[0]]:
            changed.add(row[0])
    return Differences(
        lost=tuple(sorted(expected.keys() - counts.keys())),
        duplicated=tuple(sorted(i for i, n in counts.items() if n > 1)),
        resurrected=tuple(sorted(counts.keys() - expected.keys())),
        changed=tuple(sorted(changed)),
    )


def reason_of(error: str) -> str:
    """Return the line of a Spark error that has the reason, without details that vary between failures.

    It is the innermost of Iceberg's own exceptions, if there is one, or an exception of Python code called by Spark.
    """
    lines = [line for line in error.splitlines() if line.strip() and not line.strip().startswith("at ")]
    iceberg = [line for line in lines if "org.apache.iceberg.exceptions." in line]
    python = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Conflict|Unknown|Mismatch): ", line)]
    line = (iceberg or (python if "Traceback" in error else []) or lines[:1] or ["no message"])[-1].strip()
    line = re.sub(r"^.*?org\.apache\.iceberg\.exceptions\.", "", line)
    line = re.sub(r"file:[^\s,\]})]+", "FILE", line)
    line = re.sub(r"GenericDe?[a-zA-Z]*File\{.*", "FILE", line)
    return re.sub(r"\d{5,}", "N", line)[:160]


def paths_in(error: str) -> tuple[str, ...]:
    """Return data files that a Spark error names, as plain paths, in their order."""
    found = re.findall(r"file:/*(/[^\s,\]})]+?\.parquet)", error)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Attempt:
    """One statement of a rival; a failed one has a `reason` and a `culprit`, the writer that removed its files.

    `known`: a statement of the same kind was committed in the same partition before; a table records no failed ones.
    """

    label: str
    seconds: float
    known: bool = False
    reason: str | None = None
    culprit: str | None = None


def share(part: int, whole: int) -> str:
    """Return a share in words, as in `57 of 60 (95.0 %)`."""
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def by_label(attempts: Sequence[Attempt]) -> dict[str, str]:
    """Return the successful statements of each kind, in words."""
    tried, ok = Counter(a.label for a in attempts), Counter(a.label for a in attempts if a.reason is None)
    return {label: share(ok[label], count) for label, count in sorted(tried.items())}


def failures(attempts: Sequence[Attempt]) -> Counter[str]:
    """Return the failed statements by kind, culprit and reason."""
    return Counter(f"{a.label}, {a.culprit}: {a.reason}" for a in attempts if a.reason is not None)
