"""The summary of the fault tests by component, for the page of guarantees."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Return one line per component."""
    rows = [f"| {one.name} | {one.outcome} |" for one in COMPONENTS]
    return "\n".join(["| what fails | what happens |", "|---|---|", *rows])
