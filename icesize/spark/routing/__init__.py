"""Which task each row of a batch goes to.

- `learning`: what the batches of a stream so far say of the next one
- `partition_keys`: which partition a row belongs to, as one number: computed by Spark for rows, and here for known
  partitions; and by what the rows of one partition are divided
- `quantiles`: quantiles of the values of some partitions: a sample of their rows, sorted in this process
- `statistics`: what a batch holds, before it is written: its rows themselves, or rows per partition, counted or
  expected from the batches before
- `task_column`: which task each row goes to: a table of routing keys, as an expression that Spark computes; and how it
  gets there
- `write_plan`: how a batch will be written: over how many tasks, which rows by which of them, and what that is
  expected to give
"""
