"""The program: `python -m icesize` is `icesize`."""

from __future__ import annotations

from icesize.cli.process import collect_later


def run() -> None:
    """The command line of this process."""
    collect_later()
    from icesize.cli.main import main

    main(prog_name="icesize")


if __name__ == "__main__":
    run()
