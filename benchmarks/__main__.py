"""`python -m benchmarks NAME [options]`; `python -m benchmarks` lists the names."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "policy", "stream", "compact", "deletes", "compact_upserts", "merge", "plan", "expire", "shuffle",
    "rivals", "cluster", "connect", "beside", "simulate", "upserts", "catalog", "maintain", "verify", "object-store",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run one benchmark; return 2 if its name is unknown."""
    if not argv or argv[0] not in NAMES:
        print(f"usage: python -m benchmarks {{{','.join(NAMES)}}} [options]", file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.{argv[0].replace('-', '_')}").main(argv[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
