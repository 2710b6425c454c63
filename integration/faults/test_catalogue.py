"""The catalogue is complete and the table of it is the one that its tests give."""

from __future__ import annotations

from pathlib import Path

from integration.faults.catalogue import FAULTS, NOT_APPLICABLE, README, Tried, collect, readme

EXAMPLE = '''
@pytest.mark.fault(2)
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=[pytest.mark.fault(3), pytest.mark.slow])])
def test_one(x: int) -> None:
    """One | thing
    holds.

    Not this.
    """

CASES = [pytest.param(n, marks=pytest.mark.slow) for n in range(3)]

@pytest.mark.parametrize("x", CASES)
@pytest.mark.fault(1, 2)
def test_two(x: int) -> None:
    """Another thing holds."""

@pytest.mark.slow
@pytest.mark.fault(1)
def test_three() -> None:
    """A third."""

@pytest.mark.parametrize("x", [pytest.param(n, marks=pytest.mark.slow) if n else n for n in range(3)])
def test_of_no_fault(x: int) -> None:
    """Not listed."""
'''


def test_each_fault_has_a_test_or_a_reason() -> None:
    """All numbers from 1 to 36 are tried or say why not, none does both, and no test names another number."""
    tried = {test.number for test in collect()}
    assert list(FAULTS) == list(range(1, 37))
    assert tried | NOT_APPLICABLE.keys() == FAULTS.keys()
    assert not tried & NOT_APPLICABLE.keys()


def test_promises_are_sentences() -> None:
    """Each test says what it promises, once."""
    promises = {(test.file, test.test): test.promise for test in collect()}
    assert [where for where, promise in promises.items() if not promise.endswith(".")] == []
    assert len(set(promises.values())) == len(promises)


def test_the_table_is_up_to_date() -> None:
    """README.md is what `python -m integration.faults.catalogue` writes."""
    assert README.read_text(encoding="utf-8") == readme(collect())


def test_marks_are_understood(tmp_path: Path) -> None:
    """Numbers and slowness are found at tests, at their cases, and in lists with a name; a file may be slow at all."""
    (tmp_path / "test_a.py").write_text(EXAMPLE)
    (tmp_path / "test_b.py").write_text("pytestmark = [pytest.mark.slow]\n" + EXAMPLE)
    found = collect(tmp_path)
    assert [test for test in found if test.file == "test_a.py"] == [
        Tried(1, "test_a.py", "test_two", "Another thing holds.", fast=False, slow=True),
        Tried(1, "test_a.py", "test_three", "A third.", fast=False, slow=True),
        Tried(2, "test_a.py", "test_one", "One | thing holds.", fast=True, slow=True),
        Tried(2, "test_a.py", "test_two", "Another thing holds.", fast=False, slow=True),
        Tried(3, "test_a.py", "test_one", "One | thing holds.", fast=False, slow=True),
    ]
    assert {(test.fast, test.slow) for test in found if test.file == "test_b.py"} == {(False, True)}
    table = readme(found).splitlines()
    assert "| 1 | driver killed before planning | Another thing holds. | [test_two](test_a.py) | `.ci/full` |" in table
    assert "| |  | A third. | [test_three](test_a.py) | `.ci/full` |" in table
    assert any("One \\| thing holds." in line and line.endswith("| both |") for line in table)
