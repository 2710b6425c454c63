"""The drawing in the docstring of `icesize.spark.stream` is the order of calls of a batch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

import icesize
from icesize.spark import stream
from tests.support.spark_lake import Lake, counted, events

PACKAGE = str(Path(icesize.__file__).parent)


def drawing() -> list[str]:
    """The lines of the drawing without their remarks."""
    lines = [line[4:] for line in (stream.__doc__ or "").splitlines() if line.startswith("    ")]
    return [line.split("  # ")[0].rstrip() for line in lines]


def calls_of(names: set[str], action: object) -> list[str]:
    """The calls of functions with these names, indented by the calls of others of them that they are part of."""
    found, depth = list[str](), 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal depth
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        name = f"{Path(code.co_filename).stem}.{code.co_name}"
        if name in names:
            depth -= event == "return"
            if event == "call":
                found.append("  " * depth + name)
                depth += 1

    sys.setprofile(note)
    try:
        action()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return found


def test_the_drawing_is_the_order_of_calls(spark: SparkSession, lake: Lake) -> None:
    """A batch of an append calls the functions of the drawing in its order."""
    lake.create()
    sink, batch = lake.open(spark).sink("s"), counted(spark, events([1]))
    drawn = drawing()
    assert calls_of({line.strip() for line in drawn}, lambda: sink(batch, 0)) == drawn
