"""How many fields an engine learns, and which one goes when another one comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MOST_FIELDS = 8
#: Microseconds for which a field is not dropped after its index was begun, so that nine fields do not take turns.
RESIDENCE = 3600 * 1_000_000


def find_room(fields: Mapping[str, tuple[int, int]], now: int, keep: Iterable[str] = ()) -> tuple[bool, str | None]:
    """Return whether one more field may be learned, and which one has to be dropped for it.

    `fields` has since when each field is learned, and how often it was used. Those of `keep` stay.
    """
    if len(fields) < MOST_FIELDS:
        return True, None
    idle = {name: uses for name, (since, uses) in fields.items() if since <= now - RESIDENCE and name not in keep}
    return bool(idle), min(idle, key=idle.__getitem__) if idle else None
