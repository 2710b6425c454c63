"""Passes: all jobs on one table, or on the tables of a catalog, within a budget; and what they would bring.

- `inspecting`: answers about one table: the sizes of its files, and its batches under other policies
- `maintain`: one bounded pass of all maintenance, and its steps in the order that saves work
- `survey`: surveys the tables of a catalog: the scan time that maintenance would save, from metadata alone
- `many_tables`: one bounded pass over the tables of a catalog, those with most benefit per byte first
"""
