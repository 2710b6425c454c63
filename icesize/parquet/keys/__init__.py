"""Keys of rows as numbers, so that they can be compared without Python objects.

- `codes`: keys as numbers
- `ranks`: values in their order
"""
