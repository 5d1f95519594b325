"""Google's ADK: its sessions, artifacts and memory on any engine."""

from .artifacts import HoldallArtifactService
from .memory import HoldallMemoryService
from .registration import register
from .sessions import HoldallSessionService

__all__ = ["HoldallArtifactService", "HoldallMemoryService", "HoldallSessionService", "register"]
