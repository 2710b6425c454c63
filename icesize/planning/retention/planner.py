"""Snapshots + refs + rules -> Retention: which snapshots stay, each with its reasons, and which may expire.

A snapshot stays when any rule keeps it: Iceberg's own (`RemoveSnapshots`, followed rule by rule), the newest append
with all that is newer (offsets of stream readers stand on it), what registered readers have not read, and the newest
versions of partitions that changed lately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

from icesize.planning.files import MAIN, PartitionKey
from icesize.planning.retention.ancestry import (
    TOMBSTONE_BRANCH,
    VERSION_TAG,
    RefFact,
    SnapshotFact,
    ancestors,
    history_of_main,
)
from icesize.planning.retention.version_cover import CoveredCommit, Version, cover, covered_commits, due_versions
from icesize.policy import AT_LEAST, check_at_least
from icesize.units import format_count

_NAMED = 3
"""Partitions that a sentence names before it counts the rest."""
_UNITS_MS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"), (1, "ms"))


@dataclass(frozen=True)
class RetentionRules:
    """The rules of what expiry keeps; a value that would keep nothing raises `PolicyError`.

    older_than_ms        time before which snapshots may expire; those of exactly this time stay
    retain_last          newest snapshots of each branch that stay whatever their age
    max_ref_age_ms       age after which branches (not `main`) and tags without their own are removed; None: never
    keep_versions        newest versions of each partition to keep; None: no versions for their own sake
    version_max_age_ms   versions of partitions that nothing has changed for longer than this are not kept
    max_snapshots        snapshots in all above which versions are given up, the oldest first
    progress_max_age_ms  progress of other writers that is older than this is not kept

    The last four are keys of the size policy, with its defaults.
    """

    older_than_ms: int
    retain_last: int = 1
    max_ref_age_ms: int | None = None
    keep_versions: int | None = None
    version_max_age_ms: int = 604_800_000
    max_snapshots: int = 2_000
    progress_max_age_ms: int = 604_800_000

    def __post_init__(self) -> None:
        of_policy = {
            name: AT_LEAST[name]
            for name in ("keep_versions", "version_max_age_ms", "max_snapshots", "progress_max_age_ms")
        }
        check_at_least(self, _AT_LEAST | of_policy)


_AT_LEAST = {
    "retain_last": (1, "the newest snapshot of a branch is the branch itself"),
    "max_ref_age_ms": (0, "no branch or tag is younger than now"),
}


@dataclass(frozen=True)
class Retention:
    """The decision of an expiry: every snapshot is in `kept` or in `expired`, oldest first in both.

    `kept` has the reasons of each, one or more. `expired_refs` are the branches and tags to remove: aged out,
    dangling, or version tags that are needed no longer. `version_tags` (name -> snapshot id) must exist once the others
    are removed. `dropped_versions` are sentences about versions that `max_snapshots` left no room for.
    """

    kept: Mapping[int, tuple[str, ...]]
    expired: tuple[int, ...]
    expired_refs: tuple[str, ...]
    version_tags: Mapping[str, int]
    dropped_versions: tuple[str, ...]


def plan_retention(
    snapshots: Sequence[SnapshotFact],
    refs: Sequence[RefFact],
    rules: RetentionRules,
    now_ms: int,
    *,
    readers: Collection[int] = (),
    label: Callable[[PartitionKey], str] = attrgetter("label"),
) -> Retention:
    """Plan which snapshots stay; the plan does not depend on the order of snapshots, refs and readers.

    `readers` are the snapshot ids at which stream readers stand: all snapshots from there to the head of `main` stay.
    `label` returns a partition as people write it, `` for that of an unpartitioned table. Tags that start with
    `VERSION_TAG` are managed here and keep nothing by themselves: those in `version_tags` stay, the others expire.
    """
    plan = _Planning({snapshot.snapshot_id: snapshot for snapshot in snapshots}, rules, now_ms)
    foreign = sorted((ref for ref in refs if not ref.holds_version), key=lambda ref: ref.name)
    retained = [ref for ref in foreign if _is_retained(ref, plan)]
    _keep_as_iceberg(plan, retained)
    line = list(ancestors(plan.table, next((ref.snapshot_id for ref in retained if ref.name == MAIN), None)))
    _keep_for_readers(plan, line, readers)
    for ref in retained:
        if ref.is_branch:
            _keep_progress(plan, ref)
    tags: dict[str, int] = {}
    dropped_versions: tuple[str, ...] = ()
    if rules.keep_versions is not None:
        commits = covered_commits(history := history_of_main(snapshots, refs))
        from_first = bool(history) and history[0].is_first
        versions = due_versions(commits, from_first, rules.keep_versions, now_ms - rules.version_max_age_ms)
        tags, dropped_versions = _keep_versions(plan, line, commits, versions, label)
    ours = {ref.name for ref in refs if ref.holds_version}
    gone = ours.difference(tags) | {ref.name for ref in foreign}.difference(ref.name for ref in retained)
    ordered = [snapshot.snapshot_id for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.age_key)]
    return Retention(
        kept={snapshot_id: tuple(plan.reasons[snapshot_id]) for snapshot_id in ordered if snapshot_id in plan.reasons},
        expired=tuple(snapshot_id for snapshot_id in ordered if snapshot_id not in plan.reasons),
        expired_refs=tuple(sorted(gone)),
        version_tags=tags,
        dropped_versions=dropped_versions,
    )


@dataclass
class _Planning:
    """The reasons so far by snapshot, each once and in the order of the rules."""

    table: Mapping[int, SnapshotFact]
    rules: RetentionRules
    now_ms: int
    reasons: dict[int, dict[str, None]] = field(default_factory=dict)

    def keep(self, snapshot_id: int, reason: str) -> None:
        self.reasons.setdefault(snapshot_id, {})[reason] = None


def _is_retained(ref: RefFact, plan: _Planning) -> bool:
    if ref.name == MAIN:
        return True
    if ref.snapshot_id not in plan.table:
        return False
    if ref.is_branch and ref.name == TOMBSTONE_BRANCH:
        return True  # batches remove what is too old, whatever age the branch has by now
    max_age_ms = plan.rules.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
    return max_age_ms is None or plan.now_ms - plan.table[ref.snapshot_id].timestamp_ms <= max_age_ms


def _keep_as_iceberg(plan: _Planning, refs: Iterable[RefFact]) -> None:
    """Heads and tags, the ancestors that each branch retains, and young snapshots that no ref leads to."""
    referenced: set[int] = set()
    for ref in refs:
        if ref.is_branch:
            _keep_branch(plan, ref)
            for snapshot in ancestors(plan.table, ref.snapshot_id):
                if snapshot.snapshot_id in referenced:
                    break
                referenced.add(snapshot.snapshot_id)
    # after all branches: a tagged snapshot keeps none of its ancestors, on which the walk above would stop
    for ref in refs:
        if not ref.is_branch:
            referenced.add(ref.snapshot_id)
            plan.keep(ref.snapshot_id, f"tag '{ref.name}'")
    younger = f"on no branch, but younger than {_format_age(plan.now_ms - plan.rules.older_than_ms)}"
    for snapshot_id, snapshot in plan.table.items():
        if snapshot_id not in referenced and snapshot.timestamp_ms >= plan.rules.older_than_ms:
            plan.keep(snapshot_id, younger)


def _keep_branch(plan: _Planning, ref: RefFact) -> None:
    """The ancestors of a branch up to the first that is neither among its newest nor young enough."""
    older_than_ms = plan.rules.older_than_ms
    if ref.max_snapshot_age_ms is not None:
        older_than_ms = plan.now_ms - ref.max_snapshot_age_ms
    newest = plan.rules.retain_last if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
    among = f"among the newest {newest:,} of branch '{ref.name}'"
    younger = f"on branch '{ref.name}' and younger than {_format_age(plan.now_ms - older_than_ms)}"
    for position, snapshot in enumerate(ancestors(plan.table, ref.snapshot_id)):
        if position == 0:
            plan.keep(snapshot.snapshot_id, f"head of branch '{ref.name}'")
        if snapshot.timestamp_ms >= older_than_ms:
            plan.keep(snapshot.snapshot_id, younger)
        elif position >= newest:
            return
        elif position:
            plan.keep(snapshot.snapshot_id, among)


def _keep_for_readers(plan: _Planning, line: Sequence[SnapshotFact], readers: Collection[int]) -> None:
    """The newest run of `main`, which is `line` from the head back, without a gap behind the position of any reader.

    A merge that belongs to the newest append is newer than it, so the pair stays together.
    """
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(line)}
    append = next((place for place, snapshot in enumerate(line) if snapshot.operation == "append"), None)
    if append is not None:
        plan.keep(line[append].snapshot_id, "the newest append of branch 'main'")
        for snapshot in line[:append]:
            plan.keep(snapshot.snapshot_id, "newer than the newest append of branch 'main'")
    for position in sorted(plan.table.keys() & set(readers)):
        plan.keep(position, "position of a reader")
    furthest = max((places[position] for position in readers if position in places), default=0)
    for snapshot in line[:furthest]:
        plan.keep(snapshot.snapshot_id, "newer than the position of a reader")


def _keep_progress(plan: _Planning, ref: RefFact) -> None:
    """The newest progress of each other writer in a branch, with all that is newer.

    After a restart, each of them walks from the head back through the parents until it finds its own progress. If it
    finds none, it commits its last batch again.
    """
    found: set[str] = set()
    newer: list[int] = []
    for snapshot in ancestors(plan.table, ref.snapshot_id):
        if snapshot.timestamp_ms < plan.now_ms - plan.rules.progress_max_age_ms:
            return
        if new := [writer for writer in snapshot.writers if writer not in found]:
            found.update(new)
            for writer in new:
                plan.keep(snapshot.snapshot_id, f"the newest progress of {writer}")
            for snapshot_id in newer:
                plan.keep(snapshot_id, "newer than the progress of another writer")
            newer = []
        newer.append(snapshot.snapshot_id)


def _keep_versions(
    plan: _Planning,
    line: Sequence[SnapshotFact],
    commits: Sequence[CoveredCommit],
    versions: Sequence[Version],
    label: Callable[[PartitionKey], str],
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Keeps the fewest snapshots that make every due version readable; their tags, and sentences on those given up.

    Versions that are readable only in snapshots kept for another reason, not as part of the newest run, are also
    tagged: the reason may go away, and nothing else records that they were on `main`.
    """
    # from the head of `main` back to before the first snapshot that is not kept
    in_run = {*takewhile(plan.reasons.__contains__, (snapshot.snapshot_id for snapshot in line))}
    kept = {place for place, commit in enumerate(commits) if commit.snapshot_id in plan.reasons}
    run = {place for place in kept if commits[place].snapshot_id in in_run}
    covering = cover(versions, run, kept - run, max(0, plan.rules.max_snapshots - len(plan.reasons)))
    tags: dict[str, int] = {}
    for place, held in covering.held.items():
        snapshot_id = commits[place].snapshot_id
        plan.keep(snapshot_id, f"version of {_named(held, label)}")
        tags[f"{VERSION_TAG}{snapshot_id}"] = snapshot_id
    if not covering.lost:
        return tags, ()
    lost = format_count(len(covering.lost), "version")
    return tags, (
        f"{lost} of {_named(covering.lost, label)} cannot be kept: that takes "
        f"{format_count(covering.missing, 'snapshot')} more than 'max-snapshots' ({plan.rules.max_snapshots})",
    )


def _named(versions: Collection[Version], label: Callable[[PartitionKey], str]) -> str:
    """`hour=h1, hour=h2, hour=h3 and 4 more partitions`: the partitions that some versions belong to."""
    names = sorted(label(partition) or "the table" for partition in {version.partition for version in versions})
    more = len(names) - _NAMED
    named = ", ".join(names[:_NAMED])
    return f"{named} and {more:,} more partition{'s'[: more > 1]}" if more > 0 else named


def _format_age(age_ms: int) -> str:
    """`5 days`, `1.5 hours`, `1 minute`: in the largest unit that it has one of."""
    unit_ms, unit = next((pair for pair in _UNITS_MS if age_ms >= pair[0]), _UNITS_MS[-1])
    number = f"{max(0, age_ms) / unit_ms:,.1f}".removesuffix(".0")
    return f"{number} {unit}" if number == "1" or unit == "ms" else f"{number} {unit}s"
