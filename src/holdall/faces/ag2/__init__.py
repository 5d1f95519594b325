"""AG2: its knowledge stores and event logs on any engine."""

from .event_log import EventLogWriter, Tail
from .knowledge import (
    DefaultBootstrap,
    DiskKnowledgeStore,
    HoldallKnowledgeStore,
    LockedKnowledgeStore,
    MemoryKnowledgeStore,
    RedisKnowledgeStore,
    SqliteKnowledgeStore,
    import_from,
)
from .locks import Locks
from .protocol import (
    CONVERSATIONS_PREFIX,
    LOG_PREFIX,
    WORKING_MEMORY_PATH,
    ChangeCallback,
    ChangeSubscription,
    KnowledgeStore,
    NoopChangeSubscription,
    StoreBootstrap,
    UnknownEvent,
)

__all__ = [
    "CONVERSATIONS_PREFIX",
    "LOG_PREFIX",
    "WORKING_MEMORY_PATH",
    "ChangeCallback",
    "ChangeSubscription",
    "DefaultBootstrap",
    "DiskKnowledgeStore",
    "EventLogWriter",
    "HoldallKnowledgeStore",
    "KnowledgeStore",
    "LockedKnowledgeStore",
    "Locks",
    "MemoryKnowledgeStore",
    "NoopChangeSubscription",
    "RedisKnowledgeStore",
    "SqliteKnowledgeStore",
    "StoreBootstrap",
    "Tail",
    "UnknownEvent",
    "import_from",
]
