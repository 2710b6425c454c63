"""Keys of rows: their codes, the newest event of each key, and the positions of keys in data files.

- `codes`: keys as numbers
- `ranks`: values in their order
- `events`: one event per key
- `lookup`: positions of keys, and values at positions
- `maps`: the same from maps of keys, one for each data file
- `index_files`: the files of a local directory that have the maps
- `new_rows`: which rows of a batch are in which of its new files
"""
