"""The command line: parse, call the facade, print.

- `doctor`: `icesize doctor`: what commands need, what of it is here, and which commands will work
- `interrupts`: Ctrl-C and SIGTERM while a command works: both stop it, and say whether its commit is in
- `looking`: commands that look at a table and change nothing
- `main`: the program: its commands in groups, errors as one line and an exit code
- `options`: what several commands share: which table, in which catalog, which policy; questions and answers
- `process`: what the process of the program leaves out to start and end sooner
- `removing`: commands after which something is gone
- `rewriting`: commands that write files or manifests anew and keep every row
- `spark_choice`: whether a command works in Spark, and in which
- `trying`: commands that need no table
- `values`: values as people write them: pairs, sizes, durations, ages, points in time
"""
