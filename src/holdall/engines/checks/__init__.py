"""Checks of what an engine stores besides entries: contents, vectors, and the database itself."""
