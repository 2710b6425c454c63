"""Drawings of calls in docstrings, and the calls that are really made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType, ModuleType

import icesize

_PACKAGE = str(Path(icesize.__file__).parent)


def drawing_in(package: ModuleType) -> list[str]:
    """The lines of the drawing in a docstring without their remarks: `module.function`, indented by its caller."""
    lines = [line[4:] for line in (package.__doc__ or "").splitlines() if line.startswith("    ")]
    return [line.split("  # ")[0].rstrip() for line in lines]


def calls_of(drawn: Collection[str], action: Callable[[], object]) -> list[str]:
    """The calls of functions of a drawing, indented by the calls of others of them that they are part of.

    A call that follows one of the same function is left out.
    """
    names, found, open_calls = {line.strip() for line in drawn}, list[str](), list[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_PACKAGE):
            return
        name = f"{Path(code.co_filename).stem}.{code.co_name}"
        if name not in names:
            return
        if event == "return":
            open_calls.remove(name)
        else:
            line = "  " * len(open_calls) + name
            if found[-1:] != [line]:
                found.append(line)
            open_calls.append(name)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found
