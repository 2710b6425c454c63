"""Which files of a listing are orphans: needed by nobody, visible, and old enough. No I/O, no clock.

Every doubt means that a file stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote_plus

from pyiceberg.table.metadata import TableMetadata

from icesize.errors import PolicyError
from icesize.table.catalog.locations import is_addressable
from icesize.table.commit import ledger
from icesize.table.storage.listing import Listed
from icesize.table.storage.ownership import is_metadata_file
from icesize.table.storage.reachable import Reachable

DAY_MS = 24 * 3_600_000
"""Least age of a file that may be deleted, also of leftovers of batches that the ledger has passed: merges in the
background carry the number of a committed batch, and a new checkpoint counts from 0 again."""
DEFAULT_OLDER_THAN_MS = 3 * DAY_MS
"""Age at which a file that nobody needs is an orphan: Iceberg's default."""
_OURS = re.compile(r"([0-9a-f]{12})-(\d+)-\d+-\d+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")


@dataclass(frozen=True)
class Found:
    """Files that no state of the table needs: `due` are old enough, `passed` of them ours and left behind."""

    due: tuple[Listed, ...]
    passed: int
    young: int
    unaddressable: int


def check_age(older_than_ms: int) -> None:
    """Refuse ages by which files of a batch that is being written would be orphans. Raises PolicyError."""
    if older_than_ms < DAY_MS:
        raise PolicyError(
            f"'older-than' ({older_than_ms / 1000:.15g} s) must be >= 24 h: a batch that is being written would lose "
            "its files",
            older_than_ms=older_than_ms,
        )


def find_orphans(
    listed: Iterable[Listed], metadata: TableMetadata, reachable: Reachable, now_ms: int, older_than_ms: int
) -> tuple[Found, list[str]]:
    """What of a listing nobody needs, and the metadata files among it, whose owner is to be checked.

    Hidden files are passed over as Iceberg does: those with a segment that begins with `.` or `_` below the table's
    location, unless it belongs to a partition field of such a name. `now_ms` is the time of the storage's clock.
    """
    visible, passed_by = _visibility(metadata), _batches(metadata.properties)
    due, young, passed, unaddressable = [], 0, 0, 0
    metadata_files = []
    for file in listed:
        if not visible(file.location) or file.location in reachable:
            continue
        if is_metadata_file(file.location):
            metadata_files.append(file.location)
        age_ms = now_ms - file.modified_ms
        ours = _is_passed(file.location, passed_by)
        if not is_addressable(file.location):
            unaddressable += 1
        elif age_ms >= older_than_ms or (ours and age_ms >= DAY_MS):
            due.append(file)
            passed += ours
        else:
            young += 1
    due.sort(key=lambda each: each.location)
    return Found(tuple(due), passed, young, unaddressable), metadata_files


def _visibility(metadata: TableMetadata) -> Callable[[str], bool]:
    names = {f.name for spec in metadata.partition_specs for f in spec.fields if f.name[0] in "._"}
    partitions = tuple(f"{written}=" for name in names for written in (name, quote_plus(name)))
    start = len(metadata.location.rstrip("/"))

    def visible(location: str) -> bool:
        segments = location[start:].split("/")
        return not any(s[:1] in ("_", ".") and not s.startswith(partitions) for s in segments)

    return visible


def _batches(properties: Mapping[str, str]) -> dict[str, int]:
    """The newest batch in the table, by the stream's hash in file names."""
    return {ledger.stream_hash(entry.stream_id): entry.batch_id for entry in ledger.entries(properties)}


def _is_passed(location: str, batches: Mapping[str, int]) -> bool:
    """Whether icesize wrote the file for a batch that cannot be written any more: it or a later one is in the table."""
    match = _OURS.fullmatch(location.rpartition("/")[2])
    return match is not None and int(match[2]) <= batches.get(match[1], -1)
