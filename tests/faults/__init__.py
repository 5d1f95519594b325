"""Faults to plant in an engine, each a pytest plugin that breaks one thing when it is loaded."""
