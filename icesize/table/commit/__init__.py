"""The one door through which anything becomes visible.

- `commit`: the one door for rows: a CommitRequest goes in, what became visible comes out
- `fitting`: whether files that were written for one state of a table can be read in another
- `forget_stream`: taking a stream out of the ledger: a change of its own, through the same door as every commit
- `ledger`: which micro-batches are in the table already: one small entry per stream, kept as a table property
- `metadata_change`: changes of a table's metadata other than batches: expiry, restore, rewritten manifests
- `pyiceberg_committer`: commits through PyIceberg: manifests and snapshots are ours, the compare-and-swap is the
  catalog's
- `request`: what a commit is asked for, what it says afterwards, and how a catalog is talked to: the vocabulary of
  commit.py
- `retry`: how a change gets through the catalog: attempts on ever newer states until it lands, loses for good, or is
  unknown
- `snapshot_builder`: builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but
  not visible
- `summary`: what a snapshot summary says of files and rows, under Iceberg's names
"""
