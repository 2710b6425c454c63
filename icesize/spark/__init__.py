"""Everything that talks to Spark; no other room imports pyspark at run time."""
