"""All code that uses Spark; no other package imports pyspark at run time."""
