"""Advice about a table, from values that planning has: pure.

- `clustering`: the columns to cluster a table by, as far as the bounds of its files show
- `merging`: the interval of batches and the number of small files, from recent arrivals
"""
