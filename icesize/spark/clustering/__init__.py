"""Clusterings too large for one process, as Spark jobs.

- `gather`: tasks that write files of a clustering: those of whole groups, and those of rows that `scatter` sends
- `run`: one pass of clustering beside the batches of a stream, and how the groups of any pass are run: small ones
  here, larger ones in one Spark task each, the largest by all tasks
- `scatter`: tasks that take the rows of large groups apart: `ScanKeys` reads keys, `Scatter` sends rows where they
  belong
- `shuffle`: clusters groups by all tasks together: a job that scans their keys, one that moves their rows
"""
