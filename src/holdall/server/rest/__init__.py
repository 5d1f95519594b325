"""The REST API under /v1, for people and for every language."""

from ..exchange import Handler

ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {}
