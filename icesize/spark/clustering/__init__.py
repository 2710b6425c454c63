"""Clusterings too large for one process, as Spark jobs.

- `gather`: tasks that write the files of a clustering, from whole groups or from the rows that `scatter` sends
- `in_spark`: the engine of a table that was opened with a session: merges and clusterings as Spark jobs
- `run`: one pass of clustering beside the batches of a stream, and the execution of a pass: small groups in the
  driver, larger ones in one Spark task each, the largest by all tasks
- `scatter`: tasks that divide the rows of large groups: `ScanKeys` reads keys, `Scatter` sends rows to assignments
- `shuffle`: clusters a group by all tasks together: one job scans its keys, another one moves its rows
"""
