"""How code runs: what all other folders call.

It has programs for sync and async callers, deferred signals, worker threads, threads that close resources, and checks
of arguments.
"""
