"""The listener of the Redis engine: it notifies a store of the writes of other clients.

Every script that writes publishes a message on its shard's channel. A background thread subscribes to these channels,
with one connection to each node, and calls `notify` for each message. It also calls `notify` when a connection is lost
and when it has subscribed again, because it may have missed messages.

A node that loses a shard, since its slot moves or a replica takes over, ends the subscription to the shard's channel
with a message, and keeps the connection. Then all subscriptions are made again, with the new map of slots.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..net.listener import ServerListener
from ..net.sockets import ConnectionLost
from .connections import Address, Connection, ErrorReply

_CONNECT_TIMEOUT = 5.0  # seconds
_PING_INTERVAL = 20.0  # seconds without a message, after which a PING is sent; after two, the connection is lost


class SubscribedListener(ServerListener):
    """A thread that subscribes. `list_subscriptions` returns the commands that subscribe, by the node's address."""

    _connection_errors = ConnectionLost

    def __init__(
        self,
        connect: Callable[[Address, float], Connection],
        list_subscriptions: Callable[[], Mapping[Address, Sequence[Sequence[str]]]],
        notify: Callable[[], None],
    ) -> None:
        super().__init__(notify)
        self._connect, self._list_subscriptions = connect, list_subscriptions
        self._thread.start()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_up, selectors.EVENT_READ)
            for address, commands in self._list_subscriptions().items():
                connection = self._connect(address, time.monotonic() + _CONNECT_TIMEOUT)
                self._connections.append(connection)
                for command, *names in commands:
                    connection.send((command, *names))
                    for _ in names:
                        if (reply := connection.read(_CONNECT_TIMEOUT)) is None:
                            raise ConnectionLost("the server did not confirm a subscription")
                        _check_subscribed([reply])
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._notify()  # all messages from here on are received
            # Of each node: the others' messages do not show that it still lives.
            last_heard = dict.fromkeys(self._connections, time.monotonic())
            pinged: set[Connection] = set()
            while not self._stopped.is_set():
                ready = selector.select(max(0.0, min(last_heard.values()) + _PING_INTERVAL - time.monotonic()))
                for key, _ in ready:
                    if key.data is not None:
                        _check_subscribed(key.data.drain())
                        last_heard[key.data] = time.monotonic()
                        pinged.discard(key.data)
                if ready:
                    self._notify()
                for connection, heard in last_heard.items():
                    if time.monotonic() - heard < _PING_INTERVAL:
                        continue
                    if connection in pinged:
                        raise ConnectionLost("the server does not reply to PING")
                    connection.send(("PING",))
                    pinged.add(connection)
                    last_heard[connection] = time.monotonic()


def _check_subscribed(messages: Iterable[Any]) -> None:
    """Raise `ConnectionLost` if a subscription was refused, or ended by the server."""
    for message in messages:
        if isinstance(message, ErrorReply):
            raise ConnectionLost(f"the server refused a subscription: {message}")
        if message[0] in (b"sunsubscribe", b"unsubscribe"):
            raise ConnectionLost("the server ended a subscription, since another node serves its channel now")
