"""The function for `foreachBatch`, and the work that runs beside the batches.

The calls of a batch of an append:

    sink.run
      batch.commit_batch
        process_state.open  # the table, with the settings of the session
        batch_life.exactly_once  # the same for upserts
          handle.load  # its newest state
          batch_plan.plan  # columns, layout, rows per partition, merges
          batch_plan.write
            merge_job.start  # merges that the plan has
            write_plan.write  # the rows
            batch_plan.decide  # merges, now that the new files are known
            merge_job.start
            merge_job.finish
          batch_commit.commit_written  # one compare-and-swap
        process_state.refresh  # Spark's catalog drops its cache of the table

- `background`: merges and clustering of one stream beside its batches, in commits between theirs: `merge="async"`,
  `cluster="async"`
- `batch`: commits one batch of a session exactly once, appended or upserted
- `batch_plan`: the plan of an appended batch, made once on one state of the table before anything is written: the
  assignment of rows to writers, merges and their time; and the writes of that plan
- `new_columns`: adds the columns of a batch to its table, or refuses them
- `options`: options of a sink, as plain values, validated on creation
- `process_state`: the state that a process keeps between batches: catalogs, manifests, back-off, the last report
- `sink`: the function for `foreachBatch`, which Spark can pickle: a pickle has names and options only
- `stopping`: distinguishes a query that was stopped from one that failed
- `upsert_batch`: the rows of a batch of upserts, as events with the table's columns
"""

from icesize.errors import needs_extra

with needs_extra("spark", "use Spark"):
    import pyspark  # noqa: F401
