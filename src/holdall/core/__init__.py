"""The store: turns a URL into an engine, and each call into batches of ops for that engine."""
