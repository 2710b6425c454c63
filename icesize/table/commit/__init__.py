"""The one door through which anything becomes visible, and what goes through it.

- `batch_commit`: what was written for a batch, or for merges as for a batch without rows: its commit, and the report of
  both
- `cluster_settings`: by what a table is clustered: asked for by arguments or by its properties, kept there, and
  forgotten
- `input_metrics`: what manifests say of the columns of files that a merge copied: read again at the commit, for those
  files alone
- `loaded`: one state of a table that a commit is tried on, and which input files it has lost since they were planned on
- `metadata_change`: changes of a table's metadata that add no snapshot: a column added, a tag set, a stream forgotten
- `obsolete_deletes`: delete files that hit nothing any more once a commit is visible, decided on the state that it is
  staged on
- `protocol`: how steps, a commit and a catalog talk to each other
- `pyiceberg_committer`: the catalog by PyIceberg. Manifests and snapshots are ours, the compare-and-swap is the
  catalog's
- `request`: the steps of a request, their way through a commit, and what became of them
- `retry`: how a change gets through, also after a 409: attempts on ever newer states until it lands, loses for good, or
  is unknown
- `schema_fit`: whether files that were written for one state of a table can be read in another
- `snapshot_builder`: builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but
  not visible
- `steps`: what a commit can do: one module for each kind of step
- `submit`: commits to the table of a handle: the steps of a request, one step, or a change of metadata
"""
