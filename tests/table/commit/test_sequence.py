"""The drawing of a commit in the package's docstring is the sequence of a real one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.table import commit
from tests.support.tables import two_files

ROOT = Path(commit.__file__).parent


def test_a_commit_makes_the_calls_of_the_drawing_in_its_order(lake: SqlCatalog) -> None:
    """A merge calls each function of the drawing, and none of them out of its place."""
    drawn = re.findall(r"^ {4,6}(\w+\.\w+)  ", commit.__doc__ or "", re.MULTILINE)
    two_files(lake)
    table, calls = icesize.open(None, "lake.db.t", catalog=lake), list[str]()

    def record(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            calls.append(f"{path.stem}.{frame.f_code.co_name}")

    sys.setprofile(record)
    try:
        report = table.compact()
    finally:
        sys.setprofile(None)
    assert report.operations == ("replace",)
    assert [call for call in calls if call in drawn] == drawn
    assert len(drawn) == 10
