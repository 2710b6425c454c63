"""The deleted rows of data files, from their delete files.

- `delete_files`: opens a delete file, or reports why its deletes cannot be applied
- `deleted_rows`: the deleted rows of the input files of a merge, from all kinds of deletes, as one bitmap of positions
  per file
- `equality`: rows that equal a row of an equality delete file
- `equal_keys`: rows -> the keys that they equal, with Iceberg's rules of equality
- `positions`: rows that position delete files name, and the data files that such a delete file names
- `position_files`: rewrites the deleted rows of data files as position deletes, in one delete file or vector per
  data file
- `vectors`: deletion vectors in Puffin files, read and written
"""
