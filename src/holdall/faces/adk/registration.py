"""URLs for ADK: `holdall+sqlite:///agent.db` and the other URLs of holdall as service URIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.face_api import SCHEMES
from .artifacts import HoldallArtifactService
from .memory import HoldallMemoryService
from .sessions import HoldallSessionService

if TYPE_CHECKING:
    from google.adk.cli.service_registry import ServiceRegistry

_PREFIX = "holdall+"


def register(registry: ServiceRegistry | None = None) -> None:
    """Register the services for URIs that begin with `holdall+`. Call it in the `services.py` of your agents."""
    if registry is None:
        from google.adk.cli.service_registry import get_service_registry

        registry = get_service_registry()
    for scheme in SCHEMES:
        registry.register_session_service(_PREFIX + scheme, _make_sessions)
        registry.register_artifact_service(_PREFIX + scheme, _make_artifacts)
        registry.register_memory_service(_PREFIX + scheme, _make_memory)


def _make_sessions(uri: str, **_: Any) -> HoldallSessionService:
    return HoldallSessionService(uri.removeprefix(_PREFIX))


def _make_artifacts(uri: str, **_: Any) -> HoldallArtifactService:
    return HoldallArtifactService(uri.removeprefix(_PREFIX))


def _make_memory(uri: str, **_: Any) -> HoldallMemoryService:
    return HoldallMemoryService(uri.removeprefix(_PREFIX))
