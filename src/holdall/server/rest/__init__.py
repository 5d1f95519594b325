"""The REST API under /v1, for people and for every language."""

from ..auth import routes as auth
from ..exchange import Handler
from . import events, files, history, items, openapi, operation, queries, threads

#: The routes: path, and for each method the handler and the right that it needs.
ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    **items.ROUTES,
    **files.ROUTES,
    **queries.ROUTES,
    **events.ROUTES,
    **history.ROUTES,
    **threads.ROUTES,
    **operation.ROUTES,
    **auth.ROUTES,
    **openapi.ROUTES,
}
