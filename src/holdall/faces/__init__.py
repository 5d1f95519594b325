"""Faces: what others see of a store. Each imports the core, never an engine, and is imported by who wants it."""
