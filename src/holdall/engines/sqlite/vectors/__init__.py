"""Ranking by vectors in SQLite: exactly for few, with an index file beside the database for many."""
