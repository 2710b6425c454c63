"""Answers about a table: its state, what it costs queries, and what would help. No I/O.

- `filters`: the columns that a table should be clustered by, from the filters of its queries
- `health`: the health of a table: what its metadata cost each query now, and after maintenance
- `inspection`: the state of a table's file sizes: counts, a histogram, the worst partitions and advice
- `scan_cost`: what files cost: each scan of a whole table, before and after a plan, and the work of maintenance
- `trends`: small files and delete files of partitions over time, and file sizes before and after a plan
"""
