"""The function for `foreachBatch`, and the work that runs beside the batches.

The calls of a batch of an append:

    sink.run
      batch.commit_batch
        process_state.open  # the table, with the settings of the session
        handle.load  # its newest state
        batch_plan.plan  # columns, layout, rows per partition, merges
        batch.run
          merge_job.start  # merges that the plan has
          write_plan.write  # the rows
          batch_plan.decide  # merges, now that the new files are known
          merge_job.start
          merge_job.finish
        batch_commit.commit_written  # one compare-and-swap
        process_state.refresh  # Spark's catalog drops its cache of the table

- `background`: merges and clustering of one stream beside its batches, in commits between theirs: `merge="async"`,
  `cluster="async"`
- `batch`: commits one batch exactly once: plan, run, commit
- `batch_plan`: the plan of one batch, made once on one state of the table before anything is written: new columns of
  the table, the assignment of rows to writers, merges and their time
- `options`: options of a sink, as plain values, validated on creation
- `process_state`: the state that a process keeps between batches: catalogs, manifests, back-off, the last report
- `sink`: the function for `foreachBatch`, which Spark can pickle: a pickle has names and options only
- `stopping`: distinguishes a query that was stopped from one that failed
- `upsert_batch`: commits one batch of upserts exactly once
"""
