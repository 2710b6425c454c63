"""The page of faults: a summary by component, then the tests of each component in a folded block."""

from __future__ import annotations

import re
from dataclasses import dataclass

from integration.faults.catalogue import FAULTS, INTRODUCTION, Tried, collect


@dataclass(frozen=True)
class Component:
    """A part of the system that fails in some of the tests, and the outcome in one sentence."""

    name: str
    outcome: str
    faults: tuple[int, ...]


COMPONENTS = (
    Component(
        "Driver", "After a restart, the sink writes the batch again, or skips it if it was committed.", (1, 2, 3, 4, 5)
    ),
    Component("Executors and tasks", "Spark repeats the task; the table contains the files of one attempt.", (6, 7, 8)),
    Component(
        "Catalog rejects a commit",
        "icesize retries until `commit-deadline-ms`, then fails. It leaves no file unless the outcome is unknown.",
        (9, 10),
    ),
    Component(
        "Catalog response is lost or old",
        "icesize checks the outcome; if it cannot, it deletes nothing.",
        (11, 12, 13, 32),
    ),
    Component(
        "Rights and tokens",
        "A renewed token is used. Otherwise, the call fails, or background merges are dropped; no file remains.",
        (14,),
    ),
    Component(
        "Replayed batches",
        "The sink skips the batch, even after its snapshot expired, and refuses a driver with an older batch.",
        (15, 16, 18),
    ),
    Component("Checkpoint", "The sink refuses a new or older checkpoint until you accept it.", (17, 34)),
    Component("Other writers", "The rows are committed; a conflicting merge is dropped.", (19, 20, 21, 22)),
    Component(
        "Table changes during a batch",
        "The rows are committed in the new schema, or the batch fails.",
        (23, 24, 25, 36),
    ),
    Component(
        "Missing or damaged files",
        "icesize drops and reports the merge, and commits other changes; `maintain` fails if a file is missing.",
        (26, 27),
    ),
    Component("Disk and object store", "The batch fails and leaves no file, or continues without merges.", (28, 29)),
    Component("Cleanup and clocks", "Recent files stay; no snapshot expires early.", (30, 31)),
    Component("Unusual batches", "An empty batch commits nothing; a huge or uneven batch is one commit.", (33,)),
    Component("Killed maintenance", "The commit is complete or absent; the next run continues.", (35,)),
)


def summary() -> str:
    """Return one line per component, each with a link to its tests."""
    rows = [
        f"| [{one.name}](#{_anchor(one.name)}) | {one.outcome} | {', '.join(map(str, one.faults))} |"
        for one in COMPONENTS
    ]
    return "\n".join(["| what fails | what happens | faults |", "|---|---|---|", *rows])


def checks() -> str:
    """Return what every test checks, in the words of the catalogue."""
    start, end = INTRODUCTION.index("- "), INTRODUCTION.rindex("\n\n")
    return INTRODUCTION[start:end]


def details() -> str:
    """Return a section for each component, with a line for each fault and its tests in a folded block."""
    tests = collect()
    return "\n\n".join(_section(one, [test for test in tests if test.number in one.faults]) for one in COMPONENTS)


def _section(component: Component, tests: list[Tried]) -> str:
    faults = "\n".join(f"- **{number}**: {FAULTS[number]}" for number in component.faults)
    by_test: dict[tuple[str, str], list[Tried]] = {}
    for test in tests:
        by_test.setdefault((test.file, test.test), []).append(test)
    rows = [_row(numbers) for numbers in by_test.values()]
    table = "\n".join(["| fault | promise | test | runs in |", "|---|---|---|---|", *rows])
    noun = "test" if len(rows) == 1 else "tests"
    folded = f'<details markdown="1">\n<summary>{len(rows)} {noun}</summary>\n\n{table}\n\n</details>'
    return f"### {component.name}\n\n{component.outcome}\n\n{faults}\n\n{folded}"


def _row(tests: list[Tried]) -> str:
    """Return the row of one test of one or more faults of a component."""
    numbers = ", ".join(str(test.number) for test in tests)
    times = {test.when for test in tests}
    when = times.pop() if len(times) == 1 else "both"
    promise = tests[0].promise.replace("|", "\\|")
    return f"| {numbers} | {promise} | `{tests[0].test}` | {when} |"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w]+", "-", heading.lower())
