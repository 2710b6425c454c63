"""The examples in docstrings of SizedTable: they run on a real table, and those with Spark name real arguments."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pyarrow as pa
import pytest

import icesize
from docs_tools.lake import gone_bad
from icesize import SizedTable

EXAMPLES = {
    name: doctest.DocTestParser().get_doctest(method.__doc__ or "", {}, name, __file__, 0)
    for name, method in inspect.getmembers(SizedTable, inspect.isfunction)
    if ">>> " in (method.__doc__ or "")
}
WITH_SPARK = ("sink",)


def test_the_calls_that_change_a_table_have_an_example() -> None:
    """What a newcomer looks up first shows a call, of up to five lines with its output."""
    assert {"sink", "compact", "maintain", "restore", "upsert"} <= EXAMPLES.keys()
    assert [name for name, example in EXAMPLES.items() if len(example.examples) > 5] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_name_arguments_that_exist(name: str) -> None:
    """Each call of a method of SizedTable, or of `icesize.open`, fits its signature."""
    checked = 0
    for call in ast.walk(ast.parse("".join(each.source for each in EXAMPLES[name].examples))):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
        ):
            owner = {"table": SizedTable, "icesize": icesize}.get(call.func.value.id)
            if owner is not None:
                parameters = inspect.signature(getattr(owner, call.func.attr))
                owned = [None] if owner is SizedTable else []
                parameters.bind(*owned, *call.args, **{word.arg or "": None for word in call.keywords})
                checked += 1
    assert checked >= 2


@pytest.mark.engine
def test_examples_run(tmp_path: Path) -> None:
    """One after the other, each line prints what the docstring shows, on the table of the docs."""
    printed: list[str] = []
    with gone_bad(tmp_path) as catalog:
        accounts = pa.table({"id": [1, 2, 3], "balance": [10, 20, 30]})
        catalog.create_table("db.accounts", accounts.schema).append(accounts)
        for name in sorted(EXAMPLES.keys() - WITH_SPARK):
            EXAMPLES[name].globs = {"icesize": icesize, "pa": pa}
            doctest.DocTestRunner().run(EXAMPLES[name], out=printed.append)
    assert printed == []
