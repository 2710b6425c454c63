"""Facts about tables, and plans for their files, as plain values. No I/O; only the standard library and numpy.

- `cluster_by`: the columns that a table is clustered by, and the facts about its files that clustering needs
- `dangling_rule`: the delete files that apply to no data file after a commit
- `delete_plan`: the data files that stay and get fewer delete files instead
- `delete_reach`: the data files that each delete file applies to, and the sequence number of a merged file
- `files`: the content of a table, as plain values that every layer uses
- `filters`: the columns that a table should be clustered by, from the filters of its queries
- `fleet`: the merges of many tables that a budget pays for, and the order of the tables
- `health`: the health of a table: what its metadata cost each query now, and after maintenance
- `inspection`: the state of a table's file sizes: counts, a histogram, the worst partitions and advice
- `lost_files`: the decision whether data files that storage does not have are lost
- `overlay`: an immutable mapping that is made from another one with few changes, without a copy of it
- `partition_labels`: partitions in one word, as people and the command line write them
- `plan`: the files to merge and the files to keep, as plain values: the outcome of `icesize.planning.merging.planner`
- `scan_cost`: what files cost: each scan of a whole table, before and after a plan, and the work of maintenance
- `sizing`: numbers of files, computed from bytes
- `trends`: small files and delete files of partitions over time, and file sizes before and after a plan
- `upsert_rule`: the rule by which rows of a table are replaced: key, order, and the events that delete rows
"""
