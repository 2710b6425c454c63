"""Command lines on the table of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Run, run_in


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command on the table of the test."""
    return run_in(tmp_path)
