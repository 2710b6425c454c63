"""The rules of a verification: what each finding means for readers, what to do about it, and which repair concerns it.

What a rule demands is in the function that looks for its findings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from icesize.parquet.verify.entry import BOUNDS, COUNTS, ROWS


class Severity(str, Enum):
    """The meaning of a finding for readers."""

    ERROR = "error"
    """Readers may miss rows, return wrong ones, or fail."""
    WARNING = "warning"
    """It costs readers time only."""


class Kind(str, Enum):
    """The kinds of repairs in their order: what removes entries comes before what counts them."""

    REMOVED = "missing files"
    ONCE = "listed twice"
    DANGLING = "dangling deletes"
    ENTRIES = "wrong entries"
    LISTING = "manifest list"


@dataclass(frozen=True)
class Rule:
    """A statement that metadata, storage and files must keep.

    Attributes:
        name: Its name, such as `manifest counts`.
        advice: What to do about a finding.
        repair: The kind of repair for its findings; None if each needs a decision.
        severity: What a finding means for readers.
    """

    name: str
    advice: str
    repair: Kind | None = None
    severity: Severity = Severity.ERROR


class Found(NamedTuple):
    """A file with what is wrong with it.

    Attributes:
        rule: The rule that is broken.
        path: The file.
        detail: What is wrong with it.
        is_certain: False if the cause or the true value is unknown. The repair of the rule leaves such a finding out.
    """

    rule: Rule
    path: str
    detail: str
    is_certain: bool = True


GONE = "it is not there"
BACK_OR_AGAIN = "Roll back to a snapshot before it, or write the partition again"
_REPAIR_DEEP = "Run `icesize repair --deep`; until then, filters may miss rows"

LOST = Rule(
    "missing files",
    "Restore the file from a backup or an older version of the object. If it is lost for good, `icesize repair` "
    "removes the entries of data files",
    Kind.REMOVED,
)
SIZES = Rule(
    "file sizes",
    "Run `icesize repair`, which corrects the size of a file that is whole; restore one that is cut off",
    Kind.ENTRIES,
)
DAMAGED = Rule("damaged metadata", "Restore the file from a backup, or roll back to a snapshot that does not need it")
WITHOUT_FIELD_IDS = replace(
    DAMAGED,
    advice="The file is whole, but its writer left out the field ids that Iceberg requires, and no Iceberg reader "
    "finds its fields: roll back to a snapshot that does not need it, or write the table again with another writer",
)
STATISTICS = Rule(
    "missing statistics", "Compute the statistics again; readers work without them", severity=Severity.WARNING
)
BACK = Rule(
    "removed and live",
    "Run `icesize compact` or write the file again before snapshots expire: the expiry of Iceberg's Java library "
    "deletes a file that an expired snapshot has removed",
)
LISTED_TWICE = Rule("listed twice", "Run `icesize repair`; until then, its rows count twice", Kind.ONCE)
DANGLING = Rule(
    "dangling deletes", "Run `icesize remove-dangling-deletes` or `icesize repair`", Kind.DANGLING, Severity.WARNING
)
ROW_IDS = Rule(
    "row ids", "Do not rely on row ids; write the files again, or roll back to a snapshot before", Kind.LISTING
)
CONTENTS = Rule("file contents", BACK_OR_AGAIN)
NAN_BOUNDS = Rule(
    "NaN bounds",
    "Nothing has to be done: readers ignore such a bound, and so read the row group for every filter",
    severity=Severity.WARNING,
)
OF_ENTRIES = {
    ROWS: Rule(ROWS, "Run `icesize repair --deep`; until then, counts may be wrong", Kind.ENTRIES),
    COUNTS: Rule(COUNTS, _REPAIR_DEEP, Kind.ENTRIES),
    BOUNDS: Rule(BOUNDS, _REPAIR_DEEP, Kind.ENTRIES),
}
"""The rules of the entries of files, by the names that `parquet.verify` gives them."""
