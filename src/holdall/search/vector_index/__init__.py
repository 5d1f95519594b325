"""An index of many vectors in one file that processes share, or in memory: vectors in one byte a dimension, in cells.

It gives bounds of scores (`VectorIndex`); an engine computes the exact scores of the few that matter. Needs numpy.
"""
