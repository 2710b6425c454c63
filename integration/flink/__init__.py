"""Iceberg's own Flink sinks beside icesize: a job that fails at planned points, and the rows that it has to leave.

`Changelog.java` is the job: a Flink cluster in one JVM, compiled by `javac`. `job` starts it and computes its rows,
`test_flink` runs icesize's maintenance beside it.
"""
