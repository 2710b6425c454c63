"""The current state of a table.

- `cluster_reader`: the files that clustering considers: all live ones, with bounds of the clustering columns
- `column_advice`: columns worth clustering by, and the files that queries would skip, estimated from metadata and
  bounds
- `commit_ages`: ages of files in commits, which decide the partitions that are cold
- `committed_batches`: the batches of streams that a branch has, by the ledger and by the snapshots of the branch
- `concurrent_writers`: changes of other writers to a table: row-level changes that merges avoid, other compactors, and
  rollbacks
- `filter_scan`: the number of data files that filters of queries open, by partitions and bounds
- `handle`: a table to load repeatedly: each `load` returns its current state and its current policy
- `layouts`: the layout of a table, made from the last one: only partitions that changed are counted again
- `live_files`: the live files of a table by partition, found in arrays; each manifest is read once
- `naming`: names that users write for partitions, points in time and snapshots, resolved to the table's, and back
- `partition_changes`: partitions at a snapshot and their changes: by a snapshot, by recent commits, and since icesize
  last merged; `after_batch` considers the last kind
- `partition_values`: values of partition fields: as manifests store them, as Iceberg prints them, and as callers name
  them
- `where`: the partitions that a filter selects, by columns of the table or fields of the partition spec
"""
