"""Runs a program in a process of its own, so that none warms up another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ERROR_LINES_SHOWN = 12


def run_child(module: str, *arguments: str, under: Sequence[str] = ()) -> dict[str, Any]:
    """The last JSON object that `python -m module arguments` prints on a line of its own; `under` is a command that
    runs it, and may print after it.

    Raises RuntimeError with the end of its errors when it fails, and when icesize logs an internal error.
    """
    command = [*under, sys.executable, "-m", module, *arguments]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        # Indented lines are stack frames, most of them Spark's own.
        told = [line for line in done.stderr.splitlines() if line.strip() and not line[0].isspace()]
        raise RuntimeError("\n".join([f"Cannot run {module} {' '.join(arguments)}:", *told[-_ERROR_LINES_SHOWN:]]))
    if "Internal error of icesize" in done.stderr:
        raise RuntimeError(f"{module} logged an internal error:\n{done.stderr}")
    answer: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return answer
