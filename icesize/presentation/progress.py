"""Progress bars that show the work done, its rate, and the time left.

Without a terminal, nothing is drawn. Bars vanish when work ends; the lines of the plan and the result stay. Importing
this module does not import rich, which is loaded with the first bar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

from icesize.events import Progress
from icesize.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn


@contextmanager
def drawn(console: Console) -> Iterator[Callable[[object], None]]:
    """Yield an observer that draws each `Progress`, from any thread.

    One bar is shown at a time. A new bar begins with other work, and with each event of which nothing is done. Nothing
    is drawn before the first of them.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(None), _pace_column(), TimeElapsedColumn())
    bars = Bars(*columns, console=console, transient=True, disable=not console.is_terminal)
    lock = Lock()

    def draw(event: object) -> None:
        if not isinstance(event, Progress) or bars.disable:
            return
        from icesize.maintenance.passes.maintain import STEPS  # slow: imports the jobs

        # a verification, or a pass over tables, is no step of `maintain`
        step = next((step for step in STEPS if step.name == event.step), None)
        in_bytes = step is not None and bool(step.rounds)
        # steps without rounds know a total once they delete files
        words = event.step if step is None else step.words if in_bytes or event.total is None else "deleting"
        with lock:
            shown = bars.tasks[-1] if bars.tasks else None
            if shown is None or shown.description != words or not event.done:
                for task_id in bars.task_ids:
                    bars.remove_task(task_id)
                bars.add_task(words, total=event.total, in_bytes=in_bytes, noun=event.noun)
            bars.update(bars.task_ids[-1], completed=event.done, total=event.total)
            bars.start()

    try:
        yield draw
    finally:
        if bars.live.is_started:  # rich 13.0 ends bars that were never drawn with an empty line
            bars.stop()


def pace(done: float, total: float | None, seconds: float, *, in_bytes: bool, noun: str = "file") -> str:
    """Return the progress in words, as in `3 GiB of 10 GiB, 210 MiB/s, 0:00:34 left`; the rate is the mean so far."""

    def amount(number: float) -> str:
        return format_bytes(number) if in_bytes else format_count(round(number), noun)

    if total is None:
        words = amount(done) if done else ""
    elif in_bytes:
        words = f"{format_bytes(done)} of {format_bytes(total)}"
    else:
        words = f"{done:,.0f} of {amount(total)}"
    if not done or seconds <= 0:
        return words
    words += f", {amount(done / seconds)}/s"
    if total is None:
        return words
    return f"{words}, {timedelta(seconds=round(max(0.0, total - done) * seconds / done))} left"


def _pace_column() -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Pace(ProgressColumn):
        """Shows `pace`, because rich's own columns count by 1000 and forget events older than one large group takes."""

        def render(self, task: Task) -> Text:
            return Text(pace(task.completed, task.total, task.elapsed or 0.0, **task.fields))

    return Pace(Column(no_wrap=True))
