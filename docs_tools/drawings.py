"""The plots of the policy page, drawn from the simulation that the benchmark `policy` runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from docs_tools.blocks import DOCS
from icesize.planning.merging.schedule import choose_prefix
from tests.support.merge_optimum import equal_batches, optima, simulate

SLOTS = (1, 2, 3, 4, 6, 8, 12)
"""Values of `max-small-files`."""
ARRIVALS = (17, 32, 64, 128, 256)
"""Batches that make one full file, in one partition."""
_LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))


@cache
def measured() -> dict[tuple[int, int], tuple[float, float]]:
    """(k, batches per full file) -> W of the policy, and the least W that any schedule could have."""
    best = optima(max(ARRIVALS), max(SLOTS))
    return {(k, n): (_amplification(k, n), best[k][n]) for k in SLOTS for n in ARRIVALS}


def _amplification(slots: int, per_file: int) -> float:
    workload = equal_batches(per_file)
    outcome = simulate(lambda small: choose_prefix(small, workload.limit, slots), workload.sizes, workload.limit)
    return outcome.write_amplification


def table() -> str:
    """The same as a table: W, and in brackets the optimum."""
    head = ["| batches per full file |", *(f" k = {k} |" for k in SLOTS)]
    rows = [f"| {n} | " + " | ".join(f"{_words(*measured()[k, n])}" for k in SLOTS) + " |" for n in ARRIVALS]
    return "\n".join(["".join(head), "|---" * (len(SLOTS) + 1) + "|", *rows])


def _words(ours: float, best: float) -> str:
    return f"{ours:.1f} ({best:.1f})"


def write() -> None:
    """Draw both plots, each light enough for a phone and readable on dark and light pages."""
    import matplotlib as mpl

    mpl.use("svg")
    # text stays text, and the same numbers make the same file
    mpl.rcParams.update({"svg.hashsalt": "icesize", "svg.fonttype": "none", "font.size": 11})
    _draw("policy-w-k.svg", "max-small-files (k)", SLOTS, ARRIVALS, lambda k, n: (k, n), "{} batches per full file")
    _draw("policy-w-n.svg", "batches per full file", ARRIVALS, SLOTS, lambda n, k: (k, n), "k = {}")


def _draw(name: str, title: str, along: Sequence[int], lines: Sequence[int], key: object, label: str) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    figure.patch.set_facecolor("white")
    for index, line in enumerate(lines):
        ours = [measured()[key(x, line)][0] for x in along]  # type: ignore[operator]
        style = _LINE_STYLES[index % len(_LINE_STYLES)]
        axes.plot(along, ours, marker="o", markersize=4, linestyle=style, label=label.format(line))
    axes.set_xlabel(title)
    axes.set_ylabel("W: bytes written per byte ingested")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(along), [str(x) for x in along])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    figure.tight_layout()
    (DOCS / "images").mkdir(exist_ok=True)
    figure.savefig(DOCS / "images" / name, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
