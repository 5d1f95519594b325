"""Who may import whom, held by reading the source.

Data goes straight down and straight back up: faces, core, engines. These tests are what keeps it so, and what keeps
`import holdall` quick.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted(path.relative_to(SRC / "holdall").as_posix() for path in (SRC / "holdall").rglob("*.py"))

#: The one or two places where each package from outside is imported.
PLACES = {
    "Stemmer": ("search.py",),
    "ag2": ("faces/ag2_protocol.py",),
    "apsw": ("engines/sqlite.py", "engines/sqlite_connection.py"),
    "deepagents": ("faces/deepagents.py",),
    "autogen": ("faces/ag2_protocol.py",),
    "hypothesis": ("testing/",),
    "langchain_core": ("faces/conversations.py", "faces/messages.py"),
    "langgraph": (
        *("faces/langgraph.py", "faces/langgraph_import.py", "faces/conversations.py", "faces/deepagents.py"),
    ),
    "msgspec": (
        "ops.py",
        "values.py",
        "engines/sqlite_sql.py",
        "engines/postgres_dialect.py",
        "engines/sql_texts.py",
        "engines/postings.py",
    ),
    "numpy": ("vectors.py", "local.py"),
    "psycopg": (
        *("engines/postgres.py", "engines/postgres_listener.py", "engines/postgres_wire.py"),
        "faces/langgraph_import.py",
    ),
    "pydantic": ("faces/messages.py",),
    "pytest": ("testing/",),
    "hiredis": ("engines/redis_wire.py",),
    "redis": ("engines/redis_wire.py",),
    "regex": ("patterns.py",),
    "rich": ("faces/terminal.py",),
    "safetensors": ("local.py",),
    "sortedcontainers": ("engines/memory.py",),
    "spoon_ai": ("faces/spoon.py",),
    "tokenizers": ("local.py",),
    "typer": ("faces/cli",),
    "wcmatch": ("patterns.py",),
}
#: What `import holdall` may not load: drivers and frameworks, and whatever is slow.
HEAVY = (
    "Stemmer",
    "ag2",
    "apsw",
    "asyncio",
    "deepagents",
    "hypothesis",
    "langgraph",
    "numpy",
    "psycopg",
    "pydantic",
    "pytest",
    "redis",
    "regex",
    "rich",
    "safetensors",
    "sqlite3",
    "tokenizers",
    "typer",
    "wcmatch",
)
#: What engines stand on, and what SQL engines share.
BELOW_ENGINES = {
    f"holdall.{name}"
    for name in (
        *("engine", "errors", "filters", "keys", "ops", "programs"),
        *("ranking", "search", "shapes", "texts", "values", "vectors"),
    )
}
SHARED_BY_ENGINES = {
    f"holdall.engines.{name}"
    for name in (
        *("commit", "dialect", "listening", "history", "narrowing", "pool", "postings", "statements"),
        *("sql", "sql_files", "sql_search", "sql_texts"),
    )
}
OWN = {
    "engines/disk.py": {
        f"holdall.engines.{name}"
        for name in (
            *("disk_catalogue", "disk_edits", "disk_names", "disk_sql", "disk_tree", "disk_watch"),
            *("sqlite", "sqlite_connection"),
        )
    },
    "engines/disk_catalogue.py": {f"holdall.engines.disk_{name}" for name in ("names", "sql", "tree")},
    "engines/disk_edits.py": {
        f"holdall.engines.{name}" for name in ("disk_names", "disk_sql", "disk_tree", "sqlite_sql")
    },
    "engines/disk_sql.py": {"holdall.engines.disk_tree", "holdall.engines.sqlite_sql"},
    "engines/disk_tree.py": {"holdall.engines.disk_names"},
    "engines/disk_watch.py": {"holdall.engines.disk_names", "holdall.engines.notices"},
    "engines/memory.py": {"holdall.engines.memory_search"},
    "engines/postgres.py": {f"holdall.engines.postgres_{name}" for name in ("dialect", "listener", "sql", "wire")},
    "engines/postgres_dialect.py": {"holdall.engines.postgres_contents", "holdall.engines.postgres_views"},
    "engines/postgres_listener.py": {"holdall.engines.postgres_dialect"},
    "engines/postgres_search.py": {"holdall.engines.postgres_dialect"},
    "engines/postgres_sql.py": {"holdall.engines.postgres_dialect", "holdall.engines.postgres_search"},
    "engines/postgres_wire.py": {"holdall.engines.postgres_dialect"},
    "engines/redis.py": {
        f"holdall.engines.redis_{name}" for name in ("fields", "listener", "ops", "shards", "walks", "wire")
    },
    "engines/redis_listener.py": {"holdall.engines.redis_wire"},
    "engines/redis_search.py": {"holdall.engines.redis_ops", "holdall.engines.redis_texts"},
    "engines/redis_shards.py": {"holdall.engines.redis_wire"},
    "engines/redis_texts.py": {"holdall.engines.redis_ops"},
    "engines/redis_walks.py": {
        f"holdall.engines.redis_{name}" for name in ("fields", "ops", "search", "shards", "texts")
    },
    "engines/sqlite.py": {
        f"holdall.engines.{name}"
        for name in ("notices", "readers", "sqlite_connection", "sqlite_sql", "turns", "workers")
    },
    "engines/sqlite_connection.py": {"holdall.engines.sqlite_sql", "holdall.engines.turns"},
}
MOST_LINES = 600


def test_ops_and_errors_import_nothing_of_ours() -> None:
    assert ours("ops.py") == set()
    assert ours("errors.py") == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("engines/")])
def test_engines_import_the_core_below_the_store_and_no_other_engine(module: str) -> None:
    assert ours(module) - BELOW_ENGINES - SHARED_BY_ENGINES - OWN.get(module, set()) == set()


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("engines/") and name != "urls.py"])
def test_only_urls_names_engines(module: str) -> None:
    imported = {name for name in ours(module) if name.startswith("holdall.engines")}
    spelled = [text for text in strings(module) if "engines." in text]
    assert (imported, spelled) == (set(), [])


#: The command's way in, which nothing imports, is not of the core.
CORE_AND_ENGINES = [name for name in MODULES if not name.startswith(("faces/", "testing/")) and name != "__main__.py"]


@pytest.mark.parametrize("module", CORE_AND_ENGINES)
def test_the_core_and_the_engines_know_no_face_and_no_test_suite(module: str) -> None:
    assert {name for name in ours(module) if name.startswith(("holdall.faces", "holdall.testing"))} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("faces/")])
def test_faces_touch_nothing_private_of_the_core(module: str) -> None:
    """They have `holdall.seam`. What they call `self._x` is their own."""
    imported = {
        alias.name
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ImportFrom) and (node.level != 1 or node.module == "holdall")
        for alias in node.names
    }
    touched = {
        f"{ast.unparse(node.value)}.{node.attr}"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr in private_names_of_the_core()
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    assert touched == set()
    assert {name for name in imported if name.startswith("_")} == set()


@cache
def private_names_of_the_core() -> frozenset[str]:
    """Of its classes: their methods, and what they keep in `self`."""
    found = set()
    for module in CORE_AND_ENGINES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
    return frozenset(name for name in found if name.startswith("_") and not name.startswith("__"))


def test_each_outside_package_is_imported_in_few_places() -> None:
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for package in outside(module):
            found.setdefault(package, []).append(module)
    assert sorted(found) == sorted(PLACES.keys() & found.keys()), "an outside package that PLACES does not know"
    for package, modules in found.items():
        strays = [module for module in modules if not module.startswith(PLACES[package])]
        assert strays == [], f"{package} belongs in {PLACES[package]}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_can_be_read_in_one_sitting(module: str) -> None:
    assert len((SRC / "holdall" / module).read_text().splitlines()) <= MOST_LINES


def test_importing_holdall_loads_no_driver() -> None:
    script = "import json, sys; import holdall; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", script]))
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith(("holdall.engines", "holdall.faces", "holdall.testing"))] == []


def test_importing_holdall_takes_less_than_a_tenth_of_a_second() -> None:
    """From bytecode: the first run writes it, if there is none."""
    script = "import time; began = time.process_time(); import holdall; print(time.process_time() - began)"
    assert min(float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(6)) < 0.1


# Reading the source --------------------------------------------------------------------------------------------------


def ours(module: str) -> set[str]:
    """The modules of ours that a module imports, in full, wherever in it the import stands."""
    return {name for name in imports(module) if name.split(".")[0] == "holdall"}


def outside(module: str) -> set[str]:
    """The packages from outside that a module imports."""
    packages = {name.split(".")[0] for name in imports(module)}
    return packages - sys.stdlib_module_names - {"holdall"}


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    package = ["holdall", *Path(module).parent.parts]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:  # `from . import keys` names a module, `from .keys import encode` does not
                submodule = f"{source}.{alias.name}"
                yield submodule if _is_module(submodule) else source


def _is_module(name: str) -> bool:
    path = SRC.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def strings(module: str) -> list[str]:
    """The string literals of a module, without its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree(module))
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Constant))
    return [node.value for node in constants if isinstance(node.value, str) and id(node) not in docstrings]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((SRC / "holdall" / module).read_text())
