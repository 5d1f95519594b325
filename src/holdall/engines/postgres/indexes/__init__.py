"""Indexes of PostgreSQL's that are not in its schema: those built in the background, and that of file contents."""
