"""The program as people meet it: a command line in this process, or a process of its own on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from click.testing import CliRunner, Result

from icesize.cli.main import main

Run = Callable[..., Result]
"""`run("inspect", "--json")`: a command on the table of the test, or on the one called `name`."""


def catalog_uri(folder: Path) -> str:
    """Of `tests.support.tables.sqlite_catalog(folder)`."""
    return f"sqlite:///{folder}/catalog.db"


def run_in(folder: Path) -> Run:
    """Runs command lines on `lake.db.t` of the catalog in a folder."""

    def run(command: str, *options: str, name: str = "lake.db.t", **others: str) -> Result:
        return CliRunner().invoke(main, [command, name, "--catalog-uri", catalog_uri(folder), *options], **others)

    return run


def on_a_terminal(arguments: Sequence[str], answer: str, size: tuple[int, int] = (24, 80)) -> tuple[int, str]:
    """Exit code and text of a command whose three streams are one terminal, where somebody types an answer."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "LINES": str(size[0]), "COLUMNS": str(size[1])}
    command = [sys.executable, "-m", "icesize", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        os.write(ours, answer.encode())
        told = b""
        try:
            while part := os.read(ours, 65536):
                told += part
        except OSError:
            pass  # Linux ends a terminal that nobody writes to any more with an error
    os.close(ours)
    return child.returncode, told.decode().replace("\r\n", "\n")
