"""Expiry and orphans: what may be deleted, and its deletion.

- `checkpoints`: how far a Spark streaming query has read Iceberg tables, from its checkpoint folder
- `delete_expired`: deletes what an expiry made unreachable, a number of files at a time, looking at the table
  anew before each
- `expire_commit`: the commit of an expiry: snapshots that no rule keeps leave the table, in one compare-and-swap
- `expired_files`: which files only expired snapshots needed: candidates from their manifests, minus what any kept
  snapshot reaches
- `expiry`: expiry from beginning to end: decide, commit, delete, report
- `journal`: what an expiry is about to make unreachable, written down before its commit, so that a killed one can go
  on
- `lost_refs`: branches and tags that came between an expiry's look at a table and its commit, and were lost with
  their snapshot
- `orphan_rules`: which files of a listing are orphans: needed by nobody, visible, and old enough
- `orphans`: files in the table's location that no state of the table needs: found by listing, deleted when old enough
- `retention_inputs`: from a table's metadata to what `planning/retention/planner.py` decides on: snapshots, refs,
  rules
- `stream_readers`: streaming readers of a table, as their checkpoints tell: what each still needs, and what that
  means here
"""
