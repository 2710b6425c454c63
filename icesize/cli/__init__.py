"""The command line: parses arguments, calls the facade, prints results.

- `configuring`: `icesize config`: checks the configuration file, and shows where a table's policy comes from
- `doctor`: `icesize doctor`: checks what the commands need, and lists the commands that will work
- `many_tables`: `icesize maintain` for the tables of a catalog
- `interrupts`: Ctrl-C and SIGTERM during a command: both stop it, and print whether its commit succeeded
- `keys`: commands about the key of a table
- `looking`: commands that read a table and change nothing
- `main`: the program: its commands in groups, errors as one line and an exit code
- `options`: options that commands share (table, catalog, policy), prompts and output
- `process`: start-up and exit shortcuts of the `icesize` process
- `removing`: commands that remove rows, snapshots or files
- `rewriting`: commands that rewrite files or manifests and keep every row
- `spark_choice`: options that select Spark: `--master`, `--remote`, `--conf`
- `trying`: commands that need no table
- `values`: parsers of values: pairs, sizes, durations, ages, points in time
"""
