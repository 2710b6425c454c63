"""The program as people meet it: a command line in this process, or a process of its own on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from icesize.cli.main import main

Run = Callable[..., Result]
"""`run("inspect", "--json")`: a command on the table of the test, or on the one called `name`."""


def catalog_uri(folder: Path) -> str:
    """Of `tests.support.tables.sqlite_catalog(folder)`."""
    return f"sqlite:///{folder}/catalog.db"


def run_in(folder: Path) -> Run:
    """Runs command lines on `lake.db.t` of the catalog in a folder, with both streams apart, as click 8.1 has not."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    runner = CliRunner(**apart)

    def run(command: str, *options: str, name: str = "lake.db.t", **others: Any) -> Result:
        return runner.invoke(main, [command, name, "--catalog-uri", catalog_uri(folder), *options], **others)

    return run


def on_a_terminal(arguments: Sequence[str], answer: str, *, own_process: bool = False) -> tuple[int, str]:
    """Return exit code and text of a command whose three streams are one terminal, where an answer is typed.

    The command runs in this process, which saves its start, or in a process of its own.
    """
    run = _in_its_own_process if own_process else _in_this_process
    with (
        _terminal(answer) as (theirs, told),
        mock.patch.dict(os.environ, TERM="xterm-256color", LINES="24", COLUMNS="80"),
    ):
        code = run(arguments, theirs)
    return code, b"".join(told).decode().replace("\r\n", "\n")


@contextmanager
def _terminal(answer: str) -> Iterator[tuple[int, list[bytes]]]:
    """The end of a terminal that a program uses, and its text, which is whole after the block."""
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    told: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                told.append(part)
        except OSError:
            pass  # Linux ends a terminal that no program has open with an error

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, told
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def _in_its_own_process(arguments: Sequence[str], terminal: int) -> int:
    command = [sys.executable, "-m", "icesize", *arguments]
    return subprocess.run(command, stdin=terminal, stdout=terminal, stderr=terminal, check=False).returncode


def _in_this_process(arguments: Sequence[str], terminal: int) -> int:
    with ExitStack() as streams:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            stream = streams.enter_context(open(terminal, mode, closefd=False))
            streams.enter_context(mock.patch.object(sys, name, stream))
        try:
            main(list(arguments), prog_name="icesize")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
