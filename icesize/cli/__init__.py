"""The command line.

- `interrupts`: Ctrl-C and SIGTERM while a command works: both stop it, and say whether its commit is in
- `main`: the commands: parse, call the facade, print
- `options`: options that several commands share: which table, in which catalog, which partitions, which policy
- `process`: what the process of the program leaves out to start and end sooner
"""
