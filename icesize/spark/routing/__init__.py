"""Selection of a task for each row of a batch.

- `learning`: predictions for the next batch of a stream, learned from its batches so far
- `partition_keys`: the partition of a row as one number, computed by Spark for rows and here for known partitions; and
  the columns that divide the rows of one partition
- `statistics`: the content of a batch before it is written: its rows themselves, or rows per partition, counted or
  predicted
- `task_column`: the task of each row, from a table of routing keys as an expression that Spark computes; and the
  shuffle that sends rows to these tasks
- `write_plan`: the number of write tasks of a batch, the rows of each task, and the predicted files
"""
