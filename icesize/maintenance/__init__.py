"""Maintenance of tables. None of it needs Spark.

- `table_context`: the context of every job: a table, the environment, and the engine that rewrites files
- `rounds`: runs one plan in several rounds, each with a commit, and combines their reports
"""
