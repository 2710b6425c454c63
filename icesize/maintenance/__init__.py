"""Whole jobs of maintenance; none of them needs Spark.

- `batch_commit`: makes visible what was written for a batch, or for merges as for a batch without rows, unless orphan
  cleanup has taken some of it during a long run
- `cluster_settings`: by what a table is clustered: asked for by arguments or by its properties, kept there, and
  forgotten
- `clustering`: clustering a table: what was asked for, what its properties say, or a round of a pass
- `compaction`: merging small files without new rows: beside a stream, all of them, what is due, or a round of a pass
- `full_pass`: one bounded pass of all maintenance, in the order that pays: merge, cluster, manifests, expiry, a look
  at orphans
- `reporting`: from a plan, written files and a commit to the Report of what happened
- `restore`: A partition back to what it was at an older snapshot: copies of the files that it had, one OVERWRITE
- `restore_plan`: whether a partition can be what it was at an older snapshot, and what has to change for it
- `rewrite_manifests`: fewer manifests for the same files: one REPLACE that changes no row and no file
- `table_context`: what every job of maintenance works with: a table, the environment, and who moves the bytes
"""
