"""Catalogs in which files are owned in odd ways, every command that deletes, and an oracle that knows all owners.

- `lake`: makes a catalog from a seed
- `oracle`: which files each name of each catalog needs, from their metadata alone
- `run`: the commands, and the comparison after each
"""
