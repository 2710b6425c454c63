"""The order of rows: by the table's sort order, by columns, along curves.

- `cluster_order`: the row order of a clustering, and its cuts into files
- `curves`: space-filling curves: ranks in several columns -> one number whose order keeps neighbors together
- `sort_keys`: columns of any type as unsigned integers in the same order, and the order of rows by them
- `sort_order`: rows in the table's sort order, by Iceberg's rules of comparison
"""
