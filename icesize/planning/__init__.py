"""Facts about tables and plans for their files, as plain values: pure, from the standard library alone.

- `cluster_by`: by what a table is clustered, and what planning knows of the files of such a table
- `delete_plan`: which data files stay as they are and get their delete files put together instead
- `delete_reach`: which delete file hits which data file, and what that means for a file that takes the place of others
- `files`: what is in a table, as plain values that cross every floor
- `filters`: by which columns a table should be clustered, from the filters that its queries ask
- `inspection`: how well sized a table is: counts, a histogram, the worst partitions and advice
- `partition_labels`: partitions in one word, as people and the command line write them
- `plan`: what will be merged and what stays, as plain values: the outcome of `icesize.planning.merging.planner`
- `scan_cost`: what a scan of a whole table costs because of its files, before and after a plan
- `sizing`: from bytes to numbers of files
- `trends`: how small files and delete files of partitions came about, and file sizes before and after a plan
"""
