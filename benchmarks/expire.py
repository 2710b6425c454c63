"""Expiry of 1,000 of 1,100 snapshots: icesize against Iceberg's `expire_snapshots`, on copies of one table.

    python -m benchmarks expire [--pairs 3] [--files 20000] [--snapshots 1100] [--retain 100] [--json]
    python -m benchmarks expire --only-ours [--files 100000] [--profile]
    python -m benchmarks expire --commits [--snapshots 5000]

The table is made once and restored for each run. Pairs alternate in the same run, each program in a process of its own.
Iceberg runs with and without `max_concurrent_deletes`, and its better time counts. `--commits` measures the time of a
commit before and after an expiry instead.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import expire_child, snapshots
from benchmarks.show import finish

CONCURRENT_DELETES = 4
METADATA = "metadata.json files"
KINDS = ("data files", "manifests", "manifest lists", METADATA)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the selected benchmark and print a table, or JSON."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="icesize-expire-") as folder:
        return _commits(Path(folder), args) if args.commits else _expire(Path(folder), args)


def _expire(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    place = _Place(root)
    made = snapshots.merged(place.warehouse, args.files, args.snapshots or 1_100)
    place.keep()
    engines: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("icesize", lambda: expire_child.expire_by_icesize(place.warehouse, args.retain, args.profile))
    ]
    if not args.only_ours:
        engines += [
            ("plain", lambda: expire_child.iceberg(place.warehouse, args.retain, None)),
            ("concurrent", lambda: expire_child.iceberg(place.warehouse, args.retain, CONCURRENT_DELETES)),
        ]
    runs = [
        {name: place.deleted_by(run) for name, run in (engines if pair % 2 == 0 else engines[::-1])}
        for pair in range(args.pairs)
    ]
    result = {"benchmark": "expire", "table": made, "retain": args.retain, "runs": runs} | _compared(runs)
    title = f"expire, {made['snapshots']:,} snapshots of {made['files']:,} files down to {args.retain}"
    finish(result, title, ("", *(name for name, _ in engines)), _lines(result, [n for n, _ in engines]), args.json)
    if args.profile and not args.json:
        print(runs[-1]["icesize"]["profile"])
    return result


def _compared(runs: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the ratio to the better of Iceberg's runs, and whether all programs have deleted the same files."""
    digests = {run.pop("digest") for pair in runs for run in pair.values()}
    ratios = [
        min(pair[name]["seconds"] for name in pair if name != "icesize") / pair["icesize"]["seconds"]
        for pair in runs
        if len(pair) > 1
    ]
    return {
        "ratios": [round(ratio, 2) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 2) if ratios else None,
        "same_files_deleted": len(digests) == 1,
    }


def _lines(result: dict[str, Any], names: Sequence[str]) -> list[tuple[object, ...]]:
    runs = result["runs"]
    newest = runs[-1]
    mine = newest["icesize"]
    lines: list[tuple[object, ...]] = [
        ("seconds, median", *(f"{statistics.median(pair[n]['seconds'] for pair in runs):.2f}" for n in names)),
        *(("deleted " + kind, *(f"{newest[n]['files'][kind]:,}" for n in names)) for kind in KINDS),
        ("peak memory of the process, MiB", max(pair["icesize"]["peak_mib"] for pair in runs)),
        ("seconds of phases", ", ".join(f"{phase} {seconds}" for phase, seconds in mine["phases"].items())),
    ]
    if result["ratio"] is not None:
        lines.append(("same files deleted, but metadata.json", result["same_files_deleted"]))
        lines.append(("times faster than the better one", f"{result['ratio']:.2f}", f"pairs {result['ratios']}"))
    return lines


def _commits(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    made = snapshots.appended(root, args.snapshots or 5_000)
    result = {"benchmark": "expire", "table": made} | expire_child.commits(root, args.retain)
    lines = [
        ("snapshots", f"{result['snapshots']:,}", f"{result['snapshots_after']:,}"),
        ("seconds of a commit, median", result["commit_seconds"], result["commit_seconds_after"]),
        ("seconds of the expiry", "-", result["expire_seconds"]),
    ]
    return finish(result, "commits of one file", ("", "before expiry", "after"), lines, args.json)


class _Place:
    """A warehouse that is restored before each run, always at one path, because metadata has absolute paths."""

    def __init__(self, root: Path) -> None:
        self.warehouse, self._master = root / "warehouse", root / "master"

    def keep(self) -> None:
        """Make the current warehouse the one that is restored."""
        self.warehouse.rename(self._master)

    def deleted_by(self, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a run on a fresh copy, with its deleted files by kind and a digest of their names."""
        shutil.rmtree(self.warehouse, ignore_errors=True)
        shutil.copytree(self._master, self.warehouse)
        answer = run()
        gone = sorted(_files(self._master) - _files(self.warehouse))
        kinds = Counter(map(_kind, gone))
        names = "\n".join(name for name in gone if _kind(name) != METADATA)
        digest = hashlib.sha256(names.encode()).hexdigest()
        return answer | {"files": {kind: kinds[kind] for kind in KINDS}, "digest": digest}


def _files(warehouse: Path) -> set[str]:
    return {str(path.relative_to(warehouse)) for path in (warehouse / "wh").rglob("*.*") if path.is_file()}


def _kind(name: str) -> str:
    file = name.rpartition("/")[2]
    if file.endswith(".parquet"):
        return "data files"
    if file.endswith(".metadata.json"):
        return METADATA
    return "manifest lists" if file.startswith("snap-") else "manifests"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks expire", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--files", type=int, default=20_000, help="live files of the table; as many more are deleted")
    parser.add_argument("--snapshots", type=int, default=None, help="default: 1,100, with --commits 5,000")
    parser.add_argument("--retain", type=int, default=100, help="newest snapshots that stay")
    parser.add_argument("--only-ours", action="store_true", help="without the peer")
    parser.add_argument("--profile", action="store_true", help="and where the time of icesize goes")
    parser.add_argument("--commits", action="store_true", help="how long a commit takes before and after an expiry")
    parser.add_argument("--json", action="store_true")
    return parser
