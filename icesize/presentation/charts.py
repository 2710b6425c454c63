"""The charts of an overview: file sizes, partitions over time, write amplification, seconds and files of commits.

Each chart is drawn on given axes. A page has each chart as SVG, and an image has all of them together. Within a page,
text stays text and colors are CSS variables, so that the page selects its light or dark colors.
"""

from __future__ import annotations

import io
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from itertools import accumulate, count, pairwise
from typing import Any

from icesize.errors import needs_extra
from icesize.planning.insight.trends import PartitionTrend, Trends
from icesize.planning.plan import distinct
from icesize.presentation.facts import Comparison, Facts
from icesize.table.past.commits import PastCommit
from icesize.units import format_bytes, format_count

with needs_extra("report", "draw"):
    import matplotlib as mpl
    from matplotlib import dates
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_untyped: Any = dates

MOST_NAMED = 24
"""Partitions that a chart names; more names would not fit."""
MOST_DRAWN = 1_000
"""Commits that a chart shows, the newest: more than it has points."""
MOST_LABEL = 26
"""Characters of a partition's name in a chart."""

_WIDTH = 400
"""Width of a chart in points: that of a phone, so that its letters are as large as the text there."""
_POINT = 1 / 72
_LETTERS = 11.5
_MOST_TICKS = 5
_TIMES = {
    "formats": ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"],
    "zero_formats": ["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M:%S"],
}
"""Formats of years, months, days, hours, minutes and seconds at an axis, and of the first one of each larger unit."""
_COLUMNS = 192
"""Cells of a heat map from left to right; more could hardly be distinguished."""
_SECOND = 1 / 86_400
"""One second in days, the unit of dates on an axis."""


@dataclass(frozen=True)
class Palette:
    """Colors by their purpose; `heat` is drawn more or less transparent."""

    ink: str
    faint: str
    before: str
    after: str
    heat: str = "#d9480f"


PRINTED = Palette(ink="#1f2328", faint="#d0d7de", before="#d9822b", after="#1a7f64")
"""Colors on white."""
BOTH = Palette(ink="#7a818a", faint="#7a818a55", before="#d9822b", after="#2a9d7c")
"""Colors readable on light and on dark backgrounds, for places without a style sheet that could select one."""
_VARIABLES = Palette(ink="#000001", faint="#000002", before="#000003", after="#000004")
"""Placeholders for the variables of the page's style sheet; nothing else has these colors."""

Draw = Callable[[Axes, Palette], None]


@dataclass(frozen=True)
class Picture:
    """A chart: title, height in points, drawing function, a description for readers who cannot see it, and a caption.

    The caption explains how to read the chart.
    """

    title: str
    height: float
    alt_text: str
    draw: Draw
    caption: str = ""


def pictures(facts: Facts) -> dict[str, Picture]:
    """Return the charts of an overview by name, without those that have nothing to show."""
    batches = facts.history.batches[:MOST_DRAWN][::-1]
    commits = facts.history.commits[:MOST_DRAWN][::-1]
    found = {
        "sizes": sizes(facts.sizes) if any((*facts.sizes.before.files, *facts.sizes.after.files)) else None,
        "small": heat_map("Small files", facts.trends, lambda partition: partition.small_files),
        "small-all": heat_map("Small files", facts.trends, lambda partition: partition.small_files, whole=True),
        "deletes": heat_map("Delete files", facts.trends, lambda partition: partition.delete_files),
        "amplification": amplification(commits),
        "seconds": seconds(batches),
        "files": files(commits),
    }
    return {name: picture for name, picture in found.items() if picture is not None}


