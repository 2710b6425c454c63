"""Opening catalogs, loading tables, and the errors of catalogs and storage.

- `access_errors`: errors of catalogs and storage in one line, with the missing permission and without secrets
- `hive`: Hive metastores: which tables and servers cannot be used, and who holds the lock of a table
- `branches`: a table as readers of one of its branches see it
- `history`: the past of a table in its metadata: snapshots of main, refs to others
- `metadata_files`: older metadata files of a table
- `opening`: opens catalogs (by object, by PyIceberg's configuration, or from Spark's own settings) and their tables,
  and explains names that do not exist
- `pyiceberg_internals`: private names of PyIceberg, each in one function
- `tables`: the tables of a catalog: which names a pattern selects, and what a name refers to
"""
