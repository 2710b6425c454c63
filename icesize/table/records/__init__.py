"""Records of its work that icesize keeps in a table.

- `ledger`: the newest committed micro-batch of each stream: one small entry per stream, kept as a table property
- `summary`: entries of a snapshot summary: files and rows under Iceberg's keys, the commit under icesize's keys
"""
