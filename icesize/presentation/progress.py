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

from icesize.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

Draw = Callable[[str, int, int | None], None]
"""Called with the kind of work, the amount done, and the total; the total is None while unknown."""

_BYTES = frozenset({"merging", "clustering"})
"""Kinds of work counted in bytes; all others are counted in files."""


@contextmanager
def merging(console: Console, total_bytes: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """Draw a bar by bytes while merges run; yield the function that is called with bytes that are done.

    The bar begins with the first call, even of zero bytes, because `total_bytes()` is known then: the bytes of all
    rounds of a call. Several threads may call the function, and the bar never goes back.
    """
    done, lock = 0, Lock()
    with drawn(console) as draw:

        def advance(size_bytes: int) -> None:
            nonlocal done
            with lock:
                done += size_bytes
                draw("merging", done, total_bytes())

        yield advance


@contextmanager
def deleting(console: Console) -> Iterator[Callable[[int, int | None], None]]:
    """Draw a bar by files while files are searched and deleted; yield the function that is called with progress.

    Its arguments are the files done and their total; the total is None during the search.
    """
    with drawn(console) as draw:
        draw("looking for files", 0, None)
        yield lambda done, total: draw("looking for files" if total is None else "deleting", done, total)


@contextmanager
def maintaining(console: Console) -> Iterator[Draw]:
    """Draw a bar for each step of a pass and each round of merges; yield the function that is called with progress."""
    from icesize.maintenance.full_pass import STEPS  # late, because it imports the modules of every step

    words = {step.name: step.words for step in STEPS}
    with drawn(console) as draw:

        def draw_step(step: str, done: int, total: int | None) -> None:
            deletes = step == "expiry" and total is not None
            draw("deleting" if deletes else words[step], done, total)

        yield draw_step


@contextmanager
def drawn(console: Console) -> Iterator[Draw]:
    """Draw one bar at a time; yield the function that any thread calls with progress.

    The bar begins again if the work changes or nothing of it is done yet. Nothing is drawn before the first call, which
    may never come: there is nothing to do, or an error.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), _pace_column(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    lock = Lock()

    def draw(what: str, done: int, total: int | None) -> None:
        with lock:
            shown = progress.tasks[-1] if progress.tasks else None
            if shown is None or shown.description != what or not done:
                for task_id in progress.task_ids:
                    progress.remove_task(task_id)
                progress.add_task(what, total=total)
            progress.update(progress.task_ids[-1], completed=done, total=total)
            progress.start()

    try:
        yield draw
    finally:
        progress.stop()


def pace(what: str, done: float, total: float | None, seconds: float) -> str:
    """Return the progress in words, as in `3 GiB of 10 GiB, 210 MiB/s, 0:00:34 left`; the rate is the mean so far."""
    in_bytes = what in _BYTES
    if total is None:
        words = _amount(done, in_bytes=in_bytes) if done else ""
    elif in_bytes:
        words = f"{format_bytes(done)} of {format_bytes(total)}"
    else:
        words = f"{done:,.0f} of {_amount(total, in_bytes=False)}"
    if not done or seconds <= 0:
        return words
    words += f", {_amount(done / seconds, in_bytes=in_bytes)}/s"
    if total is None:
        return words
    return f"{words}, {timedelta(seconds=round((total - done) * seconds / done))} left"


def _amount(number: float, *, in_bytes: bool) -> str:
    return format_bytes(number) if in_bytes else format_count(round(number), "file")


def _pace_column() -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.table import Column
    from rich.text import Text

    class Pace(ProgressColumn):
        """Shows `pace`, because rich's own columns count by 1000 and forget events older than one large group takes."""

        def render(self, task: Task) -> Text:
            return Text(pace(task.description, task.completed, task.total, task.elapsed or 0.0))

    return Pace(Column(no_wrap=True))
