"""Whole jobs of maintenance; none of them needs Spark.

- `checkup`: whether icesize can work on a table: what is seen of catalog and table, whether files can be read, written,
  deleted
- `clustering`: clustering a table: by arguments of a call, by its properties, or a round of a pass
- `compaction`: merging small files without new rows: beside a stream, all of them, what is due, or a round of a pass
- `dangling_deletes`: delete files that hit no live data file any more, whoever left them: one REPLACE that changes no
  row, no data file
- `full_pass`: one bounded pass of all maintenance, in the order that pays: merge, cluster, delete files, manifests,
  expiry, a look at orphans
- `restore`: A partition back to what it was at an older snapshot: the files that it had under new names, one OVERWRITE
- `restore_plan`: whether a partition can be what it was at an older snapshot, and what has to change for it
- `rewrite_deletes`: many delete files into few, where data files stay as they are: their deleted rows are named anew by
  position
- `rewrite_manifests`: fewer manifests for the same files: one REPLACE that changes no row and no file
- `rounds`: one plan carried out in several rounds, each with a commit: what one round has, and what all came to
- `table_context`: what every job of maintenance works with: a table, the environment, and who moves the bytes
"""
