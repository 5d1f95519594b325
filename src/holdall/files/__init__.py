"""Files: the volume and its methods, file objects, and moves of large folders.

`patterns.py` has what `grep` looks for; globs are in `model/globs.py`.
"""
