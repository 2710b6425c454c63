"""Opening catalogs, loading tables, and what they say when they refuse.

- `access_errors`: what catalogs and storage say when they refuse, in one line that says which right is missing and
  shows no secret
- `history`: what a table's metadata says of its past: snapshots that main went through, refs to others, older
  metadata files
- `locations`: locations of files as text: one spelling for comparing, and what lies below what
- `opening`: opens catalogs (by object, by PyIceberg's configuration, or from Spark's own settings) and the tables in
  them, and says what is wrong with a name that is none
"""
