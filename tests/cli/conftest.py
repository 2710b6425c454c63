"""Command lines on the table of a test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import Run, run_in


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command on the table of the test."""
    return run_in(tmp_path)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Ctrl-C has its effect also if the tests run in the background, whose processes ignore it from their start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
