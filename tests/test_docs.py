"""The documentation is true: its examples run, its links lead somewhere, and no public name is left out.

Every ```python block of README.md and docs/ is run. The blocks of one page are one script, run in a process and a
folder of their own, with each line where it stands on the page, so that a traceback names the page's line. Two kinds
of comment are checked:

    store.count()        # => 3                  the value's repr
    store.get("a", "b")  # raises InvalidInput   the error's name

The lines with `holdall agent.db` of a ```sh block that begins so are run, too.

A block that cannot run is marked: ```python no-run. A page that defines tests (`class Test…`) is run by pytest,
too, or a fifth of what it inherits. One that reads DATABASE_URL gets a new database of a real PostgreSQL, and one that
reads REDIS_URL a Valkey. One that reads BUCKET_URL gets a bucket.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.store.sqlite import SqliteStore

import holdall
from holdall import testing
from holdall.engines.disk import DiskOptions
from holdall.engines.postgres import PostgresOptions
from holdall.engines.s3 import S3Options
from holdall.errors import Unavailable
from holdall.faces import ag2, spoon
from holdall.faces.ag2 import protocol as ag2_protocol
from holdall.faces.conversations import repository as conversations
from holdall.faces.deepagents import backend as deepagents
from holdall.faces.langgraph import store as langgraph
from holdall.faces.spoon import protocol as spoon_protocol
from holdall.files.volume import Files, Match, Window
from holdall.ops import FileInfo
from support.servers import postgres_url, redis_url, s3_credentials, s3_server
from support.signatures import documented_signature, signature_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if "```sh\nholdall agent.db" in page.read_text()]
EXAMPLES = [page for page in PAGES if "```python\n" in page.read_text()]
each_page = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])

MOST_NOT_RUN = 4  # one is for Strands, which has an environment of its own; its example is run there

CHECKS = """\
from contextlib import contextmanager

def shows(value, expected):
    assert repr(value) == expected, f"the page has {expected}, it is {value!r}"

@contextmanager
def raises(expected):
    try:
        yield
    except Exception as error:
        assert type(error).__name__ == expected, f"the page has {expected}, it is {error!r}"
    else:
        raise AssertionError(f"the page has {expected}, nothing was raised")
"""

FEW = """\
from hypothesis import settings
settings.register_profile("few", max_examples=5)
settings.load_profile("few")

def pytest_collection_modifyitems(items):
    items[:] = [item for number, item in enumerate(items) if number % 20 == 0 or "runTest" in item.name]
"""


# Examples ------------------------------------------------------------------------------------------------------------


def example(page: Path) -> Any:
    """A page as a parameter. One runs the contract, which takes 10 s."""
    marks = [pytest.mark.not_short] if page.stem == "write-an-engine" else []
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [example(page) for page in EXAMPLES])
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    code = script(page)
    (tmp_path / "checks.py").write_text(CHECKS)
    example = tmp_path / f"test_{page.stem.replace('-', '_')}.py"
    example.write_text(code)
    quiet_fork = "ignore:This process:DeprecationWarning"  # the page on forking does it with threads about
    quiet_times = "ignore:The default datetime adapter:DeprecationWarning"  # LangGraph's SqliteStore, from 3.12 on
    commands = [["-W", "error", "-W", quiet_fork, "-W", quiet_times, example.name]]
    if re.search(r"^class Test", code, re.MULTILINE):
        (tmp_path / "conftest.py").write_text(FEW)
        commands.append(["-m", "pytest", "-q", "-p", "no:cacheprovider", example.name])
    for command in commands:
        run = subprocess.run(
            [sys.executable, *command],
            check=False,
            cwd=tmp_path,
            env=os.environ
            | ({"DATABASE_URL": new_database()} if "DATABASE_URL" in code else {})
            | ({"REDIS_URL": redis_url()} if "REDIS_URL" in code else {})
            | (bucket_environment(tmp_path) if "BUCKET_URL" in code else {}),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == 0, f"{page}, at the line that the traceback names:\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=[str(page.relative_to(ROOT)) for page in WITH_COMMANDS])
def test_the_commands_run(page: Path, tmp_path: Path) -> None:
    """Each is run in a folder with what the pages refer to. A search of a new store may find nothing: exit code 1."""
    (tmp_path / "my_models.py").write_text("from holdall.testing import embed\n")
    with SqliteStore.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        theirs.setup()
        theirs.put(("users", "ada"), "food", {"text": "peanut allergy"})
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = [block for block in blocks(page) if block.kind == "sh" and block.text.startswith("holdall agent.db")]
    for line in (line for block in shell for line in block.lines if "holdall agent.db" in line):
        run = subprocess.run(
            ["sh", "-c", line],  # of the page
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode in (0, 1), f"{page}: {line}\n{run.stderr}"


def bucket_environment(folder: Path) -> dict[str, str]:
    """Where a page finds a bucket, as a user's environment says it."""
    server, (key, secret) = s3_server(), s3_credentials()
    return {
        "BUCKET_URL": f"s3://{server.bucket}/docs",
        "AWS_ENDPOINT_URL_S3": server.endpoint,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "XDG_CACHE_HOME": str(folder),
    }


