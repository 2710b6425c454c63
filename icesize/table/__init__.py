"""Iceberg tables: catalogs, manifests, commits, the state of a table, storage and cleanup.

- `cluster_settings`: clustering columns of a table: resolved from arguments or properties, stored there, and removed
"""
