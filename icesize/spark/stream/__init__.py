"""The function for `foreachBatch`, and the work that runs beside the batches.

- `background`: merges and clustering of one stream beside its batches, in commits between theirs: `merge="async"`,
  `cluster="async"`
- `batch`: commits one batch exactly once: plan, run, commit; no step returns to an earlier one
- `batch_plan`: the plan of one batch, made once on one state of the table before anything is written: new columns of
  the table, the assignment of rows to writers, merges and their time
- `options`: options of a sink, as plain values, validated on creation
- `process_state`: the state that a process keeps between batches: catalogs, manifests, back-off, the last report
- `sink`: the function for `foreachBatch`, which Spark can pickle: a pickle has names and options only
- `stopping`: distinguishes a query that was stopped from one that failed
- `upsert_batch`: commits one batch of upserts exactly once
"""
