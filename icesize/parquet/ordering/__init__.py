"""The order of rows: by the table's sort order, by columns, along curves.

- `cluster_order`: the order in which clustering puts rows, and where it is cut into files
- `curves`: space-filling curves: ranks in several columns -> one number whose order keeps neighbours together
- `sort_keys`: columns of any type as unsigned integers in the same order, and the order of rows by them
- `sort_order`: rows in the table's sort order, by Iceberg's rules of what comes first
"""
