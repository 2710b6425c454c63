"""Expiry and orphans: what may be deleted, and its deletion.

- `checkpoints`: how far streaming queries have read a table, from their checkpoint folders, and what each still needs
- `deletion`: deletes files a number at a time, and looks at the table again before each: what it needs by then stays
- `expire_commit`: the commit of an expiry: snapshots that no rule keeps leave the table, in one compare-and-swap
- `expired_files`: which files only expired snapshots needed: candidates from their manifests, minus what any kept
  snapshot reaches; and their deletion, a number of files at a time, looking at the table anew before each
- `expiry`: expiry from beginning to end: decide, commit, delete, report
- `journal`: what an expiry is about to make unreachable, written down before its commit, so that a killed one can go
  on; branches and tags that came in between and were lost with their snapshot
- `orphans`: files in the table's location that no state of the table needs: found by listing, deleted when old enough
- `other_tables`: other tables of the catalog whose files may lie below a table's location, and what these refer to
- `retention_inputs`: from a table's metadata to what `planning/retention/planner.py` decides on: snapshots, refs,
  rules
"""
