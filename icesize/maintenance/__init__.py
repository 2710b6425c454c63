"""Maintenance jobs. None needs Spark.

- `checkup`: checks whether icesize can work on a table: whether it can load it, and read, write and delete files
- `clustering`: clusters a table: by arguments of a call, by its properties, or one round of a pass
- `compaction`: merges small files without new rows: all of them, those that are due, or one round of a pass
- `config_file`: `icesize.toml`: catalogs, the tables to maintain, policies for patterns, hours and budgets
- `dangling_deletes`: removes delete files that apply to no live data file, in one REPLACE that changes no row and no
  data file
- `many_tables`: one bounded pass over the tables of a catalog, those with most benefit per byte first
- `keys`: the key of a table: removes rows of the same key, and changes the rule of upserts
- `maintain`: one bounded pass of all maintenance, and its steps in the order that saves work
- `repair`: repairs what `verify` finds and what is certain, one commit of metadata for each kind
- `restore`: restores a partition to an older snapshot: its old files under new names, in one OVERWRITE
- `rewrite_deletes`: rewrites many delete files into few position delete files; data files do not change
- `rewrite_manifests`: merges manifests, in one REPLACE that changes no row and no file
- `rounds`: runs one plan in several rounds, each with a commit, and combines their reports
- `survey`: surveys the tables of a catalog: what maintenance would bring to each, from metadata alone
- `table_context`: the context of every job: a table, the environment, and the engine that rewrites files
- `upsert`: commits a batch of upserts: resolve, write, merge, commit
- `upsert_rows`: the rows of an Arrow table as events of a batch of upserts
- `verify`: verifies that the metadata of a table agree with each other and with the storage
- `verify_files`: whether files hold what the manifests and their own footers say of them; row ids of live rows
- `verify_storage`: whether every file that a snapshot names is in storage with its size: from one listing
- `verify_v3`: rules of a verification for tables of format v3: row ids, deletion vectors, no new position delete files
"""
