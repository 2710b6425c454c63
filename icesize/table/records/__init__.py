"""Records of its work that icesize keeps in a table.

- `ledger`: which micro-batches are in the table already: one small entry per stream, kept as a table property
- `summary`: what a snapshot summary says: of files and rows under Iceberg's names, of the commit under ours
"""
