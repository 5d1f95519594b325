"""Glob patterns: which files of a folder a pattern such as `notes/**/*.md` matches.

Ops carry a glob as text, relative to the op's folder. Engines compile it with `compile_glob`, once for each walk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from ..errors import InvalidInput, shown

#: Whether a path, which starts with the folder that the glob is relative to, matches.
PathMatcher: TypeAlias = Callable[[str], bool]

_MAGIC = re.compile(r"[*?\[\]{}!\\]")


def split_glob(pattern: str, folder: str) -> tuple[str, str]:
    """Check a user's pattern; return the folder that contains all matches, and the glob relative to that folder.

    A glob without "/" matches the file name, in any subfolder; one with "/" matches the whole path below the folder.
    """
    if not isinstance(pattern, str) or not pattern:
        raise InvalidInput(f"a glob is a str such as '*.md' or 'notes/**/*.md', not {shown(pattern)}")
    if not pattern.isascii() and any("\ud800" <= letter <= "\udfff" for letter in pattern):
        raise InvalidInput(f"lone surrogates are not text, and in no path: {shown(pattern)}")
    if ".." in re.split(r"[/{},]", pattern):
        raise InvalidInput(f"a glob cannot contain '..': {shown(pattern)}")
    if "/" not in pattern:
        _compile(pattern)
        return folder, pattern
    labels = [label for label in pattern.split("/") if label not in ("", ".")]
    if not labels:
        raise InvalidInput(f"a glob names files; {shown(pattern)} names a folder")
    while len(labels) > 1 and not _MAGIC.search(labels[0]):  # a folder without wildcards: the walk can start there
        folder += labels.pop(0) + "/"
    rest = "/".join(labels)
    _compile(rest)
    return folder, f"/{rest}"


def compile_glob(glob: str | None, folder: str) -> PathMatcher | None:
    """Compile a glob that `split_glob` returned; None if there is none, so that every path matches."""
    if glob is None:
        return None
    matches = _compile(glob.removeprefix("/"))
    if "/" not in glob:
        return lambda path: matches(path[path.rindex("/") + 1 :])
    start = len(folder)
    return lambda path: matches(path[start:])


def is_match(pattern: str, path: str) -> bool:
    """Whether a user's pattern, relative to a file's own folder, matches that file."""
    folder, glob = split_glob(pattern, path[: path.rindex("/") + 1])
    matches = compile_glob(glob, folder)
    return path.startswith(folder) and matches is not None and matches(path)


@lru_cache(maxsize=256)  # agents repeat the same patterns
def _compile(glob: str) -> PathMatcher:
    from wcmatch import glob as wcglob  # here, since importing it takes long

    flags = wcglob.GLOBSTAR | wcglob.BRACE | wcglob.FORCEUNIX
    try:
        included, _ = wcglob.translate(glob, flags=flags)
    except Exception as error:  # its own error for too many braces, and any other that a malformed pattern causes
        raise InvalidInput(f"not a glob, or one that stands for too many: {shown(glob)}: {error}") from None
    found = [re.compile(one).fullmatch for one in included]
    if len(found) == 1:
        first = found[0]
        return lambda path: first(path) is not None
    return lambda path: any(one(path) is not None for one in found)
