"""Keys of rows: their codes, the newest event of each key, and the positions of keys in data files.

- `codes`: keys as numbers
- `events`: one event per key
- `lookup`: positions of keys, and values at positions
"""
