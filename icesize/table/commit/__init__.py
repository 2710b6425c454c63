"""The one door through which anything becomes visible, and what goes through it.

- `commit_files`: the change that brings data files: new rows, and files in the place of others
- `ledger`: which micro-batches are in the table already: one small entry per stream, kept as a table property
- `metadata_change`: changes of a table's metadata other than batches: a stream forgotten, a column added, a restore,
  fewer manifests
- `no_output`: output of which nothing is left: a dry run counts what it would write
- `obsolete_deletes`: delete files that hit nothing any more once a commit has landed, decided on the state that it is
  staged on
- `pyiceberg_committer`: how a catalog is talked to: states that are loaded, what is staged on them, and the answers to
  a commit. Manifests and snapshots are ours, the compare-and-swap is the catalog's
- `request`: data files that are to be committed, and what became of them
- `retry`: how a change gets through, also after a 409: attempts on ever newer states until it lands, loses for good, or
  is unknown
- `rewritten_deletes`: which delete files position deletes can take the place of, decided on the state that the commit
  is staged on
- `schema_fit`: whether files that were written for one state of a table can be read in another
- `snapshot_builder`: builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but
  not visible
- `summary`: what a snapshot summary says: of files and rows under Iceberg's names, of the commit under ours
"""
