"""The command line.

- `main`: the command line: parse, call the facade, print
- `options`: options that several commands share: which table, in which catalog, which partitions, which policy
- `versions`: the commands that keep, restore and remove versions
"""
