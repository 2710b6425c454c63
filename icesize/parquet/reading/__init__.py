"""Rows of data files in the table's current schema.

- `casting`: arrays of one Arrow type -> arrays of another, level by level, without losing a NULL
- `column_matching`: new rows -> the table's own Arrow schema, or a sentence saying which column does not fit
- `inputs`: the rows of the input files of a merge, one file after the other, in the table's current schema
- `prefetch`: the input files of a merge where their bytes can be read at any place: local files, and remote ones
  fetched whole
- `projection`: rows of an older file -> the table's current schema, by field id
- `reader`: reading data files as the table's current schema, a bounded number of rows at a time
"""
