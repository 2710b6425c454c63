"""The machine in its budget of time, as a process of its own, and its pure parts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, ListType, LongType, NestedField, StringType, StructType

from integration.evolution.icesize_operations import OPERATIONS
from integration.evolution.program import (
    CONCURRENT_WEIGHTS,
    FOLLOWS,
    ICESIZE_WEIGHTS,
    POINTS,
    USER_WEIGHTS,
    Program,
    Step,
    generate,
)
from integration.evolution.shrink import shrunk
from integration.evolution.statements import STATEMENTS
from integration.evolution.values import Draw, Skip, as_json, filters, rows

ROOT = Path(__file__).resolve().parents[2]
SECONDS, SLOW_SECONDS = 120, 45 * 60
FIRST_SEED, PROGRAMS = 20_000_000, 3
"""Of the ordinary run: always the same programs, as many of them as there is time for."""
SLOW_FIRST_SEED = 30_000_000
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "d", DoubleType(), required=False),
    NestedField(3, "s", StructType(NestedField(4, "a", IntegerType(), required=False)), required=False),
    NestedField(5, "l", ListType(6, StringType(), element_required=False), required=False),
)


def machine(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The machine in a process of its own; its tables lie in a folder."""
    command = [sys.executable, "-m", "integration.evolution", "--folder", str(folder), *options]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run_for(seconds: int, seed: int, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Programs from a seed on, as long as that or as `EVOLUTION_SECONDS` says."""
    budget = ("--seconds", os.environ.get("EVOLUTION_SECONDS", str(seconds)), "--seed", str(seed))
    return machine(folder, *budget, *options)


def test_some_programs_find_nothing(tmp_path: Path) -> None:
    """A kept table and its twin stay the same through random histories."""
    done = run_for(SECONDS, FIRST_SEED, tmp_path, "--programs", str(PROGRAMS))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_many_programs_find_nothing(tmp_path: Path) -> None:
    """The same for 45 minutes."""
    done = run_for(SLOW_SECONDS, SLOW_FIRST_SEED, tmp_path)
    assert done.returncode == 0, done.stdout


INJECTED_DAMAGE = {
    "plant-lost-row": "other rows than the twin",
    "plant-resurrection": "other rows than the twin",
    "plant-wrong-partition": "partition c0_bucket says",
    "plant-wrong-bounds": "outside of its bounds",
    "plant-path-again": "listed as deleted",
    "plant-left-file": "no snapshot ever had",
    "plant-wrong-total": "total-records says 3, it would be 2",
}


@pytest.mark.slow
def test_planted_faults_are_found_and_their_programs_made_short(tmp_path: Path) -> None:
    """What the machine is for, it sees: each kind of damage to the kept table alone, in as few steps as it needs."""
    needs = {"plant-resurrection": "delete-positions:5 plant-resurrection"}
    programs = [
        f"create:9173 append:1 order:1 append:2 move-column:5 {needs.get(fault, fault)}:1 property:1"
        for fault in INJECTED_DAMAGE
    ]
    done = machine(tmp_path, "--shrink-seconds", "60", *(part for text in programs for part in ("--program", text)))
    assert done.returncode == 1, done.stdout
    *failures, _ = done.stdout.split("again: ")
    shortest = [part.splitlines()[0] for part in done.stdout.split("again: ")[1:]]
    for (fault, told), failure, program in zip(INJECTED_DAMAGE.items(), failures, shortest, strict=True):
        assert told in failure
        assert fault in program
        assert needs.get(fault, "") in program
        assert "order" not in program
        assert "move-column" not in program


def test_a_seed_is_a_program_and_its_text_is_too() -> None:
    """Programs come from their seed alone, differ from each other, and can be read back from what is printed."""
    programs = [generate(seed, deletes) for seed in range(100) for deletes in (False, True)]
    assert programs == [generate(seed, deletes) for seed in range(100) for deletes in (False, True)]
    # those of the two modes may be the same, if a program begins with a scene of both
    assert (len(set(programs[::2])), len(set(programs[1::2]))) == (100, 100)
    assert all(Program.parse(str(program)) == program for program in programs)


def test_every_kind_of_step_comes() -> None:
    """No statement, no operation and no failpoint is forgotten by the generator."""
    steps = [step for seed in range(3_000) for step in generate(seed).steps]
    assert {s.kind for s in steps} == {"create", *USER_WEIGHTS, *ICESIZE_WEIGHTS}
    assert {s.middle.kind for s in steps if s.middle} == set(CONCURRENT_WEIGHTS)
    assert {(s.kind, s.point) for s in steps if s.point} == {(k, p) for k, points in POINTS.items() for p in points}


def test_every_kind_of_step_is_known() -> None:
    """What the generator names is there to be applied."""
    assert {*USER_WEIGHTS, *CONCURRENT_WEIGHTS} <= STATEMENTS.keys()
    assert ICESIZE_WEIGHTS.keys() == OPERATIONS.keys()
    assert POINTS.keys() <= ICESIZE_WEIGHTS.keys()
    assert {kind for follows in FOLLOWS.values() for kind in follows} <= {*USER_WEIGHTS, *ICESIZE_WEIGHTS}


FOREIGN_TOTALS = "create:5670 replace-table:2438 replace-partitions:2576 add-files:7287 compact:1613"


@pytest.mark.slow
def test_totals_that_others_left_wrong_are_not_held_against_us(tmp_path: Path) -> None:
    """Spark's add_files does not add the size of the files to the total, from which a merge after it goes on."""
    done = machine(tmp_path, "--program", FOREIGN_TOTALS)
    assert done.returncode == 0, done.stdout
    assert "files +1 -2" in done.stdout


@dataclass(frozen=True)
class _Outcome:
    failure: str | None
    told: tuple[str, ...] = field(default=())


@given(st.integers(0, 500), st.data())
def test_shrinking_keeps_what_fails_and_nothing_else(seed: int, data: st.DataObject) -> None:
    """A failure that needs two steps, one with a statement in its middle, is shrunk to these two."""
    steps = generate(seed).steps
    at = data.draw(st.integers(1, len(steps) - 1))
    guilty = Step("sink", 1, "planned", Step("promote", 2))
    program = Program((*steps[:at], guilty, *steps[at:], Step("compact", -1)))

    def run(tried: Program) -> _Outcome:
        fails = guilty in tried.steps and Step("compact", -1) in tried.steps
        return _Outcome("it fails" if fails else None, tuple(map(str, tried.steps)))

    shortest, outcome = shrunk(program, run(program), run, lambda: True)
    assert shortest == Program((steps[0], guilty, Step("compact", -1)))
    assert outcome.failure


def test_shrinking_drops_what_was_not_run() -> None:
    """Steps after the failing one go at once, without being tried."""
    program = Program(tuple(Step("append", i) for i in range(9)))
    shortest, _ = shrunk(program, _Outcome("it fails", ("", "", "")), lambda p: _Outcome("no"), lambda: False)
    assert shortest == Program(program.steps[:3])


@given(st.integers(0, 10_000), st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=2))
def test_a_choice_stays_when_another_thing_goes(seed: int, things: set[str]) -> None:
    """Which thing a step chooses does not hang on the others, so that shortened programs mean the same."""
    chosen = Draw(seed).one(things)
    for gone in things - {chosen}:
        assert Draw(seed).one(things - {gone}) == chosen


def test_nothing_to_choose_from_skips_the_statement() -> None:
    """A step that finds nothing of its kind is left out."""
    with pytest.raises(Skip):
        Draw(1).one([])


@given(st.integers(0, 10_000))
def test_rows_and_filters_come_from_the_seed_and_fit_the_schema(seed: int) -> None:
    """The same seed gives the same rows and filters, and each engine can be told of them."""
    found = rows(SCHEMA, Draw(seed))
    assert as_json(SCHEMA, found) == as_json(SCHEMA, rows(SCHEMA, Draw(seed)))
    assert all(row.keys() == {"id", "d", "s", "l"} for row in found)
    wanted = filters(SCHEMA, seed)
    assert [f.java for f in wanted] == [f.java for f in filters(SCHEMA, seed)]
    assert {f.column for f in wanted} == {"id", "d", "s.a"}
    assert all(str(f.pyiceberg) and f.sql for f in wanted)
