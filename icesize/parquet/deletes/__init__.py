"""The deleted rows of data files, by the delete files beside them.

- `delete_files`: opens a delete file, or says why its deletes cannot be applied
- `deleted_rows`: the deleted rows of the input files of a merge, of all kinds of deletes, as one bitmap of positions
  for each
- `equality`: rows that equal those of equality delete files
- `key_lookup`: rows -> the keys that they equal, by Iceberg's idea of equality
- `positions`: rows that position delete files name, and which data files such a delete file is about
- `rewrite`: names the deleted rows of data files anew, in one position delete file for each data file
"""
