"""The history of a store: versions, the store as it was, undoing, erasing. Programs over the ops, for all engines."""
