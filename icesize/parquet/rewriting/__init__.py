"""Chooses how files are rewritten, and does it.

- `absorb`: new rows and the rows of older small files, written together: each once, into the same files
- `cluster`: clustering the files of one partition: their rows, in another order, in new files
- `forecast`: how the bytes of planned merges are expected to move, from a bounded number of footers
- `merge`: small files of one partition -> few large ones, by the fastest way that is right: copied, or else by
  decoding and encoding every row
- `threads`: rewrites groups of files and writes rows in threads of this process: for small ones, and where there is
  no Spark
"""
