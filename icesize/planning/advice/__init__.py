"""Advice about a table, computed from plans and facts. No I/O.

- `clustering`: the columns to cluster a table by, as far as the bounds of its files show
- `merging`: the interval of batches and the number of small files, from recent arrivals
"""
