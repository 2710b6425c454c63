"""The one door through which anything becomes visible, and what goes through it.

- `commit_steps`: the change that makes the steps of a request visible
- `ledger`: which micro-batches are in the table already: one small entry per stream, kept as a table property
- `metadata_change`: changes of a table's metadata that add no snapshot: a column added, a tag set, a stream forgotten
- `no_output`: output of which nothing is left: a dry run counts what it would write
- `obsolete_deletes`: delete files that hit nothing any more once a commit is visible, decided on the state that it is
  staged on
- `protocol`: how steps, a commit and a catalog talk to each other
- `pyiceberg_committer`: the catalog by PyIceberg. Manifests and snapshots are ours, the compare-and-swap is the
  catalog's
- `request`: the steps of a batch, and what became of a commit
- `retry`: how a change gets through, also after a 409: attempts on ever newer states until it lands, loses for good, or
  is unknown
- `schema_fit`: whether files that were written for one state of a table can be read in another
- `snapshot_builder`: builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but
  not visible
- `steps`: what a commit can do: one module for each kind of step
- `summary`: what a snapshot summary says: of files and rows under Iceberg's names, of the commit under ours
"""
