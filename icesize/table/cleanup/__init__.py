"""Expiry and orphan removal: the files that may be deleted, and their deletion.

- `checkpoints`: positions of streaming queries in a table, from their checkpoint directories, and the snapshots that
  each still needs
- `expire_commit`: the commit of an expiry: removes snapshots that no rule keeps, in one compare-and-swap
- `expired_files`: files that only expired snapshots needed: candidates from their manifests, without files that a kept
  snapshot reaches; deletes them in groups, and loads the table again before each
- `expiry`: a whole expiry: decide, commit, delete, report
- `journal`: the files that an expiry is about to make unreachable, written before its commit so that the next one can
  finish it; also concurrent branches and tags that were lost with their snapshot
- `may_delete`: one answer to "may this file go?" with the reason if it may not: who owns a file, in this catalog and
  beside it
- `orphans`: files in the table's location that no state of the table needs: found by listing, deleted when old enough
- `retention_inputs`: inputs of `planning/retention/planner.py` from a table's metadata: snapshots, refs, rules
"""
