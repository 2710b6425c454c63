"""Readers of data files, which return rows in the table's current schema.

- `casting`: arrays of one Arrow type -> arrays of another, level by level, without losing a NULL
- `conservation`: counts of values and NULLs, and the least and greatest value, of each column: equal in the rows read
  and in the files that replace them
- `extremes`: the least and the greatest value of each column, from footers of the files read and of the files that
  replace their rows
- `inputs`: the rows of data files in the table's current schema, of one file or all inputs of a merge, in tables of
  bounded size
- `inherited_lineage`: the lineage of the rows of a data file: stored values, and those that rows inherit
- `prefetch`: random access to the input files of a merge: local files, and remote files that are fetched whole
- `projection`: rows -> the table's current schema: rows of older files by field id, new rows by name; an error names
  the column that does not fit
- `value_bytes`: an upper limit of the Arrow memory of stored values
"""
