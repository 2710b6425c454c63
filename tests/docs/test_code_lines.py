"""The count of code lines, which says whether the product grows."""

from __future__ import annotations

from docs_tools.code_lines import code_lines, public_names

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
