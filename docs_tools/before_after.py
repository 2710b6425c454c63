"""The chart of the README: a table's files after a plain writer, and after `compact`.

PyIceberg appends 20,000 events of the demo in each of 48 batches; the target file size is 1 MiB.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import icesize
from docs_tools.blocks import DOCS
from icesize.demo.events import batch
from icesize.demo.lake import NAMESPACE, Lake
from icesize.presentation.charts import BOTH, sizes, standalone_svg
from icesize.presentation.facts import Comparison

BATCHES, ROWS = 48, 20_000


def write() -> None:
    """Fill such a table, compact it, and draw both states."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake")
        lake.create("events")
        for number in range(BATCHES):
            lake.load("events").append(batch(number, ROWS))
        table = icesize.open(None, f"{NAMESPACE}.events", catalog=lake.catalog())
        before = table.report().sizes.before
        table.compact()
        after = table.report().sizes.after
    picture = sizes(Comparison(before, "before", after, "after icesize compact"))
    (DOCS / "images" / "before-after.svg").write_text(standalone_svg(picture, BOTH), encoding="utf-8")