_databases = itertools.count()


def new_database() -> str:
    """The URL of an empty database of a real PostgreSQL."""
    name = f"docs_{next(_databases)}"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_url().replace("/postgres?", f"/{name}?")


def test_the_grants_in_the_how_to_are_all_that_an_application_needs() -> None:
    [grants] = [block.text for block in blocks(DOCS / "how-to" / "use-postgresql.md") if block.kind == "sql"]
    url = new_database()
    as_app = url.replace("postgres:@", "app@")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS app")
        admin.execute("CREATE ROLE app LOGIN")
        with pytest.raises(Unavailable, match="may not"), holdall.open(as_app, schema="agents"):
            pass
        with holdall.open(url, schema="agents", filter_fields=["kind"]):
            pass
        for left_out in [*range(len(grants.splitlines())), None]:
            admin.execute("DROP OWNED BY app")  # what was granted to it
            for number, grant in enumerate(grants.splitlines()):
                if number != left_out:
                    admin.execute(grant)
            store = holdall.open(as_app, schema="agents", filter_fields=["kind"], sweep_interval=None)
            try:
                if left_out is None:
                    _do_everything(store)
                else:
                    with pytest.raises(Unavailable):
                        _do_everything(store)
            finally:
                store.close()
        admin.execute("DROP OWNED BY app")
        admin.execute("DROP ROLE app")


def _do_everything(store: holdall.Store) -> None:
    ops = holdall.ops
    store.put(("a",), "k", {"kind": 1}, ttl=100)
    assert store.get(("a",), "k", refresh=True) is not None
    store.update(("a",), "k", lambda value: value)
    store.execute([ops.Put(("a", "b"), "x", {}), ops.Put(("a", "b"), "y", {}), ops.Check(("a",), "no", holdall.ABSENT)])
    assert [hit.key for hit in store.search(filter={"kind": 1})] == ["k"]
    assert store.count(("a",)) == len(list(store.scan(("a",)))) == 3
    assert store.namespaces(prefix=("a",)) == [("a",), ("a", "b")]
    assert store.delete(("a",), "k")
    assert store.delete_tree(("a",)) == 2
    files = store.files(("a",))
    files.write("/d/f", "text")
    files.append("/d/f", " and more")
    files.edit("/d/f", "more", "less")
    files.copy("/d", "/e")
    files.append("/e/f", "!")
    assert [match.path for match in files.grep("less")] == ["/d/f", "/e/f"]
    with files.open("/d/g", "wb") as file:
        file.write(b"piece")
    store._engine_handle.engine.execute([ops.Maintain()])  # which happens in the background
    files.move("/d", "/x")
    assert files.delete("/", recursive=True) == 3
    assert store.sweep() == 0
    store.put(("q",), "k", {"text": "words"})
    embedding = store.with_embedder(testing.embed)
    assert embedding.reindex() == 1
    embedding.put(("q",), "other", {"text": "long words"})
    assert [hit.key for hit in store.search(query="words")] == ["k", "other"]
    assert len(embedding.search(query="word", mode="semantic")) == 2
    assert store.delete_tree(("q",)) == 2
    assert store.search(query="words") == []


def test_hardly_an_example_is_left_out() -> None:
    kinds = [block.kind for page in PAGES for block in blocks(page) if block.kind.startswith("py")]
    assert set(kinds) <= {"python", "python no-run"}
    assert kinds.count("python no-run") <= MOST_NOT_RUN


def test_a_wrong_result_a_missing_error_and_an_exception_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for line in ("1 + 1  # => 3", "1 + 1  # raises ValueError", "int('x')  # raises KeyError", "1 / 0"):
        page.write_text(f"# Page\n\n```python\n{line}\n```\n")
        with pytest.raises(AssertionError, match=r"(?s)page\.md.*line 4"):
            test_the_examples_run(page, tmp_path)


