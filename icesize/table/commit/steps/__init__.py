"""What a commit can do: one module for each kind of step. A new kind is a new module here, and nothing else changes.

- `append`: new rows in new files
- `overwrite`: new files that also hold the rows of older ones, which go
- `remove_dangling_deletes`: delete files that hit no data file go
- `replace`: the same rows in other files
- `rewrite_deletes`: the same deleted rows in other delete files
- `rewrite_manifests`: the same files in fewer manifests
- `step`: the protocol of a step, and values that all of them share
"""
