"""The drawing of a commit in the package's docstring is the sequence of a real one."""

from __future__ import annotations

import re

from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.table import commit
from tests.support.drawings import calls_of
from tests.support.tables import two_files


def test_a_commit_makes_the_calls_of_the_drawing_in_its_order(lake: SqlCatalog) -> None:
    """A merge calls each function of the drawing, and none of them out of its place."""
    drawn = re.findall(r"^ {4,6}(\w+\.\w+)  ", commit.__doc__ or "", re.MULTILINE)
    two_files(lake)
    table = icesize.open(None, "lake.db.t", catalog=lake)
    calls = calls_of(drawn, lambda: table.compact())
    assert [call.strip() for call in calls] == drawn
    assert len(drawn) == 10