# Names ---------------------------------------------------------------------------------------------------------------

OPTIONS = [
    name
    for name, parameter in inspect.signature(holdall.open).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
]
OPTIONS += [field.name for options in (DiskOptions, PostgresOptions, S3Options) for field in fields(options)]
OPS = [
    op
    for op in vars(holdall.ops).values()
    if isinstance(op, type) and issubclass(op, holdall.ops.Op) and not op.__subclasses__()
]
assert OPS
OP_NAMES = [op.__name__ for op in OPS]
METHODS = [name for name in dir(holdall.Store) if not name.startswith("_")]
#: The functions of `holdall` itself. The async ones have the same signatures.
TOP_FUNCTIONS = [name for name in holdall.__all__ if inspect.isfunction(getattr(holdall, name)) and name[0] != "a"]
SYNC_METHODS = [name for name in METHODS if not (name.startswith("a") and name[1:] in METHODS)]
FILE_METHODS = [name for name in vars(Files) if f"a{name}" in vars(Files)]
RECORDS = [holdall.Entry, holdall.Hit, holdall.Change, holdall.OpEvent, FileInfo, Window, Match, *OPS]
FIELDS = [name for record in RECORDS for name in record.__match_args__]


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            *holdall.__all__,
            *holdall.errors.__all__,
            *testing.__all__,
            *METHODS,
            *FILE_METHODS,
            *OPTIONS,
            *FIELDS,
            *OP_NAMES,
        }
    ),
)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    assert re.search(rf"\b{name}\b", MENTIONED), f"{name} is nowhere in docs/reference, as code"


@pytest.mark.parametrize("name", [*(f"holdall.{name}" for name in TOP_FUNCTIONS), *SYNC_METHODS])
def test_a_signature_in_the_reference_is_the_real_one(name: str) -> None:
    owner: Any = holdall if name.startswith("holdall.") else holdall.Store
    name = name.removeprefix("holdall.")
    documented = re.search(
        rf"^{'holdall' if owner is holdall else 'store'}\.{name}(\(.*?\) -> .*?)$", SIGNATURES, re.MULTILINE | re.DOTALL
    )
    assert documented is not None, f"docs/reference has no line like: store.{name}(…) -> …"
    assert documented_signature(documented[1]) == signature_of(getattr(owner, name))


@pytest.mark.parametrize("name", FILE_METHODS)
def test_a_signature_of_files_in_the_reference_is_the_real_one(name: str) -> None:
    documented = re.search(rf"^files\.{name}(\(.*?\) -> .*?)$", SIGNATURES, re.MULTILINE)
    assert documented is not None, f"docs/reference has no line like: files.{name}(…) -> …"
    signature = signature_of(getattr(Files, name))
    assert documented_signature(documented[1]) == signature
    twin = signature_of(getattr(Files, f"a{name}"))
    if name not in ("open", "walk", "watch"):  # whose results are async themselves
        assert twin == signature
    assert twin[:-1] == signature[:-1]


#: The classes of faces, and where in the reference they are: the page, and how its heading begins.
FACES: dict[type, tuple[str, str]] = {
    langgraph.HoldallStore: ("langgraph.md", "HoldallStore"),
    langgraph.AsyncHoldallStore: ("langgraph.md", "AsyncHoldallStore"),
    conversations.ConversationRepository: ("langgraph.md", "ConversationRepository"),
    conversations.PostgresStoreRepository: ("langgraph.md", "BaseStoreRepository"),
    deepagents.HoldallBackend: ("agents.md", "HoldallBackend"),
    spoon.SQLiteStore: ("agents.md", "SQLiteStore"),
    spoon.InMemoryStore: ("agents.md", "SQLiteStore"),
    spoon.StoreBackend: ("agents.md", "StoreBackend"),
    ag2.HoldallKnowledgeStore: ("ag2.md", "Stores"),
    ag2.DiskKnowledgeStore: ("ag2.md", "Stores"),
    ag2.MemoryKnowledgeStore: ("ag2.md", "Stores"),
    ag2.RedisKnowledgeStore: ("ag2.md", "Stores"),
    ag2.SqliteKnowledgeStore: ("ag2.md", "Stores"),
    ag2.LockedKnowledgeStore: ("ag2.md", "LockedKnowledgeStore"),
    ag2.EventLogWriter: ("ag2.md", "EventLogWriter"),
    ag2.Locks: ("ag2.md", "Locks"),
    ag2.DefaultBootstrap: ("ag2.md", "DefaultBootstrap"),
}
FUNCTIONS = [
    (langgraph.import_from, "langgraph.md"),
    (langgraph.aimport_from, "langgraph.md"),
    (spoon.create_store_backend, "agents.md"),
    (spoon.import_from, "agents.md"),
    (spoon.aimport_from, "agents.md"),
    (ag2.import_from, "ag2.md"),
]
NOT_SIGNED = {  # which have no methods to call, or nobody makes himself
    *("BaseStoreRepository", "Conversation", "FoundMessage", "Imported", "Refused", "Tail"),
    *("ChangeCallback", "CONVERSATIONS_PREFIX", "LOG_PREFIX", "WORKING_MEMORY_PATH"),
}


