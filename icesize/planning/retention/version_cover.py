"""The fewest snapshots in which every version of a partition that is due can be read.

A version is readable in every commit from the one that made it to the one before the next that touched its partition:
an interval of the history. Choosing the fewest commits that hit all intervals is interval stabbing; to go through them
by their last commit, and take that one where nothing chosen hits, is optimal: the intervals that made it choose have no
commit in common, so each needs its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icesize.planning.files import PartitionKey
from icesize.planning.retention.ancestry import SnapshotFact, is_one_commit


class Version(NamedTuple):
    """A version of a partition: readable in the commits `first` .. `last` of the history, both included."""

    partition: PartitionKey
    first: int
    last: int


class CoveredCommit(NamedTuple):
    """One commit as its readers see it: its last snapshot and all partitions that it touched."""

    snapshot_id: int
    timestamp_ms: int
    touched: frozenset[PartitionKey]


@dataclass(frozen=True)
class Cover:
    """The commits that keep versions readable which the newest run does not have.

    `held` is the position of a commit outside that run -> the versions that need it; other rules keep some of them
    anyway. `lost` are the versions given up for lack of room, and `missing` is the number of commits that they would
    need.
    """

    held: Mapping[int, Sequence[Version]]
    lost: Sequence[Version]
    missing: int


def covered_commits(history: Sequence[SnapshotFact]) -> list[CoveredCommit]:
    """Return the commits of a history, oldest first; snapshots of one icesize commit are one."""
    commits: list[CoveredCommit] = []
    for position, snapshot in enumerate(history):
        touched = snapshot.touched
        if position and is_one_commit(history[position - 1], snapshot):
            touched |= commits.pop().touched
        commits.append(CoveredCommit(snapshot.snapshot_id, snapshot.timestamp_ms, touched))
    return commits


def due_versions(
    commits: Sequence[CoveredCommit], from_first: bool, keep_versions: int, since_ms: int
) -> list[Version]:
    """Return the newest `keep_versions` versions of every partition that a commit at or after `since_ms` touched.

    `from_first` is True if the history begins with the table's first snapshot. Otherwise, the oldest known state counts
    as one version of each partition that it did not touch.
    """
    wanted: set[PartitionKey] = set()
    wanted.update(*(commit.touched for commit in commits if commit.timestamp_ms >= since_ms))
    # of each partition: the last commit of its next older version, and how many are still to be found
    open_ended = {partition: [len(commits) - 1, keep_versions] for partition in wanted}
    versions: list[Version] = []
    for position in range(len(commits) - 1, -1, -1):
        # an intersection of sets hashes nothing again
        for partition in commits[position].touched & wanted:
            state = open_ended[partition]
            versions.append(Version(partition, position, state[0]))
            state[0] = position - 1
            state[1] -= 1
            if not state[1]:
                wanted.remove(partition)
    if not from_first:
        versions += [Version(partition, 0, last) for partition in wanted if (last := open_ended[partition][0]) >= 0]
    return versions


def cover(versions: Collection[Version], run: Collection[int], others: Collection[int], room: int) -> Cover:
    """Return the fewest commits to add to the kept ones so that every version is readable, the newest `room` of them.

    `run` and `others` are the positions of commits that other rules keep, in the newest run and outside of it.
    """
    needed = unreadable(versions, {*run, *others})
    fewest = _fewest(needed, range(max((version.last for version in needed), default=-1) + 1))
    added = fewest[max(0, len(fewest) - room) :]
    outside = unreadable(versions, run)
    holding = sorted({*added, *_fewest(unreadable(outside, added), sorted(others))})
    held: dict[int, list[Version]] = {place: [] for place in holding}
    for version in outside:
        place = _newest_in(version, holding)
        if place is not None:
            held[place].append(version)
    return Cover(held, lost=unreadable(needed, added), missing=len(fewest) - len(added))


def unreadable(versions: Iterable[Version], kept: Collection[int]) -> list[Version]:
    """Versions of which none of the commits is kept."""
    ordered = sorted(kept)
    return [version for version in versions if _newest_in(version, ordered) is None]


def _fewest(versions: Collection[Version], candidates: Sequence[int]) -> list[int]:
    """The fewest of `candidates` (ascending) in which every version is readable that is readable in any of them."""
    chosen: list[int] = []
    for version in sorted(versions, key=lambda version: version.last):
        if chosen and chosen[-1] >= version.first:
            continue
        point = _newest_in(version, candidates)
        if point is not None:
            chosen.append(point)
    return chosen


def _newest_in(version: Version, ordered: Sequence[int]) -> int | None:
    """The last of ascending positions in which the version is readable."""
    after = bisect_right(ordered, version.last)
    return ordered[after - 1] if after and ordered[after - 1] >= version.first else None
