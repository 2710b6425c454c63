"""Iceberg tables: catalogs, manifests, commits, the state of a table, storage and cleanup.

- `autopilot_settings`: what the autopilot chose for a table: kept as one table property, stored with the clustering
- `cluster_settings`: clustering columns of a table: resolved from arguments or properties, stored there, and removed
"""
