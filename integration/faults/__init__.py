"""Faults that were tried on real tables, and what has to hold after each: `README.md` here is the table of them."""
