"""Learned filter indexes: fields that filters name often get an index by themselves, built in the background."""
