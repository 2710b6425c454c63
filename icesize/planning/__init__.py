"""Facts about tables, and plans for their files, as plain values. No I/O; only the standard library and numpy.

- `cluster_by`: the columns that a table is clustered by, and the facts about its files that clustering needs
- `file_sizes`: numbers of files, computed from bytes
- `files`: the content of a table, as plain values that every layer uses
- `lost_files`: the decision whether data files that storage does not have are lost
- `overlay`: an immutable mapping that is made from another one with few changes, without a copy of it
- `partition_labels`: partitions in one word, as people and the command line write them
- `plan`: the files to merge and the files to keep, as plain values: the outcome of `icesize.planning.merging.planner`
- `shared_budget`: the merges of many tables that a budget pays for, and the order of the tables
- `upsert_rule`: the rule by which rows of a table are replaced: key, order, and the events that delete rows
"""
