"""The count of code lines, which says whether the product grows."""

from __future__ import annotations

from docs_tools.code_lines import code_lines, modules, public_names, repeated_names

SOURCE = '''"""A docstring."""

import math  # a comment

# another
Key = int | str
LIMIT = 3


class Shape:
    """One,
    two."""

    area = (
        math.pi
    )


def _hidden() -> str:
    return """text
of two lines"""
'''


def test_only_code_is_counted() -> None:
    """Docstrings, comments and blank lines are none; text that is a value is."""
    assert code_lines(SOURCE) == 10


def test_names_are_those_that_others_may_import() -> None:
    """Classes, functions and aliases, without constants."""
    assert [*public_names(SOURCE)] == ["Key", "Shape"]


SHARED = {
    "Key": "a type variable of the routing modules, which do not import each other",
    "PageLocation": "the name of the Parquet format: its fields as stored, and the value made of them",
    "Positions": "an array of row positions in both",
    "RowGroup": "the name of the Parquet format: its fields as stored, and the value made of them",
    "Rows": "positions of rows in an order, and the ranges of rows in a manifest",
    "Version": "a version that retention counts, and the one that users read",
    "Words": "an array of 64-bit words in both",
    "main": "programs",
    "run": "the command line of a process, and a batch",
    "runs_of": "row ids of a file, and parts of new row groups",
}
"""Public names that several modules define -> why."""


def test_one_name_has_one_meaning() -> None:
    """A public name is defined once, or the list says why."""
    assert repeated_names(modules()).keys() <= SHARED.keys()
    assert len(SHARED) <= 15
