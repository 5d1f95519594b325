"""Which tests of which framework are run on our faces, and why some cannot pass.

A reason is accepted only for a test that looks into the private parts of another implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """Tests of a framework. `plugin` is the module here that puts our classes in place of the framework's."""

    package: str
    faces: str
    files: tuple[str, ...]
    plugin: str = ""
    environment: str = ".venv"
    arguments: tuple[str, ...] = ()
    is_installed: bool = False  # the tests are classes of an installed package, which our own test modules extend
    shown: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def python(self, repository: Path) -> str:
        """Return the interpreter of the suite's environment."""
        return str(repository / self.environment / "bin" / "python")

    def describe(self) -> str:
        """Return what the table calls the tests."""
        return self.shown or f"`{self.package}`: " + ", ".join(f"`{Path(file).name}`" for file in self.files)


_ASYNC = ("-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")
_SQLITE = "it looks into the tables, connections or locks of `SQLiteSession`"
_FOLDER = "it looks at the folder or the sandbox of `LocalFileStorage`"
_OPENING = "it replaces the private method `_validate_path`, or watches how the SDK's own tool opens a file"
_LINKS = (
    "it puts symbolic links into the folder of the SDK's own tool; a store has none, and reads nothing through a link"
)
_MODES = "it looks at the modes of the folder of the SDK's own tool"
_PATHS = "it looks at the files of `FileSessionManager`"

SUITES = (
    Suite(
        "anthropic",
        "`MemoryTool`, `AsyncMemoryTool`",
        ("tests/lib/tools/memory_tools/test_filesystem.py",),
        "claude",
        arguments=("-n0",),
        reasons={
            "after_validation|before_open|validate_path_returns": _OPENING,
            "reject_symlink_pointing|view_lists_symlinks": _LINKS,
            "test_mkdir_parents": _MODES,
        },
    ),
    Suite(
        "openai-agents",
        "`HoldallSession`",
        (
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_compaction_suffix.py",
            "tests/memory/test_compaction_model_visibility.py",
            "tests/memory/test_openai_responses_compaction_session.py",
        ),
        "openai_agents",
        reasons={
            r"connections?_?|_connection|corrupt|file_lock|write_lock|failed_clear|post_commit": _SQLITE,
            r"settled_(clear|pop)_failure": _SQLITE,
            r"_suffix.py::test_(cancelled_suffix|failed_encrypted|suffix_transaction_rolls)": _SQLITE,
        },
    ),
    Suite(
        "langchain-tests",
        "`HoldallByteStore`, `HoldallCache`",
        ("tests/suites/langchain_cases.py",),
        arguments=(*_ASYNC, "-o", "asyncio_default_fixture_loop_scope=function"),
        is_installed=True,
        shown="`langchain-tests`: byte stores and caches, sync and async",
    ),
    Suite(
        "langgraph-checkpoint",
        "`HoldallCache` of LangGraph",
        ("tests/test_redis_cache.py",),
        "langgraph",
        reasons={"test_corrupted_data": "it writes into Redis, under a key of the private method `_make_key`"},
    ),
    Suite(
        "fsspec",
        "`HoldallFileSystem`",
        tuple(f"tests/faces/fsspec/test_filesystem.py::Test{name}" for name in ("Copy", "Get", "Put", "Pipe", "Open")),
        is_installed=True,
        shown="`fsspec.tests.abstract`: copy, get, put, pipe and open",
    ),
    Suite(
        "strands-agents",
        "`HoldallStorage`, `HoldallSessionRepository`",
        (
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/storage/test_local_file_storage.py",
            "tests/strands/storage/test_storage.py",
            "tests/strands/storage/search/test_keyword.py",
            "tests/strands/session/test_repository_session_manager.py",
            "tests/strands/session/test_file_session_manager.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/agent/test_agent_storage.py",
            "tests/strands/_context_manager/test_stash.py",
            "tests/strands/vended_memory_stores/file_memory_store/test_store.py",
        ),
        "strands",
        environment=".venv/strands",
        reasons={
            r"_local_file_storage.py.*(sandbox|_error_raises|write_(creates|atomic)|returns_local|normpath)": _FOLDER,
            "test_skips_keys_where_read_returns_none": "it writes into the dict of `InMemoryStorage`",
            r"test_file_session_manager.py::test_(_get_|create_(session|agent|message|multi_agent)\b)": _PATHS,
            r"test_file_session_manager.py::test_(delete_session\b|message_durable_id|corrupted_json)": _PATHS,
            r"test_file_session_manager.py::test_create_session_multi_agent_directory": _PATHS,
        },
    ),
)
