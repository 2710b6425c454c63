"""Runs one plan in several rounds, each with a commit, and combines their reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Protocol, TypeVar

from icesize.environment import Environment
from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, RewriteFailed, is_from_outside
from icesize.planning.deletes.delete_plan import DeleteRewrite
from icesize.planning.file_sizes import parts_within
from icesize.planning.files import FileFact, Layout
from icesize.planning.merging.moves import may_move
from icesize.planning.plan import MergeTask, Plan
from icesize.table.catalog.access_errors import said
from icesize.units import DURATION_EXAMPLES, SIZE_EXAMPLES, bytes_of, format_bytes, format_count, seconds_of

Size = int | str | None
"""A number of bytes, or a string such as "20GiB"; None is no limit."""
Duration = float | str | None
"""A number of seconds, or a string such as "25m"; None is no limit."""


@dataclass(frozen=True)
class Budget:
    """The limits of a call: bytes to rewrite, and seconds after which no new work begins; None for no limit.

    No new work begins either once `is_stopped` returns True. Raises ValueError for negative values.
    """

    size_bytes: int | None = None
    seconds: float | None = None
    is_stopped: Callable[[], bool] = lambda: False

    @classmethod
    def of(cls, size: Size = None, duration: Duration = None) -> Budget:
        """Return the budget of numbers or strings, such as `20GiB` and `25m`. Raises ValueError for other strings."""
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

    def started(self, environment: Environment) -> Callable[..., bool]:
        """Start the clock. Return a function that returns True once a share of the seconds (default: all) is over."""
        began = environment.monotonic()

        def is_late(share: float = 1.0) -> bool:
            is_over = self.seconds is not None and environment.monotonic() - began >= share * self.seconds
            return is_over or self.is_stopped()

        return is_late

    def after(self, seconds: float) -> Budget:
        """Return the budget that is left after these seconds."""
        return self if self.seconds is None else replace(self, seconds=max(0.0, self.seconds - seconds))


def noting_rounds(plan: Plan, most_bytes: int | None) -> Plan:
    """Return the plan, with a note if it needs more than one commit."""
    if most_bytes is None or plan.bytes_to_write <= most_bytes:
        return plan
    hint = (
        f"{format_bytes(plan.bytes_to_write)} are rewritten by this process, with a commit after each "
        f"{format_bytes(most_bytes)} or so; Spark (a session, --master or --remote) would do it with more machines"
    )
    return replace(plan, notes=(*plan.notes, hint))


S = TypeVar("S", bound=MergeTask | DeleteRewrite)


def rounds_of(groups: Sequence[S], most_bytes: int | None) -> Iterator[tuple[S, ...]]:
    """Yield the groups of each round, in their order, at least one round.

    A round has as many groups as `most_bytes` allows (None: all), but at least one if there are any.
    """
    most = math.inf if most_bytes is None else most_bytes
    yield from parts_within(groups, lambda group: group.size_bytes, most) if groups else [()]


def as_they_are(
    whole: Plan, groups: Iterable[MergeTask], layout: Layout, files: Iterable[FileFact]
) -> tuple[Plan, tuple[str, ...]]:
    """Return the part of a plan with these groups, for the current table, and sentences about dropped groups.

    A group is dropped if another writer has removed some of its input files, or deleted rows of them. `files` are the
    current files that may be among the inputs. The commit only checks for changes after `layout`.
    """
    facts = {file.path: file for file in files}
    kept, lost = list[MergeTask](), list[str]()
    for group in groups:
        found = (facts[file.path] for file in group.inputs if file.path in facts)
        inputs = tuple(file for file in found if may_move(file) and (group.moves or not file.obstacle))
        if len(inputs) == len(group.inputs):
            kept.append(replace(group, inputs=inputs))
        else:
            changed = f"merge of {len(group.inputs)} files in '{group.label}' dropped"
            lost.append(f"{changed}: another writer removed or changed {len(group.inputs) - len(inputs)} of them")
    now = replace(whole, head=layout.head)
    return replace(now, groups=tuple(kept)), tuple(lost)


class RoundsEnd(Exception):
    """No further round is possible; the text is the reason."""


class Noting(Protocol):
    """A report with conflicts and notes."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def snapshot_ids(self) -> tuple[int, ...]: ...
    @property
    def conflicts(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Noting)


def can_end(error: Exception) -> bool:
    """Return True if a report of the earlier commits can contain this error: it is no defect of icesize."""
    return isinstance(error, (IcesizeError, RoundsEnd)) or is_from_outside(error)


def ended_by(end: Exception, report: R, left: str = "") -> R:
    """Return the report of the commits before an error, with a sentence about the error. `left` begins that sentence.

    Raises CommitStateUnknown instead if that is the error, with `report` as an attribute if anything was committed.
    """
    why = end if isinstance(end, RoundsEnd) else said(end)
    if isinstance(end, CommitStateUnknown):
        if report.snapshot_ids:
            end.report = report
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
    """Call `run` with the groups of each round, and return the reports combined by `together`.

    The second argument of `run` is True for the first round. The first round uses the state that was planned on; each
    further round uses the table's state at that time.

    A round in which every rewrite fails does not stop the others, and its error is the first note of the report. If no
    other round has a report, that RewriteFailed is raised. `run` may also raise RoundsEnd after the first round, or,
    after the first report, another error of icesize or from outside. Then the rounds end as in `ended_by`, and the
    report counts the remaining rewrites (`what`).
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
            if not can_end(end) or not (done or (failed and isinstance(end, RoundsEnd))):
                raise
            left = [*some, *chain.from_iterable(rounds)]
            ended = end, f"{format_count(len(left), what)} left: "
            break
    if not done:
        raise failed[0]
    report = together(done)
    report = replace(report, notes=tuple(dict.fromkeys((*map(str, failed), *report.notes))))
    return ended_by(ended[0], report, ended[1]) if ended else report
