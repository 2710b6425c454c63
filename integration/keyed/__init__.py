"""Random histories of a table with upserts, in process and without Spark; see README.md."""
