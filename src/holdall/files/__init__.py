"""Files: the volume and its methods, and file objects.

`patterns.py` has what `grep` looks for; globs are in `model/globs.py`.
"""
