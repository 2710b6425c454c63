"""The command line: parses arguments, calls the facade, prints results.

- `cleaning`: commands that delete what nothing needs
- `configuring`: `icesize config`: checks the configuration file, and shows where a table's policy comes from
- `doctor`: `icesize doctor`: checks what the commands need, and lists the commands that will work
- `interrupts`: Ctrl-C and SIGTERM during a command: both stop it, and print whether its commit succeeded
- `keys`: commands about the key of a table
- `inspecting`: commands that read a table and change nothing
- `maintain`: `icesize maintain`: one table, or the tables of a catalog
- `main`: the program: its commands in groups, errors as one line and an exit code
- `options`: options that commands share (table, catalog, policy), prompts and output
- `process`: when the process of a command collects garbage
- `restoring`: commands that bring back an earlier version, or correct metadata
- `rewriting`: commands that rewrite files or manifests and keep every row
- `spark_choice`: options that select Spark: `--master`, `--remote`, `--conf`
- `starting`: commands that need no table
- `values`: parsers of values: pairs, sizes, durations, ages, points in time
"""
