"""Opening catalogs, loading tables, and what they say when they refuse.

- `access_errors`: what catalogs and storage say when they refuse, in one line that says which right is missing and
  shows no secret
- `history`: the snapshots of a table's metadata: those that main went through, the refs that hold others, what a
  summary says
- `locations`: locations of files as text: one spelling for comparing, and what lies below what
- `metadata_files`: older metadata files of a table, read as JSON: the table's own state is the catalog's to give
- `opening`: opens catalogs (by object, by PyIceberg's configuration, or from Spark's own settings) and the tables in
  them, and says what is wrong with a name that is none
"""
