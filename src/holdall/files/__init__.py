"""Files: the volume and its methods, file objects, texts and edits, and moves of large folders.

`patterns.py` has the patterns of `grep`; globs are in `model/globs.py`.
"""
