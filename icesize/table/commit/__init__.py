"""The only commit path of icesize, and the changes that go through it.

A merge is committed in this sequence. After a conflict, it begins again at `load`.

    batch_commit.commit_written         makes a request of the written files, before the lock
    attempts.run                        tries until the outcome is decided
      pyiceberg_committer.load          load: the newest state of the table
      attempted_steps.found             found: whether an earlier attempt is committed already
      merge.validate                    validate: a step, against the changes of other writers since its plan
      merge.adapt                       adapt: a step writes files that this state makes necessary
      merge.stage                       stage: manifests of the step, not visible yet
      snapshot_builder.finish           stage: the manifest list and the snapshot
      pyiceberg_committer.commit        commit: one compare-and-swap in the catalog
    attempts.may_be_visible             decide: files that must stay, whatever the outcome is

- `attempted_steps`: the steps of a request, their way through a commit, and its outcome
- `attempts`: attempts of a change on newer and newer states, until it is committed, has conflicted for too long, or is
  unknown; also after a 409
- `batch_commit`: commits to the table of a handle: the files written for a batch, or for merges (a batch without rows);
  the steps of a request, one step, or a change of metadata
- `batch_life`: the life of a batch, of appended rows or of upserts: load, plan, write, commit, report
- `batch_report`: the files that were written for a batch, and the outcome of their commit with its report
- `carried_deletes`: delete files for the outputs of merges, of rows that others deleted in the inputs
- `compared_inputs`: the changes that other writers have made to the input files of a step since they were read
- `documents`: metadata files of format v3 where PyIceberg writes them: the loaded JSON document with the changes
- `input_metrics`: column metrics of files that a merge copied: read from manifests again at the commit, for those files
  alone
- `loaded`: one state of a table that a commit is tried on
- `merge_despite_changes`: a merge in a state in which others have changed its input files: followed, or dropped
- `metadata_change`: changes of a table's metadata that add no snapshot: add columns, set or remove a tag, forget a
  stream
- `protocol`: interfaces between steps, a commit and a catalog
- `pyiceberg_committer`: commits through PyIceberg: icesize builds manifests and snapshots, the catalog makes the
  compare-and-swap
- `schema_fit`: check that files written for one state of a table can be read in another
- `snapshot_builder`: builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but
  not visible
- `steps`: the kinds of steps in a commit: one module each
"""
