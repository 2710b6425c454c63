"""Input files rewritten into new ones, the fastest way that is right.

- `absorb`: new rows and the rows of older small files, written together: each once, into the same files
- `cluster`: clustering the files of one partition: their rows, in another order, in new files
- `copy_merge`: merging by moving compressed bytes, wherever that is possible and pays
- `decoded_rows`: rows of input files that cannot be copied, encoded so that they can be copied into a file with the
  others
- `forecast`: how the bytes of planned merges are expected to move, from a bounded number of footers
- `merge`: small files of one partition -> few large ones, by the fastest way that is right: copied, or else by
  decoding and encoding every row
- `output_file`: one output of a merge that copies: row groups of older files, whole or of their pages, and rows that
  were decoded; and its Iceberg counts and sizes
- `strategy`: which way the bytes of each input file go: whole row groups, single pages, or decoded
- `threads`: rewrites groups of files and writes rows in threads of this process: for small ones, and where there is
  no Spark
"""
