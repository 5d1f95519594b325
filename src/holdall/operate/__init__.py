"""Operating a store: looking back, undoing, erasing.

Programs over the ops, written once for all engines. The methods of `Store` and `Files` run them.
"""
