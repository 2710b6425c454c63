"""Clusterings too large for one process, as Spark jobs.

- `beside_stream`: one pass of clustering beside the batches of a stream, in the thread of a batch or in the
  background
- `gather`: tasks that write files of a clustering: those of whole groups, and those of rows that `scatter` sends
- `run`: runs the groups of a clustering: small ones here, larger ones in one Spark task each, the largest by all
  tasks
- `scatter`: tasks that take the rows of large groups apart: `ScanKeys` reads keys, `Scatter` sends rows where they
  belong
- `shuffle`: clusters groups by all tasks together: a job that scans their keys, one that moves their rows
"""
