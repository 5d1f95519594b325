"""Helpers of the tests: servers, stores on each engine, other processes, and simple models to compare with."""
