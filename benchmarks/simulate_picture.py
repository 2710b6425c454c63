"""The picture of a simulated stream: costs of the writers, and metadata of a batch while the table grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs_tools import drawings

_MARKERS = "osD^"


def draw(rows: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Draw the rows of all periods as an SVG.

    Left, write amplification and small files of each writer in the last period. Right, metadata and partitions.
    """
    from matplotlib import pyplot

    drawings.configure()
    by_writer = defaultdict[str, list[Mapping[str, Any]]](list)
    for row in rows:
        by_writer[row["writer"]].append(row)
    figure, (costs, metadata) = pyplot.subplots(1, 2, figsize=(10, 4))
    for marker, (name, periods) in zip(_MARKERS, by_writer.items(), strict=False):
        last = periods[-1]
        costs.plot(last["small_files"], last["write_amplification"], marker, markersize=9, label=name)
        kilobytes = [row["metadata_kb"] for row in periods]
        metadata.plot([row["partitions"] for row in periods], kilobytes, marker=marker, label=name)
    costs.set_xlabel("small files in a written partition, mean")
    costs.set_ylabel("write amplification")
    costs.set_xscale("symlog", linthresh=1)
    costs.xaxis.set_major_formatter("{x:g}")
    costs.set_xlim(left=0)
    costs.set_ylim(bottom=1)
    metadata.set_xlabel("partitions of the table")
    metadata.set_ylabel("metadata written by a batch, kB")
    metadata.set_xscale("log")
    metadata.set_ylim(bottom=0)
    for axes in (costs, metadata):
        axes.grid(alpha=0.3)
    costs.legend(fontsize=9)
    drawings.save(figure, target)
