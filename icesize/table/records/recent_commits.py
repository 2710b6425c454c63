"""The newest commits to a table whose catalog shows no history, in a property that they extend.

Some catalogs, such as Nessie, show only the newest snapshot. Whether an attempt without a response was committed cannot
be seen there once another writer has committed. The property changes only in the same commit as a snapshot, so it shows
that. It keeps the newest commits only; an older one may or may not have been committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

KEY = "icesize.recent-commits"
"""Table property: run ids, oldest first, each with the ids of the snapshots that it added, as a JSON object."""
MOST_COMMITS = 100

Commits = Mapping[str, Sequence[int]]
"""Snapshot ids by run id, oldest first."""


def recent_commits(properties: Mapping[str, str]) -> Commits:
    """Return the newest commits; none if nothing readable is recorded."""
    try:
        found = json.loads(properties.get(KEY, "{}"))
        return {str(run_id): [int(each) for each in ids] for run_id, ids in found.items()}
    except (ValueError, TypeError, AttributeError):  # edited by hand: it proves nothing
        return {}


def with_commit(properties: Mapping[str, str], run_id: str, snapshot_ids: Sequence[int]) -> str:
    """Return the value of the property after one more commit."""
    commits = [*recent_commits(properties).items(), (run_id, snapshot_ids)]
    return json.dumps(dict(commits[-MOST_COMMITS:]), separators=(",", ":"))


def follows(now: Commits, before: Commits) -> bool:
    """Return True if `now` has all commits that were made after `before`, so that one that it lacks was not made."""
    return [*before][-1] in now if before else len(now) < MOST_COMMITS
