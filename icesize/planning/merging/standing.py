"""The state of partitions that a plan leaves as they are: of one partition, and of all that a batch does not touch.

A batch touches few of the partitions of a table. `Standing` sums up the other ones and is updated with what changed, so
that the cost of planning a batch does not grow with the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.groups import Work
from icesize.planning.overlay import Overlay
from icesize.planning.plan import MergeTask, PartitionOutcome, Skipped, Untouched
from icesize.policy import SizePolicy


@dataclass(frozen=True)
class Standing:
    """A summary of all partitions of a layout without deletes, as if nothing in them were due.

    Attributes:
        policy: The policy that decides which files are small.
        spec_id: The table's current partition spec.
        files: Number of data files.
        skipped: Number of files by the reason for which they stay.
        small_files: Number of mergeable small files in a partition -> number of partitions with so many.
        outcomes: Partitions with ineligible files, or with more than `max_small_files` mergeable ones.
        unfinished: Partitions with two or more mergeable small files -> the stamp of their newest rows. These are
            merged when they are cold; all other partitions stay as they are without a batch or a delete.
    """

    policy: SizePolicy
    spec_id: int
    files: int = 0
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)
    small_files: Mapping[int, int] = field(default_factory=dict)
    outcomes: Overlay[PartitionKey, PartitionOutcome] = field(default_factory=Overlay)
    unfinished: Overlay[PartitionKey, int] = field(default_factory=Overlay)

    @classmethod
    def of(cls, partitions: Iterable[PartitionFacts], spec_id: int, policy: SizePolicy) -> Standing:
        """Return the summary of these partitions."""
        return cls(policy, spec_id).changed((), partitions)

    def changed(self, before: Iterable[PartitionFacts], after: Iterable[PartitionFacts]) -> Standing:
        """Return the summary with the partitions `after` in place of those in `before`."""
        files, skipped, small_files = self.files, Counter(self.skipped), Counter(self.small_files)
        outcomes, unfinished = dict[PartitionKey, PartitionOutcome | None](), dict[PartitionKey, int | None]()
        for sign, partitions in ((-1, before), (1, after)):
            for facts in partitions:
                # nothing is due and no file has deletes, so that numbers of files are enough
                work, key = work_of(facts, self.spec_id, self.policy), facts.key
                small = len(work.mergeable)
                files += sign * facts.files
                small_files[small] += sign
                skipped[SkipReason.TOO_FEW] += sign * small
                skipped[SkipReason.WELL_SIZED] += sign * (facts.files - small - len(work.ineligible))
                for _, reason in work.ineligible:
                    skipped[reason] += sign
                is_notable = sign > 0 and (work.ineligible or small > self.policy.max_small_files)
                outcomes[key] = outcome_of(work, self.policy) if is_notable else None
                unfinished[key] = facts.newest if sign > 0 and small > 1 else None
        return replace(
            self,
            files=files,
            skipped={reason: count for reason, count in skipped.items() if count},
            small_files={number: count for number, count in small_files.items() if count},
            outcomes=self.outcomes.changed(outcomes),
            unfinished=self.unfinished.changed(unfinished),
        )

    def untouched(self, touched: Collection[PartitionFacts]) -> tuple[Untouched, tuple[PartitionOutcome, ...]]:
        """Return the summary and the notable outcomes of all partitions but the `touched` ones."""
        left, gone = self.changed(touched, ()), {facts.key for facts in touched}
        return (
            Untouched(left.skipped, max(left.small_files, default=0)),
            tuple(outcome for outcome in left.outcomes.values() if outcome.partition not in gone),
        )


def standing_of(layout: Layout, policy: SizePolicy) -> Standing | None:
    """Return the summary of the layout if it was made by this policy."""
    known = layout.standing
    return known if isinstance(known, Standing) and known.policy == policy else None


def work_of(
    facts: PartitionFacts,
    current_spec_id: int,
    policy: SizePolicy,
    contested: Collection[PartitionKey] = (),
    excluded_paths: frozenset[str] = frozenset(),
) -> Work:
    """Sort the small files of a partition into mergeable ones, smallest first, and ineligible ones.

    Of the larger files, those with deletes that are due are sorted in, too.
    """
    blocked = SkipReason.OLD_SPEC if facts.key.spec_id != current_spec_id else None
    if blocked is None and facts.key in contested:
        blocked = SkipReason.CONTESTED
    # a policy computes its default limit each time that it is asked
    work, limit_bytes = Work(facts, blocked, excluded_paths), policy.small_file_limit_bytes
    for file in facts.small + facts.large:
        is_small = file.size_bytes < limit_bytes
        reason = file.obstacle or blocked
        if not is_small and not (limit_bytes and work.is_due(file, policy)):
            continue
        if reason is None:
            (work.mergeable if is_small else work.large).append(file)
        # with another obstacle than busy writers a large file stays one of the well-sized ones, which are not named
        elif is_small or reason is SkipReason.CONTESTED:
            work.ineligible.append((file, reason))
    work.mergeable.sort(key=by_size)
    work.ineligible.sort(key=lambda pair: pair[0].path)
    return work


def by_size(file: FileFact) -> tuple[int, int, str]:
    """Return the key that sorts files by size, smallest first."""
    return file.live_bytes if file.deleted_rows else file.size_bytes, file.sequence_number, file.path


def skipped_of(work: Work) -> Iterator[Skipped]:
    """Yield every file of the partition that no taken group contains, with its reason."""
    key = work.facts.key
    inputs = _paths(work.taken)
    due = _paths(work.due)
    large = [file for file in work.large if file.path in inputs or file.path in due]
    named = [*work.mergeable, *(file for file, _ in work.ineligible), *large]
    well_sized = work.facts.files - len(named)
    if well_sized:
        size_bytes = work.facts.size_bytes - sum(file.size_bytes for file in named)
        yield Skipped(None, key, SkipReason.WELL_SIZED, well_sized, size_bytes)
    for file, reason in work.ineligible:
        yield Skipped(file, key, reason, 1, file.size_bytes)
    for file in (*work.mergeable, *sorted(large, key=by_size)):
        if file.path not in inputs:
            reason = SkipReason.OVER_BUDGET if file.path in due else SkipReason.TOO_FEW
            yield Skipped(file, key, reason, 1, file.size_bytes)


def _paths(groups: list[MergeTask]) -> set[str]:
    return {file.path for group in groups for file in group.inputs}


def _most_deletes(work: Work) -> int:
    """Return the most delete files that one file is read with, of the files that stay and could be rewritten."""
    if work.blocked or not (with_deletes := work.facts.with_deletes):
        return 0
    inputs = _paths(work.taken)
    inputs |= work.excluded_paths
    left = (file for file in with_deletes if file.path not in inputs and file.obstacle is None)
    return max((file.delete_files for file in left), default=0)


def outcome_of(work: Work, policy: SizePolicy, incoming: int = 0) -> PartitionOutcome:
    """Return the small files that a partition holds after the plan and a batch that adds `incoming` small files."""
    limit_bytes = policy.small_file_limit_bytes
    small = work.small_files_after(limit_bytes) + incoming
    ineligible = dict(Counter(reason for file, reason in work.ineligible if file.size_bytes < limit_bytes))
    return PartitionOutcome(work.facts.key, work.facts.label, small, ineligible, _most_deletes(work))
