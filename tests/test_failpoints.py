"""Failpoints do nothing until armed, and then exactly what they were told, in this process or a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from icesize import failpoints

CHILD = """
from icesize import failpoints
for point in ("planned", "before-swap", "planned", "before-swap"):
    print(point, flush=True)
    failpoints.reach(point)
print("end", flush=True)
"""


def child(armed: str) -> subprocess.CompletedProcess[str]:
    return run(failpoints.for_child(armed))


def run(variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != failpoints.TESTING} | dict(variables)
    return subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=60)


def test_an_unarmed_point_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arming and without the variable every point is passed."""
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    for point in failpoints.POINTS:
        assert failpoints.reach(point) is None  # type: ignore[func-returns-value]


def test_an_armed_point_runs_its_action_each_time_until_the_block_ends() -> None:
    """The action runs in whatever thread gets there, not at other points, and no more afterwards."""
    seen: list[str] = []
    with failpoints.armed("planned", lambda: seen.append(threading.current_thread().name)):
        failpoints.reach("planned")
        failpoints.reach("files-written")
        thread = threading.Thread(target=failpoints.reach, args=("planned",), name="other")
        thread.start()
        thread.join()
    failpoints.reach("planned")
    assert seen == [threading.current_thread().name, "other"]


def test_a_misspelt_point_is_refused() -> None:
    """A test that arms nothing would pass for the wrong reason."""
    with (
        pytest.raises(ValueError, match="Cannot arm 'planed': the points are batch-started, "),
        failpoints.armed("planed", int),
    ):
        raise AssertionError("not refused")


def test_points_are_disarmed_when_the_action_raises() -> None:
    """An exception on the way out leaves no trap for the next test."""

    def fail() -> None:
        raise RuntimeError("armed")

    with pytest.raises(RuntimeError, match="armed"), failpoints.armed("planned", fail):
        failpoints.reach("planned")
    failpoints.reach("planned")


def test_a_child_is_killed_the_nth_time() -> None:
    """`point@2=kill` lets the first pass and kills at the second, with SIGKILL."""
    done = child("before-swap@2=kill")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["planned", "before-swap", "planned", "before-swap"]


def test_a_child_raises_at_the_first_of_several_points() -> None:
    """Several points can be armed; `raise` names the point."""
    done = child("after-swap=kill;before-swap=raise")
    assert done.returncode == 1
    assert done.stdout.split() == ["planned", "before-swap"]
    assert "before-swap" in done.stderr.splitlines()[-1]


def test_a_child_waits_for_a_file(tmp_path: Path) -> None:
    """`wait:PATH` goes on once the file exists."""
    (tmp_path / "go").touch()
    assert child(f"planned=wait:{tmp_path}/go").stdout.split()[-1] == "end"


@pytest.mark.parametrize("testing", [{}, {failpoints.TESTING: "0"}, {failpoints.TESTING: ""}])
def test_points_are_ignored_where_tests_are_not_meant(testing: Mapping[str, str]) -> None:
    """In production a stray variable neither kills nor fails a process, whatever it holds; one line warns of it."""
    done = run({failpoints.VARIABLE: "planned=kill;before-swap=explode", **testing})
    assert (done.returncode, done.stdout.split()[-1]) == (0, "end")
    warning = "ICESIZE_FAILPOINTS is set and ignored: it is for tests, and needs ICESIZE_TESTING=1. Unset it."
    assert done.stderr.splitlines() == [warning]


def test_an_unknown_action_is_an_error() -> None:
    """A misspelt action stops the child instead of being passed silently."""
    done = child("planned=explode")
    assert done.returncode == 1
    assert "'explode' is none of raise, kill, raise-once:PATH" in done.stderr


def test_an_action_for_the_first_process_only(tmp_path: Path) -> None:
    """`kill-once:PATH` kills the first process that gets there; those after it find the sign and pass."""
    armed = f"before-swap=kill-once:{tmp_path}/sign"
    assert [child(armed).returncode for _ in range(2)] == [-signal.SIGKILL, 0]
    assert (tmp_path / "sign").exists()
