"""The catalogue of faults, and the table of the tests that try them: `python -m integration.faults.catalogue`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"

FAULTS = {
    1: "driver killed before planning",
    2: "driver killed after it read the batch",
    3: "driver killed while writing",
    4: "driver killed after its files are written, before the commit",
    5: "driver killed after the commit, before the checkpoint",
    6: "executor killed (SIGKILL) while writing",
    7: "task fails after writing and is repeated; speculative attempt",
    8: "shuffle file lost, its stage runs again",
    9: "catalog responds 409 once",
    10: "catalog responds 409 always",
    11: "response lost after the commit succeeded: 500, 502, 503, 504, reset, truncated, HTML",
    12: "response lost before the commit succeeded",
    13: "catalog never responds",
    14: "401 or 403 in the commit; token expires between write and commit",
    15: "batch delivered again",
    16: "batch delivered again after its snapshot expired",
    17: "checkpoint deleted, same stream id",
    18: "zombie driver commits the same batch",
    19: "two streams write one table",
    20: "another writer appends during a merge",
    21: "another compaction removes a file during its merge",
    22: "row delete, equality delete or deletion vector for a file that is being merged",
    23: "schema changed during a batch",
    24: "partition spec changed during a batch",
    25: "table dropped, recreated or renamed",
    26: "snapshot expired during a read; file to be merged is missing",
    27: "file to be merged is damaged or truncated",
    28: "disk full, or a quota reached",
    29: "object store responds 503 SlowDown, or slowly",
    30: "orphan cleanup while a batch is written",
    31: "clock jumps a day back or ahead",
    32: "catalog shows an old state of the table",
    33: "batch that is empty, huge, of one key, or of 10,000 partitions",
    34: "checkpoint cannot be written after the commit",
    35: "maintenance killed before or after its commit, or while deleting",
    36: "rollback of a snapshot with a committed batch; main moved off its history",
}

NOT_APPLICABLE: dict[int, str] = {}
"""Faults that need no test, with the reason."""

INTRODUCTION = """\
# Faults tested

`python -m integration.faults.catalogue` generates this table from the tests: a promise is the docstring of its test.
Each test uses real files and a real catalog, and Spark if the fault concerns Spark. A killed driver or job is a child
process that receives SIGKILL and is started again.

Most tables have format v2. Of the tests marked `any_format`, about one case in four uses format v3.

Each test then checks the following (`FaultedTable.holds`):

- The rows of the table are exactly those of the input: none lost, none duplicated, none returned. PyIceberg and
  Iceberg's Spark runtime both read them.
- Each batch of a stream has one `append` snapshot, and at most one `replace` snapshot on top of it.
- Every file in the metadata exists, with the size and rows of its manifest entry. None is listed twice, and the totals
  of the snapshot are correct.
- No partition has more small files than allowed, unless a report names it. One compaction removes the excess.
- Orphan cleanup that runs days later keeps exactly the files of the table's snapshots, and the rows do not change.
- No file of a neighboring table was touched.

`.ci/run` runs for every change, `.ci/full` before a release. "both" means that some cases run in `.ci/full` only.
"""


@dataclass(frozen=True)
class Tried:
    """One test of one fault. `fast` and `slow`: whether some of its cases run in `.ci/run`, and only in `.ci/full`."""

    number: int
    file: str
    test: str
    promise: str
    fast: bool
    slow: bool

    @property
    def when(self) -> str:
        """Where it runs, as the table says it."""
        if self.fast and self.slow:
            return "both"
        return "`.ci/run`" if self.fast else "`.ci/full`"


def collect(folder: Path = FOLDER) -> list[Tried]:
    """All tests of `folder` that are marked with a fault, by number, file and place in it; nothing is imported."""
    found = [
        tried
        for path in sorted(folder.glob("test_*.py"))
        for tried in _tests_of(ast.parse(path.read_text(encoding="utf-8")), path.name)
    ]
    return sorted(found, key=lambda tried: tried.number)


def readme(tests: Iterable[Tried]) -> str:
    """The whole text of README.md."""
    by_number: dict[int, list[Tried]] = {}
    for tried in tests:
        by_number.setdefault(tried.number, []).append(tried)
    lines = ["| # | fault | promise | test | runs in |", "|---|---|---|---|---|"]
    for number, fault in FAULTS.items():
        lines += _rows(number, fault, by_number.get(number, []))
    return INTRODUCTION + "\n" + "\n".join(lines) + "\n"


def _rows(number: int, fault: str, tests: list[Tried]) -> Iterator[str]:
    if not tests:
        yield f"| {number} | {fault} | {NOT_APPLICABLE.get(number, '')} | | |"
    head = f"{number} | {fault}"
    for tried in tests:
        promise = tried.promise.replace("|", "\\|")
        yield f"| {head} | {promise} | [{tried.test}]({tried.file}) | {tried.when} |"
        head = "| "


def _tests_of(module: ast.Module, file: str) -> Iterator[Tried]:
    names = _assigned(module)
    all_slow = "pytestmark" in names and _is_slow(names["pytestmark"])
    for function in module.body:
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
            promise = " ".join((ast.get_docstring(function) or "").split("\n\n")[0].split())
            for number in sorted({*_faults(*function.decorator_list)}):
                fast, slow = _speeds(function, number, names)
                yield Tried(number, file, function.name, promise, fast and not all_slow, slow or all_slow)


def _speeds(function: ast.FunctionDef, number: int, names: dict[str, ast.expr]) -> tuple[bool, bool]:
    """Whether cases of this number exist that are not slow, and that are."""
    decorators = function.decorator_list
    lists = [d.args[1] for d in decorators if isinstance(d, ast.Call) and _dotted(d.func) == "pytest.mark.parametrize"]
    fast, slow = True, any(_dotted(d) == "pytest.mark.slow" for d in decorators)
    for values in lists:
        cases = _cases(names.get(values.id, values) if isinstance(values, ast.Name) else values)
        mine = [case for case in cases if number in {*_faults(case)}] or cases
        fast = fast and not all(_is_slow(case) for case in mine)
        slow = slow or any(_is_slow(case) for case in mine)
    return fast and not any(_dotted(d) == "pytest.mark.slow" for d in decorators), slow


def _cases(values: ast.expr) -> list[ast.expr]:
    """The cases of a parametrized test, as far as they are written out."""
    if isinstance(values, ast.List | ast.Tuple):
        return [case for value in values.elts for case in _cases_in(value)]
    return _cases_in(values)


def _cases_in(value: ast.expr) -> list[ast.expr]:
    found = [n for n in ast.walk(value) if isinstance(n, ast.Call) and _dotted(n.func) == "pytest.param"]
    return [*found] or [value]


def _faults(*expressions: ast.expr) -> Iterator[int]:
    """Numbers of all `pytest.mark.fault(...)` in these expressions."""
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and _dotted(node.func) == "pytest.mark.fault":
                yield from (int(ast.literal_eval(argument)) for argument in node.args)


def _is_slow(expression: ast.expr) -> bool:
    return any(_dotted(node) == "pytest.mark.slow" for node in ast.walk(expression))


def _assigned(module: ast.Module) -> dict[str, ast.expr]:
    """What the names of a module stand for."""
    return {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of an expression like that; otherwise empty."""
    if isinstance(node, ast.Attribute) and (left := _dotted(node.value)):
        return f"{left}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    README.write_text(readme(collect()), encoding="utf-8")
