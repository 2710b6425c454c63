"""`python -m icesize` is `icesize`."""

from __future__ import annotations

from icesize.cli.main import main

main(prog_name="icesize")
