"""Talking to Spark: sessions, jobs, workers.

- `columns`: the columns of a batch against those of the table: matched by name, as Spark compares names
- `jobs`: Spark jobs: write routed rows, fetch some, rewrite groups of files
- `launch`: starts a Spark session for the command line
- `merge_job`: the merges of a batch, running beside its write job, and stopped in time
- `read_version`: an older version of a partition as a Spark DataFrame, read by our own projection: Iceberg's runtime
  is not needed
- `session`: what icesize asks of a Spark session: its settings, its size, the query a batch belongs to, what a batch
  is made of
- `worker`: what runs inside Spark's Python workers: functions from Arrow batches to answers
"""
