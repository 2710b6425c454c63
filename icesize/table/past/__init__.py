"""The history of a table.

- `commits`: the commits of `main`, from snapshot summaries: batches, merges, and commits of other writers
- `past_states`: states of a table at some of its commits: files, small files and delete files of each partition
- `restore_plan`: checks whether a partition can be restored to an older snapshot, and plans the changes
- `versions`: versions of partitions: the state that readers of `main` saw of each partition after each commit that
  changed it
"""
