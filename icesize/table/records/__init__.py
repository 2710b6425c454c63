"""Records that icesize stores in a table about its own work.

- `ledger`: the newest committed micro-batch of each stream: one small entry per stream, kept as a table property
- `recent_commits`: the newest commits to a table whose catalog shows no history, in a property that they extend
- `summary`: entries of a snapshot summary: files and rows under Iceberg's keys, the commit under icesize's keys
"""
