"""Jobs: each changes one table and returns a report.

- `clustering`: clusters a table: by arguments of a call, by its properties, or one round of a pass
- `compaction`: merges small files without new rows: all of them, those that are due, or one round of a pass
- `dangling_deletes`: removes delete files that apply to no live data file, in one REPLACE that changes no row and no
  data file
- `keys`: the key of a table: removes rows of the same key, and changes the rule of upserts
- `restore`: restores a partition to an older snapshot: its old files under new names, in one OVERWRITE
- `rewrite_deletes`: rewrites many delete files into few position delete files; data files do not change
- `rewrite_manifests`: merges manifests, in one REPLACE that changes no row and no file
"""
