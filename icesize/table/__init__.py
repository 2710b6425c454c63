"""Iceberg tables: catalogs, manifests, commits, the state of a table, storage and cleanup."""