@pytest.mark.parametrize("face", [langgraph, conversations, deepagents, spoon, ag2], ids=lambda face: face.__name__)
def test_the_reference_has_all_that_a_face_offers(face: Any) -> None:
    assert [name for name in face.__all__ if not re.search(rf"\b{name}\b", MENTIONED)] == []
    theirs = {*spoon_protocol.__dict__, *ag2_protocol.__all__}
    signed = {kind.__name__ for kind in FACES} | {function.__name__ for function, _ in FUNCTIONS}
    assert set(face.__all__) - signed - theirs - NOT_SIGNED == set()


@pytest.mark.parametrize("kind", FACES, ids=lambda kind: kind.__name__)
def test_the_signatures_of_a_face_in_the_reference_are_the_real_ones(kind: type) -> None:
    documented = signatures_under(*FACES[kind])
    assert [part for part in documented[kind.__name__] if part != "None"] == signature_of(kind)[:-1]
    base = langgraph.HoldallStore if kind is langgraph.AsyncHoldallStore else kind
    for name in own_methods(kind):
        if name == "from_conn_string":
            assert documented[name][:-1] == signature_of(getattr(kind, name))[:-1]
        elif kind is not conversations.PostgresStoreRepository:
            known = documented if name in documented else signatures_under(*FACES[base])
            method = getattr(kind, name)
            prefix = ["await"] if inspect.iscoroutinefunction(method) else []
            assert known[name] == prefix + signature_of(method)


#: The faces of the page "More frameworks", but Strands', which has an environment of its own.
FRAMEWORKS = (
    *("adk", "agent_framework", "claude", "fsspec", "key_value"),
    *("langchain", "llama_index", "openai_agents", "pydantic_ai"),
)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the Agent Framework's file stores
@pytest.mark.parametrize("face", FRAMEWORKS)
def test_the_page_of_frameworks_has_each_class_with_its_arguments(face: str) -> None:
    module = importlib.import_module(f"holdall.faces.{face}")
    documented, doors = signatures_under("frameworks.md", ""), (DOCS / "how-to" / "choose-a-door.md").read_text()
    for name in set(module.__all__) - {"SessionInfo"}:  # a result
        made = getattr(module, name)
        assert documented[name][:-1] == signature_of(made.__init__ if isinstance(made, type) else made)[:-1]
        assert f"`{name}`" in doors or not isinstance(made, type), "it is not in the table of doors"


@pytest.mark.parametrize(("function", "page"), FUNCTIONS, ids=lambda part: getattr(part, "__module__", part))
def test_the_signatures_of_a_faces_functions_in_the_reference_are_the_real_ones(function: Any, page: str) -> None:
    prefix = ["await"] if inspect.iscoroutinefunction(function) else []
    assert signatures_under(page, "")[function.__name__] == prefix + signature_of(function)


