"""The plot of the page of settings, from the simulation of the benchmark `policy`, and the layers of the code."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from docs_tools.blocks import DOCS
from docs_tools.rooms import FLOORS, arrows, floor_of, rooms
from icesize.planning.merging.chosen_files import choose_prefix
from tests.support.merge_optimum import equal_batches
from tests.support.one_partition import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = DOCS / "images"
SLOTS = (1, 2, 3, 4, 6, 8, 12)
"""Values of `max-small-files`."""
ARRIVALS = (17, 32, 64, 128, 256)
"""Batches that make one full file, in one partition."""
_LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))


@cache
def measured() -> dict[tuple[int, int], float]:
    """Return the write amplification of the policy for pairs of `max-small-files` and batches per full file."""
    return {(k, n): _amplification(k, n) for k in SLOTS for n in ARRIVALS}


def _amplification(slots: int, per_file: int) -> float:
    workload = equal_batches(per_file)
    outcome = simulate(lambda small: choose_prefix(small, workload.limit, slots), workload.sizes, workload.limit)
    return outcome.write_amplification


def table() -> str:
    """Return the same as a table."""
    head = ["| batches per full file |", *(f" {k} small |" for k in SLOTS)]
    rows = [f"| {n} | " + " | ".join(f"{measured()[k, n]:.1f}" for k in SLOTS) + " |" for n in ARRIVALS]
    return "\n".join(["".join(head), "|---" * (len(SLOTS) + 1) + "|", *rows])


def configure() -> None:
    """Set up plots: text stays text, and the same numbers make the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "icesize", "svg.fonttype": "none", "font.size": 11})


def write() -> None:
    """Draw all plots, each small enough for a phone and readable on dark and light pages."""
    configure()
    _draw_policy()
    _draw_house()


def _draw_policy() -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for per_file, style in zip(ARRIVALS, _LINE_STYLES, strict=True):
        ours = [measured()[slots, per_file] for slots in SLOTS]
        label = f"{per_file} batches per full file"
        axes.plot(SLOTS, ours, marker="o", markersize=4, linestyle=style, label=label)
    axes.set_xlabel("max-small-files")
    axes.set_ylabel("write amplification")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(SLOTS), [str(slots) for slots in SLOTS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    save(figure, IMAGES / "policy-w-k.svg")


def save(figure: Figure, target: Path) -> None:
    """Write a plot to an SVG file."""
    from matplotlib import pyplot

    figure.patch.set_facecolor("white")
    figure.tight_layout()
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def _draw_house() -> None:
    """Draw the layers of the code as boxes with their packages, and arrows to the layers that each one uses."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    floors = list(FLOORS)
    inside = {floor: [name for name, _ in rooms() if floor_of(name) == floor and name != floor] for floor in floors}
    figure, axes = pyplot.subplots(figsize=(7, 0.95 * len(floors)))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, len(floors))
    axes.axis("off")
    for level, floor in enumerate(floors):
        axes.add_patch(Rectangle((0.02, level + 0.12), 0.96, 0.68, facecolor="#e8eaf6", edgecolor="#3f51b5"))
        axes.text(0.04, level + 0.58, floor, weight="bold", va="center")
        axes.text(0.32, level + 0.58, FLOORS[floor], va="center", fontsize=9)
        names = "   ".join(name.rpartition(".")[2] for name in inside[floor])
        axes.text(0.04, level + 0.29, names, va="center", fontsize=9, color="#3f51b5")
    for floor, used in arrows():
        begin, end = (0.5, floors.index(floor) + 0.12), (0.5, floors.index(used) + 0.80)
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": "#3f51b5"})
    save(figure, IMAGES / "rooms.svg")
