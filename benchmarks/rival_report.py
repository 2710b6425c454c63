"""The results of the rivals' benchmark, as figures and as lines for people; pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.rival_model import Attempt, by_label, failures, share

RACE = "other commits kept coming first"
"""The reason why icesize drops valid merges; it makes these merges again."""


def merges(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome of the merges in these reports; `conflicts` are counted by their reason."""
    conflicts = Counter(text.partition(": ")[2] or text for r in reports for text in r["conflicts"])
    tried = [r for r in reports if r["files_removed"] or r["conflicts"]]
    return {
        "tried": len(tried),
        "landed": sum(r["files_removed"] > 0 for r in tried),
        "files_removed": sum(r["files_removed"] for r in reports),
        "conflicts": dict(conflicts),
        "rewritten_for_a_rebase": conflicts[RACE],
        "contested": sum("CONTESTED" in r["skipped"] for r in reports),
        "small_files_max": max((r["small_files_max"] for r in reports), default=0),
        "notes": dict(Counter(_kind_of(note) for r in reports for note in r["notes"])),
    }


def counted(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the successful statements of rivals by kind, and the reasons of the failed ones."""
    known = [a for a in attempts if a.known]
    return {
        "tried": len(attempts),
        "ok": sum(a.reason is None for a in attempts),
        "seconds_median": _median([a.seconds for a in attempts]),
        "lost_to": _culprits(attempts),
        "known_tried": len(known),
        "known_ok": sum(a.reason is None for a in known),
        "known_lost_to": _culprits(known),
        "by_kind": by_label(attempts),
        "failures": dict(failures(attempts)),
        "attempts": [asdict(a) for a in attempts],
    }


def lines_of(result: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the rows of the printed table."""
    stream, keep, rows, others = (result[key] for key in ("stream", "upkeep", "row_level", "compaction"))
    lines: list[tuple[object, ...]] = [
        ("violations", "; ".join(result["violations"]) or "none: 0 lost, 0 duplicated, 0 resurrected"),
        ("rows at the end", f"{result['rows']:,} of {result['appended']:,} appended in {result['batches']} batches"),
        ("seconds of a batch, median", _median(result["batch_seconds"])),
        ("batches with merges, landed", share(stream["landed"], stream["tried"])),
        ("merges dropped by reason, stream", _listed(stream["conflicts"])),
        ("batches with partitions left as CONTESTED", share(stream["contested"], result["batches"])),
        ("rebases of metadata, stream", result["rebases_of_the_stream"]),
        ("notes of the stream", _listed(stream["notes"])),
    ]
    if keep:
        tried, landed = sum(keep["steps_tried"].values()), sum(keep["steps_landed"].values())
        steps = {step: f"{keep['steps_landed'][step]} / {n}" for step, n in keep["steps_tried"].items()}
        lines += [
            ("maintenance commits, landed", share(landed, tried)),
            ("of which, landed / tried", _listed(steps)),
            ("maintenance that failed", _listed(keep["failed"])),
            ("merges dropped by reason, maintenance", _listed(keep["conflicts"])),
            ("rebases of metadata, maintenance", keep["rebases"]),
            ("data rewritten for a rebase", stream["rewritten_for_a_rebase"] + keep["rewritten_for_a_rebase"]),
            ("notes of maintenance", _listed(keep["notes"])),
        ]
    lines += [
        ("row-level statements of rivals, ok", share(rows["ok"], rows["tried"])),
        ("seconds of one, median", rows["seconds_median"]),
        ("failed ones by who took their files", _listed(rows["lost_to"])),
        ("where one had landed before, ok", share(rows["known_ok"], rows["known_tried"])),
        ("failed ones of these by who", _listed(rows["known_lost_to"])),
        *(("  " + kind, ok) for kind, ok in rows["by_kind"].items()),
        *(("  failed", f"{n} x {why}") for why, n in rows["failures"].items()),
        *(("  " + kind, ok) for kind, ok in others["by_kind"].items()),
        *(("  failed", f"{n} x {why}") for why, n in others["failures"].items()),
        ("files on disk that nobody needs", _listed({who: len(names) for who, names in result["leaked"].items()})),
    ]
    return lines


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in counts.items()) or "-"


def _median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 2) if seconds else 0.0


def _culprits(attempts: Sequence[Attempt]) -> dict[str, int]:
    return dict(Counter(a.culprit or "nobody" for a in attempts if a.reason is not None))


def _kind_of(note: str) -> str:
    """Return a note without partitions and numbers, so that notes of one kind are counted together."""
    return re.sub(r"\d+", "N", re.sub(r"\([^)]*\d[^)]*\)", "(...)", re.sub(r"^\w+=\w+: ", "", note)))
