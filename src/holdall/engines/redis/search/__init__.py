"""Ranked search in Redis: the posting lists of the text index, and vectors that a process keeps in memory."""