def sizes(compared: Comparison) -> Picture:
    """Return a chart of data files by size at two times."""
    well_sized = len(compared.before.bounds)
    counted = enumerate(zip(compared.before.files, compared.after.files, strict=True))
    shown = [i for i, both in counted if any(both) or i == well_sized]
    series = [(compared.before_name.replace("`", ""), compared.before.files)]
    if compared.differs:
        series.append((compared.after_name.replace("`", ""), compared.after.files))
    names = _class_names(compared.before.bounds)
    thick = 0.8 / len(series)

    def draw(axes: Axes, palette: Palette) -> None:
        colours = (palette.before, palette.after) if compared.differs else (palette.after,)
        for number, ((name, counts), colour) in enumerate(zip(series, colours, strict=True)):
            places = [row - 0.4 + thick * (number + 0.5) for row in range(len(shown))]
            values = [counts[i] for i in shown]
            bars = axes.barh(places, values, thick * 0.92, color=colour, label=f"{name}: {sum(counts):,}")
            axes.bar_label(bars, [f"{v:,}" if v else "" for v in values], padding=3, color=palette.ink)
        axes.set_yticks(range(len(shown)), [names[i] for i in shown])
        axes.invert_yaxis()
        axes.margins(x=0.14)
        axes.xaxis.set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=len(series), labelcolor=palette.ink)
        _plain(axes, palette, spines=("left",))

    alt_text = "; ".join(
        f"{name}: " + ", ".join(f"{format_count(counts[i], 'file')} {names[i]}" for i in shown if counts[i])
        for name, counts in series
    )
    return Picture("Data files by size", 44 + 19 * len(series) * len(shown) + 6 * len(shown), alt_text, draw)


def _class_names(bounds: Sequence[int]) -> list[str]:
    ends = [format_bytes(bound) for bound in bounds]
    between = [f"{lower} - {upper}" for lower, upper in pairwise(ends)]
    return [f"< {ends[0]}", *between, f"≥ {ends[-1]}"]


Values = Callable[[PartitionTrend], Sequence[int]]


def heat_map(title: str, trends: Trends, values: Values, *, whole: bool = False) -> Picture | None:
    """Return a chart of the worst partitions over time, by name; with `whole`, of all partitions without names.

    Returns None if there is nothing to show, or if all partitions of a `whole` fit into the chart with names.
    """
    several = ((p.label, values(p)) for p in trends.partitions if any(values(p)) and len(trends.times_ms) > 1)
    found = distinct(several, lambda one: one[1])
    if len(found) <= (MOST_NAMED if whole else 0):
        return None
    shown = found if whole else found[:MOST_NAMED]
    rows = [row for (_, row), _ in shown]
    most = max(map(max, rows))
    caption = f"The stronger the colour, the more files: {most:,} at most."

    def draw(axes: Axes, palette: Palette) -> None:
        end = _heat(axes, palette, rows, most, trends.times_ms)
        if whole:
            axes.set_yticks([0, len(rows) - 1], ["the worst", "the least"])
            return
        axes.set_yticks(
            range(len(rows)), [_short(label, number) for (label, _), number in shown], fontsize=_LETTERS * 0.85
        )
        for number, row in enumerate(rows):
            beside: dict[str, Any] = {"va": "center", "color": palette.ink, "fontsize": _LETTERS * 0.85}
            axes.annotate(f"{row[-1]:,}", (end, number), (3, 0), textcoords="offset points", **beside)

    partitions = format_count(sum(number for _, number in shown), "partition")
    alt_text = f"{title} of {partitions}"
    if whole:
        return Picture(f"{title}, {partitions}", 340, f"{alt_text}, the worst first", draw, caption)
    alt_text += f" at {format_count(len(trends.times_ms), 'time')}"
    height = 46 + 15 * len(rows)
    return Picture(f"{title} per partition", height, alt_text, draw, f"{caption} At the right: how many now.")


def _heat(axes: Axes, palette: Palette, rows: list[Sequence[int]], most: int, times_ms: Sequence[int]) -> float:
    """Draw one line per partition, with stronger color for more files; return the right end of the time axis.

    The color follows the square root of the number, because otherwise the worst partition would leave all others
    without color. The files of a partition at a time last until the next time. The last time lasts as long as the
    others on average. If several times share a cell, the cell shows the worst of them.
    """
    red, green, blue = mpl.colors.to_rgb(palette.heat)
    times = _dates(times_ms)
    begin, end = times[0], times[-1] + max(_SECOND, times[-1] - times[0]) / max(1, len(times) - 1)
    edges = [begin + (end - begin) * column / _COLUMNS for column in range(_COLUMNS + 1)]
    lasting = [(bisect_right(times, first) - 1, bisect_left(times, last)) for first, last in pairwise(edges)]
    cells = [[(red, green, blue, (max(row[a:b]) / most) ** 0.5) for a, b in lasting] for row in rows]
    extent = (begin, end, len(rows) - 0.5, -0.5)
    axes.imshow(cells, aspect="auto", interpolation="none", extent=extent)
    _plain(axes, palette, spines=())
    _time_axis(axes, times)
    return end


