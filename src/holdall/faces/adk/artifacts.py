"""ADK's artifacts on any engine: `HoldallArtifactService` implements `BaseArtifactService`.

An artifact is a message log (`holdall.faces.message_log`) of its versions: they are numbered from 0, and all are kept.
"""

from __future__ import annotations

from typing import Any

try:
    from google.adk.artifacts import artifact_util
    from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
    from google.adk.errors.input_validation_error import InputValidationError
    from google.genai import types
except ModuleNotFoundError as missing:
    from ..base import explain_missing

    raise explain_missing(missing, "a service for ADK", "adk") from missing

from ... import Entry
from ...core.face_api import StoreProgram
from ...ops import Namespace
from ..base import NamespaceFace, read_all
from ..message_log import MessageLog

_USER = "user:"  # how the name of a user's artifact begins
_REFERENCES = 5  # how many references to other artifacts are followed


class HoldallArtifactService(NamespaceFace, BaseArtifactService):
    """The artifacts of ADK apps, in one namespace of a holdall store.

    `store_or_url` is what `holdall.open` takes, a `holdall.Store`, or another face. `options` are passed to
    `holdall.open` if a URL is given. Processes that save one artifact at the same time get a version each.
    """

    def __init__(self, store_or_url: Any = None, *, namespace: Namespace = ("adk-artifacts",), **options: Any) -> None:
        self._open_namespace(store_or_url, namespace, **options)

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save a new version of an artifact, and return its number."""
        part = ensure_part(artifact)
        log = self._log(app_name, user_id, filename, session_id)
        stored = {
            "part": part.model_dump(mode="json", exclude_none=True),
            "mime_type": self._find_mime_type(part, app_name, user_id, session_id),
            "metadata": custom_metadata or {},
        }
        head = await self._arun(log.append([stored]))
        version: int = head.value["length"] - 1
        return version

    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """Return a version of an artifact, or the newest; None if there is none."""
        for remaining in range(_REFERENCES, -1, -1):
            entry = await self._arun(self._read(app_name, user_id, filename, session_id, version))
            if entry is None:
                return None
            part = types.Part.model_validate(entry.value["part"])
            if not artifact_util.is_artifact_ref(part):
                return None if part == types.Part() else part
            assert part.file_data is not None and part.file_data.file_uri is not None
            found = artifact_util.resolve_artifact_reference(
                file_uri=part.file_data.file_uri,
                app_name=app_name,
                user_id=user_id,
                session_id=session_id,
                remaining_depth=remaining,
            )
            app_name, user_id, filename = found.app_name, found.user_id, found.filename
            session_id, version = found.session_id, found.version
        return None

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """List the names of a user's artifacts and, with a session, also of that session's."""
        namespaces = [self._of_user(app_name, user_id)]
        if session_id is not None:
            namespaces.append(self._of_session(app_name, user_id, session_id))
        heads = [await self._arun(read_all(self.store, one, recursive=False)) for one in namespaces]
        return sorted(head.key for some in heads for head in some)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions of an artifact, if there are any."""
        await self._arun(self._log(app_name, user_id, filename, session_id).delete())

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """List the numbers of an artifact's versions."""
        head = await self._arun(self._log(app_name, user_id, filename, session_id).read_head())
        return [] if head is None else list(range(head.value["length"]))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Describe all versions of an artifact."""
        log = self._log(app_name, user_id, filename, session_id)
        _, entries = await self._arun(log.read_entries())
        return [self._describe(entry) for entry in entries]

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """Describe a version of an artifact, or the newest; None if there is none."""
        entry = await self._arun(self._read(app_name, user_id, filename, session_id, version))
        return None if entry is None else self._describe(entry)

    def _read(
        self, app: str, user: str, filename: str, session: str | None, version: int | None
    ) -> StoreProgram[Entry | None]:
        log = self._log(app, user, filename, session)
        if version is None:
            return (yield from log.read_one(-1))
        return (yield from log.read_one(version)) if version >= 0 else None

    def _describe(self, entry: Entry) -> ArtifactVersion:
        version = int(entry.key)
        return ArtifactVersion(
            version=version,
            canonical_uri="holdall://" + "/".join([*entry.namespace, "versions", str(version)]),
            custom_metadata=entry.value["metadata"],
            create_time=entry.created_at.timestamp(),
            mime_type=entry.value["mime_type"],
        )

    def _find_mime_type(self, part: types.Part, app: str, user: str, session: str | None) -> str | None:
        """Return the MIME type of an artifact. A part that cannot be one is `InputValidationError`."""
        if part.inline_data is not None:
            return part.inline_data.mime_type
        if part.text is not None:
            return "text/plain"
        if part.file_data is None:
            raise InputValidationError("Not supported artifact type.")
        if not artifact_util.is_artifact_ref(part):
            return part.file_data.mime_type
        found = artifact_util.parse_artifact_uri(part.file_data.file_uri or "")
        if not found:
            raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
        artifact_util.validate_artifact_reference_scope(
            app_name=app, user_id=user, session_id=session, parsed_uri=found
        )
        return None  # known when it is loaded

    def _log(self, app: str, user: str, filename: str, session: str | None) -> MessageLog:
        if filename.startswith(_USER):
            heads = self._of_user(app, user)
        elif session is None:
            raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
        else:
            heads = self._of_session(app, user, session)
        return MessageLog.below(self.store, heads, filename)

    def _of_user(self, app: str, user: str) -> Namespace:
        artifact_util.validate_path_segment(app, "app_name")
        artifact_util.validate_path_segment(user, "user_id")
        return self._inside(app, user, "user")

    def _of_session(self, app: str, user: str, session: str) -> Namespace:
        artifact_util.validate_path_segment(session, "session_id")
        return (*self._of_user(app, user)[:-1], "sessions", session)
