"""The function for `foreachBatch`, and the work that runs beside the batches.

- `background`: merges and clustering of one stream beside its batches, committed in a moment when no batch does:
  `merge="async"`, `cluster="async"`
- `batch`: takes one batch in, exactly once: plan, run, commit; none of these goes back to one before it
- `batch_plan`: what is done with one batch, looked at once, on one state of the table, before anything is written:
  which columns the table gets, how rows go to writers, what is merged and when
- `options`: options of a sink, as plain values, checked when they are given
- `process_state`: what a process remembers between batches: catalogs, manifests read, back-off, the last report
- `remembered`: values by key that threads share: each is made once, the least recently used go
- `sink`: the function for `foreachBatch`: a plain value of names and options, so that Spark can pickle it
- `stopping`: tells a query that was stopped from one that failed
"""