def amplification(commits: Sequence[PastCommit]) -> Picture | None:
    """Return a chart of the write amplification of each commit with new rows, and of all commits so far.

    `commits` are oldest first.
    """
    times = _dates([commit.timestamp_ms for commit in commits])
    timed = list(zip(times, commits, strict=True))
    single = [(time, c.write_amplification) for time, c in timed if c.write_amplification is not None]
    running = [(time, c.amplification_so_far) for time, c in timed if c.amplification_so_far is not None]
    if len(running) < 2:
        return None

    def draw(axes: Axes, palette: Palette) -> None:
        axes.plot(*zip(*single, strict=True), "o", ms=_dot(single), color=palette.before, label="one commit")
        axes.plot(*zip(*running, strict=True), color=palette.after, lw=2, label="all so far")
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, labelcolor=palette.ink)
        _lines(axes, palette, times)

    alt_text = f"Write amplification of {format_count(len(single), 'commit')}: now {running[-1][1]:.2f}"
    return Picture("Write amplification: bytes written per byte ingested", 190, alt_text, draw)


def seconds(batches: Sequence[PastCommit]) -> Picture | None:
    """Return a chart of the seconds that each batch took before its commit; `batches` are oldest first."""
    known = [batch for batch in batches if batch.seconds is not None]
    if not known:
        return None

    times = _dates([batch.timestamp_ms for batch in known])

    def draw(axes: Axes, palette: Palette) -> None:
        axes.plot(times, [batch.seconds or 0.0 for batch in known], "o-", ms=_dot(known), lw=0.8, color=palette.after)
        _lines(axes, palette, times)

    alt_text = f"Seconds of {format_count(len(known), 'batch')}"
    return Picture("Seconds per batch", 170, f"{alt_text}, at most {max(b.seconds or 0 for b in known):.2f}", draw)


def files(commits: Sequence[PastCommit]) -> Picture | None:
    """Return a chart of the table's data files and delete files after each commit; `commits` are oldest first."""
    times = _dates([commit.timestamp_ms for commit in commits])
    timed = list(zip(times, commits, strict=True))
    data = [(time, c.total_files) for time, c in timed if c.total_files is not None]
    deletes = [(time, c.total_delete_files) for time, c in timed if c.total_delete_files is not None]
    if len(data) < 2:
        return None

    def draw(axes: Axes, palette: Palette) -> None:
        axes.plot(*zip(*data, strict=True), color=palette.after, lw=2, label="data files", drawstyle="steps-post")
        if any(number for _, number in deletes):
            points = zip(*deletes, strict=True)
            axes.plot(*points, color=palette.before, lw=2, label="delete files", drawstyle="steps-post")
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2, labelcolor=palette.ink)
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        _lines(axes, palette, times)

    alt_text = f"Data files after each of {format_count(len(data), 'commit')}: now {data[-1][1]:,}"
    return Picture("Files in the table", 190, alt_text, draw)


def _dot(points: Sequence[object]) -> float:
    return 5 if len(points) < 100 else 2.5


def _lines(axes: Axes, palette: Palette, times: Sequence[float]) -> None:
    """Format axes for values over time that begin at zero."""
    _plain(axes, palette, spines=("bottom",))
    axes.grid(axis="y", color=palette.faint, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.03)
    _time_axis(axes, times)


def _dates(times_ms: Sequence[int]) -> list[float]:
    """Return positions on a time axis; a commit from a slow clock gets the position of the previous one."""
    times = (datetime.fromtimestamp(ms / 1000, timezone.utc) for ms in accumulate(times_ms, max))
    return [float(_untyped.date2num(time)) for time in times]


