"""Operating a store: history and undo, copy and move, backup, comparison, export and import, checks, erasing."""
