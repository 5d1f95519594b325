"""Detects what other processes write to PostgreSQL, with LISTEN and NOTIFY on its own connection.

At commit, NOTIFY takes a lock of the whole server, so a write does not contain one. Instead, every listener holds an
advisory lock in shared mode. After a write, and at most once in `LISTENER_CHECK_INTERVAL` while there is no listener, a
writer (`PostgresEngine`) tests that lock. If a listener holds it, the writer sends a notification, at most one in
`NOTIFY_INTERVAL`.

A write may therefore have no notification of its own. So the listener also polls the feed's position, which is cheap:
once more after each notification, often at first, while writers may not know of it yet, and otherwise once a second.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

import psycopg

from ..net.listener import ServerListener
from .dialect import lock_id

# All in seconds.
#: After a writer has found no listener, it does not check for one for so long.
LISTENER_CHECK_INTERVAL = 1.0
#: A writer sends its notifications at least so far apart.
NOTIFY_INTERVAL = 0.005

_AFTER_NOTIFICATION = NOTIFY_INTERVAL + 0.001  # until the next poll, which finds writes that were not notified
_AT_FIRST = 0.02  # between polls, while writers may not know of this listener ...
_FIRST_PERIOD = LISTENER_CHECK_INTERVAL + 0.2  # ... which lasts so long
_USUALLY = 1.0  # between polls, otherwise
_WITHOUT_NOTIFICATIONS = 0.05  # between polls, if a pooler passes no notifications on
_MAX_WAIT = 5.0  # for a connection, and for the reply to one poll


class Channel:
    """The statements by which the listeners and writers of one schema find each other."""

    def __init__(self, schema: str) -> None:
        lock = lock_id(f"holdall watch {schema}")
        name = f"holdall_{lock % 2**64:x}"
        #: What a listener executes: take the shared lock, and listen.
        self.listen = (f"SELECT pg_advisory_lock_shared({lock})", f"LISTEN {name}")
        #: What a writer executes: returns 0 if there is no listener, else sends a notification and returns 1. A
        #: notification need not survive a crash, so its commit does not wait for the disk.
        self.notify = (
            f"SELECT CASE WHEN pg_try_advisory_xact_lock({lock}) THEN 0::bigint"
            f" WHEN set_config('synchronous_commit', 'off', true) IS NULL THEN 0::bigint"
            f" WHEN pg_notify('{name}', '')::text IS NULL THEN 0::bigint ELSE 1::bigint END"
        )


class NotifyListener(ServerListener):
    """A thread that listens, and calls `notify` when `read_position(connection)` returns a new position of the feed."""

    _connection_errors = psycopg.Error

    def __init__(
        self,
        connect: Callable[[float], Any],
        channel: Channel,
        read_position: Callable[[Any], object],
        notify: Callable[[], None],
    ) -> None:
        super().__init__(notify)
        self._connect, self._channel, self._read_position = connect, channel, read_position
        self._was_notified = False
        self._thread.start()

    def _listen(self) -> None:
        connection = self._connect(time.monotonic() + _MAX_WAIT)
        self._connections.append(connection)
        connection.add_notify_handler(self._note_notification)
        connection.deadline = time.monotonic() + _MAX_WAIT
        # A pooler makes up the process id that it reports. It gives each statement another session of the server, and
        # passes no notifications on.
        [(server_pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        has_pooler = server_pid != connection.info.backend_pid
        if not has_pooler:
            for statement in self._channel.listen:
                connection.execute(statement)
        usual_wait = _WITHOUT_NOTIFICATIONS if has_pooler else _USUALLY
        first_period_end = time.monotonic() + (0 if has_pooler else _FIRST_PERIOD)
        wait, last_position = 0.0, object()
        with selectors.DefaultSelector() as selector:  # a new one: the next connection's socket may get the same number
            selector.register(self._wake_up, selectors.EVENT_READ)
            selector.register(connection.pgconn.socket, selectors.EVENT_READ)
            while not self._stopped.is_set():
                self._was_notified = False
                if any(key.fileobj != self._wake_up for key, _ in selector.select(wait)):
                    connection.pgconn.consume_input()
                    while connection.pgconn.notifies():
                        self._was_notified = True
                connection.deadline = time.monotonic() + _MAX_WAIT
                position = self._read_position(connection)
                if position != last_position:
                    last_position = position
                    self._notify()
                if self._was_notified:
                    wait = _AFTER_NOTIFICATION
                else:
                    wait = _AT_FIRST if time.monotonic() < first_period_end else usual_wait

    def _note_notification(self, _notification: object) -> None:
        """Called for a notification that arrives together with the reply to a statement."""
        self._was_notified = True
