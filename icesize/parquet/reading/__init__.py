"""Rows of data files in the table's current schema.

- `casting`: arrays of one Arrow type -> arrays of another, level by level, without losing a NULL
- `conservation`: counts of the values and NULLs of each column, and its least and greatest value, of the rows that were
  read: files that take their place have the same
- `extremes`: the least and the greatest value of each column, by the footers of the files that are read, and of the
  files that take the place of their rows
- `inputs`: the rows of data files in the table's current schema, a bounded number at a time: of one file, of the input
  files of a merge one after the other, and cut anew
- `prefetch`: the input files of a merge where their bytes can be read at any place: local files, and remote ones
  fetched whole
- `projection`: rows -> the table's current schema: those of older files by field id, new ones by name, or a sentence
  saying which column does not fit
- `texts`: texts of few values as Arrow dictionaries: which, what they would take as plain values, and those of
  several files together
"""
