"""Advice about a table, from values that planning has: pure.

- `clustering`: by which columns a table would gain from clustering, as far as the bounds of its files tell
- `merging`: how often batches should come and how many small files may stay, by what came lately
"""
