"""Learned filter indexes: fields that filters name often get an index without being declared, built in the background.

`sqlite` has the tables and triggers of SQLite and disk. Redis has such indexes in its own folder, and shares `limits`.
PostgreSQL has one index of all fields instead (`postgres/indexes/background.py`).
"""
