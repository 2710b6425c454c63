"""One module per kind of commit step. A new kind needs only a new module here.

- `append`: new rows in new files
- `move_tombstones`: deletes that are remembered on a branch of their own
- `change_rule`: another rule of upserts
- `number_rows`: row ids after an upgrade to format v3
- `absorb`: new files that also hold the rows of older ones, which it removes
- `remove_dangling_deletes`: removal of delete files that apply to no data file
- `repair`: manifests whose entries, or whose facts in the manifest list, are wrong: written again
- `merge`: the same rows in other files
- `restore`: files of an older snapshot in place of those of a partition
- `rewrite_deletes`: the same deleted rows in other delete files
- `row_delta`: new rows, and the deletes of the rows that they replace
- `rewrite_manifests`: the same files in fewer manifests
"""
