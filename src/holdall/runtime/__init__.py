"""How code runs.

It has programs for sync and async callers, deferred signals, worker threads, threads that close resources, and errors
for renamed arguments.
"""
