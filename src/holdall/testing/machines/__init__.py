"""Hypothesis state machines that compare an engine with a simple model."""