def _time_axis(axes: Axes, times: Sequence[float]) -> None:
    """Label an axis with round times, each in the shortest form that is unique; below it, the day or the years."""
    first, last = times[0], times[-1]
    begin, end = _untyped.num2date(first), _untyped.num2date(last)
    years = f"{begin:%Y}" if begin.year == end.year else f"{begin:%Y} - {end:%Y}"
    locator = _untyped.AutoDateLocator(minticks=2, maxticks=_MOST_TICKS)
    formatter = _untyped.ConciseDateFormatter(locator, **_TIMES)
    ticks = [first]
    if last - first > _MOST_TICKS * _SECOND:
        ticks = [time for time in locator.tick_values(begin, end) if first <= time <= last] or ticks
    axes.set_xticks(ticks, formatter.format_ticks(ticks))
    axes.set_xlabel(f"{begin:%d %b %Y}, UTC" if begin.date() == end.date() else f"{years}, UTC", labelpad=2)
    axes.tick_params(axis="x", pad=6)


def _plain(axes: Axes, palette: Palette, spines: tuple[str, ...]) -> None:
    axes.patch.set_visible(False)
    for name, spine in axes.spines.items():
        spine.set_visible(name in spines)
        spine.set_color(palette.faint)
    axes.tick_params(length=0, colors=palette.ink)
    axes.xaxis.label.set_color(palette.ink)


def printable(text: str) -> str:
    """Return text without characters that are invisible, or that change how the text around them is displayed."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _short(label: str, number: int) -> str:
    name, others = printable(label) or "(whole table)", f" and {number - 1:,} more" if number > 1 else ""
    most = MOST_LABEL - len(others)
    return (name if len(name) <= most else f"…{name[1 - most :]}") + others


@contextmanager
def _settings(svg: bool) -> Iterator[None]:
    """Draw with the same settings in every calling program; names of partitions are not parsed as formulas."""
    own: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "icesize",
        "font.size": _LETTERS,
        "font.family": ["sans-serif"],
        "legend.frameon": False,
        "legend.handlelength": 1.0,
        "text.parse_math": False,
        "path.simplify": True,
        "image.composite_image": not svg,
    }
    with mpl.rc_context(), warnings.catch_warnings():
        # A browser has fonts for letters that matplotlib lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(own)
        yield


def svg(picture: Picture, prefix: str) -> str:
    """Return a chart as an SVG element of a page, as wide as the page allows; its ids begin with `prefix`."""
    text = standalone_svg(picture, _VARIABLES)
    return _within_a_page(text[text.index("<svg") :], prefix)


def standalone_svg(picture: Picture, palette: Palette) -> str:
    """Return a chart as an SVG document."""
    with _settings(svg=True):
        figure = Figure(figsize=(_WIDTH * _POINT, picture.height * _POINT), layout="constrained")
        figure.patch.set_visible(False)
        picture.draw(figure.add_subplot(), palette)
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", dpi=72, metadata=nothing)
    return written.getvalue()


def _within_a_page(text: str, prefix: str) -> str:
    """Return SVG without a size of its own, with colors from the style sheet, and with ids that no other chart has."""
    for number, name in zip(count(1), (field.name for field in fields(Palette)), strict=False):
        text = text.replace(f"#{number:06}", f"var(--{name})")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}", text)


def png(facts: Facts) -> bytes:
    """Return all charts of an overview in two columns, on white."""
    shown = list(pictures(facts).values())
    columns: tuple[list[Picture], list[Picture]] = ([], [])
    for picture in shown:
        min(columns, key=lambda column: sum(p.height + 40 for p in column)).append(picture)
    height = max(sum(picture.height + 40 for picture in column) for column in columns) + 40
    with _settings(svg=False):
        figure = Figure(figsize=(2 * _WIDTH * _POINT, height * _POINT), layout="constrained")
        figure.suptitle(printable(facts.table), color=PRINTED.ink, fontsize=_LETTERS * 1.4)
        halves = figure.add_gridspec(1, 2)
        for number, column in enumerate(columns):
            if not column:
                continue
            part = figure.add_subfigure(halves[0, number])
            heights = [picture.height + 40 for picture in column]
            grid = part.add_gridspec(len(column), 1, height_ratios=heights)
            for row, picture in enumerate(column):
                axes = part.add_subplot(grid[row])
                picture.draw(axes, PRINTED)
                axes.set_title(picture.title, color=PRINTED.ink, loc="left", pad=30, fontsize=_LETTERS * 1.1)
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=144, metadata={"Software": None})
    return written.getvalue()