def own_methods(kind: type) -> list[str]:
    """What a face has itself, and not from its framework; for a sync method and its twin, the sync one."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("holdall.faces")]
    names = [name for base in ours for name, one in vars(base).items() if callable(one) or isinstance(one, classmethod)]
    return sorted({name for name in names if name[0] != "_" and not (name[0] == "a" and name[1:] in names)})


def signatures_under(page: str, heading: str) -> dict[str, list[str]]:
    """What the text blocks under a heading say of each function or method."""
    documented = {}
    parts = re.split(r"(?m)^## ", (DOCS / "reference" / page).read_text())
    for part in parts if heading == "" else [part for part in parts if part.startswith(heading)]:
        for block in re.findall(r"(?s)```text\n(.*?)```", part):
            lines = re.findall(r"(?m)^(await )?(?:\w+\.)?(\w+)(\(.*?\))(?: -> (.*))?$", block)
            for awaited, name, signature, result in lines:
                documented[name] = ["await"] * bool(awaited) + documented_signature(f"{signature} -> {result or None}")
    return documented


@pytest.mark.parametrize(
    "name", [name for name in SYNC_METHODS if name not in ("scoped", "files", "lease", "with_embedder", "at", "acting")]
)
def test_an_async_twin_takes_what_the_method_takes(name: str) -> None:
    """So that the reference can give one signature for both."""
    twin, method = (signature_of(getattr(holdall.Store, found)) for found in (f"a{name}", name))
    assert [result.removeprefix("Async") for result in twin] == [
        result.replace(", None, None]", ", None]") for result in method
    ]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_the_fields_of_an_op_in_the_reference_are_the_real_ones(op: type) -> None:
    documented = re.search(rf"^{op.__name__}(\(.*?\)) -> ", SIGNATURES, re.MULTILINE)
    assert documented is not None, f"docs/reference has no line like: {op.__name__}(…) -> …"
    assert documented_signature(documented[1] + " -> None") == [*signature_of(op)[:-1], "None"]


# Links ---------------------------------------------------------------------------------------------------------------


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.is_relative_to(ROOT), f"{link} leads out of the project"
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{place or page.name} has no heading for #{anchor}"


def test_the_index_of_the_decisions_is_whole_and_in_order() -> None:
    index = prose(DOCS / "discussions" / "decisions.md")
    areas = re.findall(r"(?m)^## \[.+\]\(decisions/(.+)\.md\)$", index)
    assert sorted(areas) == sorted(page.stem for page in (DOCS / "discussions" / "decisions").glob("*.md"))
    listed = re.findall(r"(?m)^- \[(.+)\]\(decisions/(.+)\.md#.+\)$", index)
    for area in areas:
        headings = re.findall(r"(?m)^## (.+)$", prose(DOCS / "discussions" / "decisions" / f"{area}.md"))
        assert [heading for heading, page in listed if page == area] == headings


def test_every_page_can_be_reached_from_the_index() -> None:
    indexes = [DOCS / "index.md", DOCS / "discussions" / "decisions.md"]
    linked = {(index.parent / link.partition("#")[0]).resolve() for index in indexes for link in links(index)}
    assert [page for page in DOCS.rglob("*.md") if page not in {*linked, *indexes}] == []
    assert indexes[1] in {(DOCS / link).resolve() for link in links(indexes[0])}


# Reading Markdown ----------------------------------------------------------------------------------------------------


@dataclass
class Block:
    """A fenced block: its info string, its first line's number, and its lines."""

    kind: str
    start: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def blocks(page: Path) -> Iterator[Block]:
    current: Block | None = None
    indent = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"( *)```(.*)", line)
        if fence is None:
            if current is not None:
                current.lines.append(line[indent:])
        elif current is None:
            indent = len(fence[1])
            current = Block(fence[2].strip(), number + 1, [])
        else:
            yield current
            current = None
    assert current is None, f"{page} has a block that does not end"


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())


def script(page: Path) -> str:
    """The examples of a page as one program, every line at its own number."""
    lines = ["from checks import raises as _raises, shows as _shows"]
    for block in blocks(page):
        if block.kind == "python":
            lines += [""] * (block.start - 1 - len(lines)) + [_checked(line) for line in block.lines]
    return "\n".join(lines) + "\n"


def _checked(line: str) -> str:
    if shown := re.fullmatch(r"( *)(.+?) +# => (.+)", line):
        return f"{shown[1]}_shows({shown[2]}, {shown[3]!r})"
    if raised := re.fullmatch(r"( *)(.+?) +# raises (\w+)", line):
        return f"{raised[1]}with _raises({raised[3]!r}): {raised[2]}"
    return line


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"(?m)^#+ +(.+?)\s*$", prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(page: Path) -> str:
    """Whatever a page shows as code: its blocks, its headings, and its `spans`."""
    spans = re.findall(r"`([^`\n]+)`", prose(page)) + re.findall(r"(?m)^#.*", prose(page))
    return "\n".join([*(block.text for block in blocks(page)), *spans])


REFERENCE = sorted((DOCS / "reference").rglob("*.md"))
MENTIONED = "\n".join(code(page) for page in REFERENCE)
SIGNATURES = "\n".join(block.text for page in REFERENCE for block in blocks(page) if block.kind == "text")
