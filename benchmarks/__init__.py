"""Measures holdall side by side with its peers: `make bench`, `make bench SECTIONS=kv`."""
