"""The history of a table.

- `commits`: what was committed to `main`, as snapshot summaries tell of it: batches, merges, and what others did
- `past_states`: what a table held at some of its commits: files, small files and delete files of each partition
- `versions`: versions of partitions: what readers of `main` saw of each after every commit that touched it
"""
