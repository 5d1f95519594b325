"""Hearing of what others write to PostgreSQL: LISTEN, on a connection of its own.

NOTIFY takes a lock of the whole server at commit, so no write says it. Whoever listens holds an advisory lock in shared
mode, and a writer asks once a second whether anybody does; if so, it says so after its writes, a few milliseconds apart
at least (`PostgresEngine`). What that leaves untold is looked for here: after a notice once more, often in the first
second, and now and then in any case. What is looked at is the feed's position, which costs next to nothing.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

import psycopg

from .listening import ConnectedListener
from .postgres_dialect import lock_id

#: For how long a writer that found nobody listening need not ask again, in seconds.
UNHEARD = 1.0
#: After how many seconds a writer says so again.
SAID_EVERY = 0.005

_AFTERWARDS = SAID_EVERY + 0.001  # to look once more after a notice
_AT_FIRST, _BEGINNING = 0.02, UNHEARD + 0.2  # how often, and for how long, until all writers know of us
_SLOW = 1.0  # otherwise
_DEAF = 0.05  # ... and where a pooler lets no notices through
_LONGEST_LOOK = 5.0


class Channel:
    """Where notices of one schema's changes go, and how one knows that somebody hears them."""

    def __init__(self, schema: str) -> None:
        lock = lock_id(f"holdall watch {schema}")
        name = f"holdall_{lock % 2**64:x}"
        #: What a listener says: that it is there, and that it listens.
        self.listen = (f"SELECT pg_advisory_lock_shared({lock})", f"LISTEN {name}")
        #: What a writer says: 1 if somebody listens, who has been told. Not worth a wait for the disk.
        self.announce = (
            f"SELECT CASE WHEN pg_try_advisory_xact_lock({lock}) THEN 0::bigint"
            f" WHEN set_config('synchronous_commit', 'off', true) IS NULL THEN 0::bigint"
            f" WHEN pg_notify('{name}', '')::text IS NULL THEN 0::bigint ELSE 1::bigint END"
        )


class NotifyListener(ConnectedListener):
    """A thread that listens, and rings when `look(connection)` says something new of where the feed stands."""

    _lost = psycopg.Error

    def __init__(
        self,
        connect: Callable[[float], Any],
        channel: Channel,
        look: Callable[[Any], str],
        ring: Callable[[], None],
    ) -> None:
        super().__init__(ring)
        self._connect, self._channel, self._look = connect, channel, look
        self._heard = False
        self._thread.start()

    def _stay(self) -> None:
        connection = self._connect(time.monotonic() + _LONGEST_LOOK)
        self._connections.append(connection)
        connection.add_notify_handler(self._hear)
        connection.deadline = time.monotonic() + _LONGEST_LOOK
        # A pooler invents the process that it says we talk to; what is said to one session is not heard in the next.
        is_deaf = connection.execute("SELECT pg_backend_pid()").fetchone()[0] != connection.info.backend_pid
        for statement in () if is_deaf else self._channel.listen:
            connection.execute(statement)
        usual = _DEAF if is_deaf else _SLOW
        often_until = time.monotonic() + (0 if is_deaf else _BEGINNING)
        pause, seen = 0.0, None
        with selectors.DefaultSelector() as selector:  # of its own: the next connection's socket may have this number
            selector.register(self._ears, selectors.EVENT_READ)
            selector.register(connection.pgconn.socket, selectors.EVENT_READ)
            while not self._stopped.is_set():
                self._heard = False
                if any(key.fileobj != self._ears for key, _ in selector.select(pause)):
                    connection.pgconn.consume_input()
                    while connection.pgconn.notifies():
                        self._heard = True
                connection.deadline = time.monotonic() + _LONGEST_LOOK
                position = self._look(connection)
                if position != seen:
                    seen = position
                    self._ring()
                is_new = time.monotonic() < often_until
                pause = _AFTERWARDS if self._heard else _AT_FIRST if is_new else usual

    def _hear(self, _notice: object) -> None:
        """One that came while something else was asked."""
        self._heard = True
