"""The command line.

- `main`: the commands: parse, call the facade, print
- `options`: options that several commands share: which table, in which catalog, which partitions, which policy
"""
