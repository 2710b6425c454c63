"""How people see inspections, plans and reports.

- `tables`: how people see inspections, plans and reports
- `versions`: how people see versions, expiry, orphans and a maintenance pass
"""
