"""The present state of a table.

- `cluster_reader`: the files that clustering looks at: all live ones, with bounds of the columns that they are
  clustered by
- `column_advice`: what clustering would spare, by the columns that queries may ask for, as metadata and bounds tell
- `concurrent_writers`: what others did to a table: row-level changes to keep out of the way of, other compactors, and
  rollbacks
- `filter_scan`: how many data files the filters of queries open, by partitions and bounds
- `handle`: one table to work on again and again: each `load` gives its state now, with the policy that holds for it
- `live_files`: the live files of a table by partition, each manifest read once, with how old they are, counted in
  commits: what clustering and layouts are made of, which count every partition and have its small files as values
- `naming`: what people call partitions, points in time and snapshots -> what the table calls them, and back
- `partition_changes`: what partitions hold at a snapshot, what a snapshot changed in them, which ones got new files
  since icesize last merged (what `after_batch` has to look at), and what the last commits put into each
- `where`: `where`: which partitions a person means, by columns of the table or by fields of the partition spec
"""
