"""Tests against real catalog servers and Iceberg's own Spark runtime; they need Java, Maven and the network once."""
