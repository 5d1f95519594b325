"""Operating a store: copy and move, backup, comparison, export and import, checks."""
