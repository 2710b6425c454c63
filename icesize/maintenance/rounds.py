"""One plan carried out in several rounds, each with a commit: what one round has, and what all came to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Protocol, TypeVar

from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, RewriteFailed, is_from_outside
from icesize.planning.delete_plan import DeleteRewrite
from icesize.planning.files import FileFact, Layout
from icesize.planning.plan import MergeTask, Plan
from icesize.table.catalog.access_errors import said
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, format_bytes, format_count, seconds_of


@dataclass(frozen=True)
class Budget:
    """What a call may cost: bytes to rewrite, and seconds after which nothing more is begun; None is no bound.

    Raises ValueError for less than nothing.
    """

    size_bytes: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, size: int | str | None = None, duration: float | str | None = None) -> Budget:
        """Return the budget of numbers or of text, such as `20GiB` and `25m`. Raises ValueError for other text."""
        size_bytes = None if size is None else bytes_of(size)
        seconds = None if duration is None else seconds_of(duration)
        if size_bytes is None and size is not None:
            raise ValueError(f"'budget-bytes' ('{size}') must be a size {SIZE_EXAMPLES}, or a number of bytes")
        if seconds is None and duration is not None:
            raise ValueError(f"'budget-seconds' ('{duration}') must be a duration {DURATION_EXAMPLES}, or seconds")
        return cls(size_bytes, seconds)

    def __post_init__(self) -> None:
        for name, value in (("budget-bytes", self.size_bytes), ("budget-seconds", self.seconds)):
            if value is not None and value < 0:
                raise ValueError(f"'{name}' ({value}) must be >= 0: leave it out to work without that bound")


def noting_rounds(plan: Plan, most_bytes: int | None) -> Plan:
    """The plan with a note where it is more than is committed at once."""
    if most_bytes is None or plan.bytes_to_write <= most_bytes:
        return plan
    hint = (
        f"{format_bytes(plan.bytes_to_write)} are rewritten by this process, with a commit after each "
        f"{format_bytes(most_bytes)} or so; Spark (a session, --master or --remote) would do it with more machines"
    )
    return replace(plan, notes=(*plan.notes, hint))


S = TypeVar("S", bound=MergeTask | DeleteRewrite)


def rounds_of(groups: Sequence[S], most_bytes: int | None) -> Iterator[tuple[S, ...]]:
    """The groups of each round, in their order: as many as its bytes pay for (None: all), at least one if there are
    any."""
    taken: list[S] = []
    taken_bytes = 0
    for group in groups:
        if taken and most_bytes is not None and taken_bytes + group.size_bytes > most_bytes:
            yield tuple(taken)
            taken, taken_bytes = [], 0
        taken.append(group)
        taken_bytes += group.size_bytes
    yield tuple(taken)


def as_they_are(
    whole: Plan, groups: Iterable[MergeTask], layout: Layout, files: Iterable[FileFact]
) -> tuple[Plan, tuple[str, ...]]:
    """The part of a plan that has these groups, on the table as it is now, and sentences about groups that are left
    out of it: another writer has taken some of their input files, or deleted rows of them.

    `files` are those of now that may be among them. The commit looks only for what changed after `layout`.
    """
    facts = {file.path: file for file in files if file.obstacle is None}
    kept, lost = list[MergeTask](), list[str]()
    for group in groups:
        inputs = tuple(facts[file.path] for file in group.inputs if file.path in facts)
        if len(inputs) == len(group.inputs):
            kept.append(replace(group, inputs=inputs))
        else:
            changed = f"merge of {len(group.inputs)} files in '{group.label}' dropped"
            lost.append(f"{changed}: another writer removed or changed {len(group.inputs) - len(inputs)} of them")
    now = replace(whole, head=layout.head)
    return replace(now, groups=tuple(kept)), tuple(lost)


class RoundsEnd(Exception):
    """No further round can be made; the text is the reason."""


class Noting(Protocol):
    """A report with sentences."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def snapshot_ids(self) -> tuple[int, ...]: ...
    @property
    def conflicts(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Noting)


def can_end(error: Exception) -> bool:
    """Return whether a report of what was committed before this error can name it: it is no mistake in icesize."""
    return isinstance(error, (IcesizeError, RoundsEnd)) or is_from_outside(error)


def ended_by(end: Exception, report: R, left: str = "") -> R:
    """Return the report of what was committed before an error, with a sentence about the error, which `left` begins.

    Raises an error of unknown outcome, with `report` as an attribute if anything was committed.
    """
    why = end if isinstance(end, RoundsEnd) else said(end)
    if isinstance(end, CommitStateUnknown):
        if report.snapshot_ids:
            end.facts["report"] = report
        raise end
    if isinstance(end, CommitConflict):
        return replace(report, conflicts=(*report.conflicts, f"{left}{why}"))
    return replace(report, notes=(*report.notes, f"{left}{why}"))


def carried_out(
    groups: Sequence[S],
    most_bytes: int | None,
    run: Callable[[tuple[S, ...], bool], R],
    together: Callable[[Sequence[R]], R],
    what: str = "merge",
) -> R:
    """Call `run` with the groups of each round, True for the first, and return what the rounds came to, `together`.

    The first round works on the state that was planned on, each further one on the table as it is then. A round of
    which every rewrite fails keeps no other from being made, and is the first thing that the report notes; raises
    RewriteFailed when there is no other. If `run` raises another error after the first report, of icesize or from
    outside, or RoundsEnd, the rounds end by `ended_by`, and the report has how many rewrites (`what`) are left.
    """
    done, failed = list[R](), list[RewriteFailed]()
    ended: tuple[Exception, str] | None = None
    rounds = rounds_of(groups, most_bytes)
    for number, some in enumerate(rounds):
        try:
            done.append(run(some, number == 0))
        except RewriteFailed as error:
            failed.append(error)
        except Exception as end:
            if not can_end(end) or not (done or isinstance(end, RoundsEnd)):
                raise
            ended = end, f"{format_count(len([*some, *chain.from_iterable(rounds)]), what)} left: "
    if not done:
        raise failed[0]
    report = together(done)
    report = replace(report, notes=tuple(dict.fromkeys((*map(str, failed), *report.notes))))
    return ended_by(ended[0], report, ended[1]) if ended else report
