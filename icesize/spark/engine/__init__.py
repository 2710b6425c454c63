"""Access to Spark: sessions, jobs, workers.

- `columns`: the columns of a batch, matched by name to those of the table as Spark compares names
- `jobs`: Spark jobs that write routed rows, fetch rows or rewrite groups of files
- `launch`: starts a Spark session for the command line
- `merge_job`: the merges of a batch, which run beside its write job and stop in time
- `read_version`: an older version of a partition as a Spark DataFrame, read by icesize's own projection, without
  Iceberg's runtime
- `session`: facts about a Spark session: its settings, its size, the query of a batch, the plan of a batch
- `worker`: functions that run inside Spark's Python workers, from Arrow batches to pickled results
"""
