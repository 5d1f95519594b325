"""The text index in storage: immutable segments of posting lists, and a list of its own terms for each document.

`state` says what there is and what to merge, `documents` encodes what belongs to documents, `merging` joins segments.
`kernel` is the arithmetic on many numbers: `arrays` with numpy, `plain` without it, with the same results.
"""
