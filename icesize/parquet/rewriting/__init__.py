"""Rewrites of input files into new files, by the fastest safe method.

- `absorb`: new rows and the rows of older small files, written once, into the same files
- `cluster`: clustering the files of one partition: their rows, in another order, in new files
- `copy_merge`: merging by moving compressed bytes, if that is possible and faster
- `copy_or_decode`: the way that the bytes of each input file take: whole row groups, single pages, or decoding
- `decoded_rows`: rows of input files that cannot be copied, encoded as row groups that can be copied into the output
- `forecast`: a forecast of how planned merges move bytes, from a bounded number of footers
- `merge`: small files of one partition -> few large ones, in the fastest correct way: copied, or with every row decoded
  and encoded again
- `output_file`: one output of a merge that copies: row groups of older files, whole or made of their pages, and decoded
  rows; and its Iceberg counts and sizes
- `threads`: rewrites groups of files and writes rows in threads of this process: for small groups, and without Spark
"""
