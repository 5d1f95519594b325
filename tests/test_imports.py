"""Which folder may import which, checked by reading the source.

Data goes straight down and straight back up: faces, core, engines. These tests keep it so, and keep
`import holdall` quick.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted(path.relative_to(SRC / "holdall").as_posix() for path in (SRC / "holdall").rglob("*.py"))

#: What `import holdall` may not load: drivers and frameworks, and whatever is slow.
HEAVY = (
    "Stemmer",
    "ag2",
    "apsw",
    "asyncio",
    "botocore",
    "deepagents",
    "hypothesis",
    "langgraph",
    "numpy",
    "psycopg",
    "pyarrow",
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
#: What the modules of each folder may import of ours. A name that ends in a slash is a whole folder, any other name is
#: one module, and "" is `holdall` itself. A folder may import itself.
BELOW_ENGINES = {
    "errors",
    "ops",
    "engine",
    "wire",
    "model/",
    "runtime/",
    "search/",
    "search/segments/",
    "search/vector_index/",
}
CORE = BELOW_ENGINES | {"core/", "live/", "files/", "operate/", "history/"}
FACE = {"", "errors", "ops", "core/face_api", "faces/base", "faces/importing", "faces/file_tools", "faces/message_log"}
SERVER = {"", "errors", "ops", "wire", "core/face_api"} | {
    f"server/{folder}" for folder in ("", "auth/", "rest/", "run/", "mcp/", "explorer/")
}
RULES = {
    "model/": {"errors", "ops"},
    "runtime/": {"errors", "ops"},
    "search/": {"errors", "ops", "model/", "runtime/"},
    "search/vector_index/": {"errors", "ops", "model/", "runtime/", "search/"},
    "search/segments/": {"errors", "ops", "model/", "runtime/", "search/"},
    "engines/memory/": BELOW_ENGINES,
    "engines/sql/": BELOW_ENGINES | {"engines/history/", "engines/checks/"},
    "engines/checks/": BELOW_ENGINES | {"engines/sql/", "engines/redis/"},
    "engines/history/": BELOW_ENGINES | {"engines/sql/", "engines/redis/"},
    "engines/net/": BELOW_ENGINES,
    "engines/learned/": BELOW_ENGINES | {"engines/sql/"},
    "engines/sqlite/": BELOW_ENGINES
    | {"engines/sql/", "engines/sqlite/vectors/", "engines/learned/", "engines/history/", "engines/checks/"},
    "engines/sqlite/vectors/": BELOW_ENGINES | {"engines/sql/"},
    "engines/postgres/": BELOW_ENGINES
    | {
        "engines/sql/",
        "engines/postgres/indexes/",
        "engines/net/",
        "engines/learned/",
        "engines/history/",
        "engines/checks/",
    },
    "engines/postgres/indexes/": BELOW_ENGINES | {"engines/sql/", "engines/postgres/"},
    "engines/redis/": BELOW_ENGINES
    | {"engines/redis/search/", "engines/net/", "engines/learned/", "engines/history/", "engines/checks/"},
    "engines/redis/search/": BELOW_ENGINES | {"engines/redis/"},
    "engines/disk/": BELOW_ENGINES | {"engines/sql/", "engines/sqlite/", "engines/history/"},
    "engines/remote/": BELOW_ENGINES | {"engines/net/"},
    "engines/s3/": BELOW_ENGINES | {"engines/sql/", "engines/sqlite/", "engines/sqlite/vectors/", "engines/net/"},
    "core/": CORE,
    "live/": CORE,
    "files/": CORE,
    "operate/": CORE,
    "history/": CORE,
    "faces/": FACE,
    "faces/langgraph/": FACE | {"faces/langgraph/checkpoints/"},
    "faces/langgraph/checkpoints/": FACE | {"faces/langgraph/"},
    "faces/deepagents/": FACE,
    "faces/spoon/": FACE,
    "faces/ag2/": FACE,
    "faces/claude/": FACE,
    "faces/openai_agents/": FACE,
    "faces/pydantic_ai/": FACE,
    "faces/key_value/": FACE,
    "faces/adk/": FACE,
    "faces/langchain/": FACE,
    "faces/fsspec/": FACE,
    "faces/llama_index/": FACE,
    "faces/agent_framework/": FACE,
    "faces/strands/": FACE,
    "faces/conversations/": FACE | {"faces/langgraph/"},
    "faces/cli/": FACE
    | {
        "faces/cli/shell/",
        "faces/langgraph/",
        "faces/conversations/",
        "server/",
        "server/auth/",
        "server/run/",
        "server/mcp/",
    },
    "faces/cli/shell/": FACE | {"faces/cli/"},
    "server/": SERVER,
    "server/auth/": SERVER,
    "server/rest/": SERVER | {"faces/langgraph/"},  # the threads of its checkpointer
    "server/run/": SERVER,
    "server/mcp/": SERVER,
    "server/explorer/": SERVER,
}
TOP = {
    "__init__": {"errors", "ops", "core/", "files/", "live/", "operate/", "history/"},
    "__main__": {"errors", "faces/cli/"},
    "errors": set(),
    "ops": {"runtime/arguments"},
    "engine": {"errors", "ops", "model/", "runtime/", "search/"},
    "wire": {"errors", "ops", "model/"},
}
#: The folders, or modules, that may import each package from outside.
OUTSIDE = {
    "Stemmer": ("search/",),
    "ag2": ("faces/ag2/",),
    "agent_framework": ("faces/agent_framework/",),
    "agents": ("faces/openai_agents/",),
    "anthropic": ("faces/claude/",),
    "apsw": ("engines/sqlite/", "engines/s3/"),
    "autogen": ("faces/ag2/",),
    "botocore": ("engines/s3/",),
    "deepagents": ("faces/deepagents/",),
    "h11": ("engines/remote/",),
    "fsspec": ("faces/fsspec/",),
    "google": ("faces/adk/",),
    "hiredis": ("engines/redis/",),
    "hypothesis": ("testing/",),
    "key_value": ("faces/key_value/",),
    "langchain_core": ("faces/conversations/", "faces/langchain/", "faces/langgraph/"),
    "langgraph": ("faces/langgraph/", "faces/conversations/", "faces/deepagents/", "faces/cli/"),
    "llama_index": ("faces/llama_index/",),
    "mcp": ("server/mcp/",),
    "mcp_types": ("server/mcp/",),
    "msgspec": (
        "ops.py",
        "wire.py",
        "model/",
        "operate/",
        "search/",
        "engines/",
        "server/",
        "faces/langgraph/checkpoints/",
    ),
    "numpy": ("search/",),
    "opentelemetry": ("server/",),
    "pyarrow": ("operate/",),
    "psycopg": ("engines/postgres/", "faces/langgraph/"),
    "pydantic": ("faces/agent_framework/", "faces/conversations/", "faces/langgraph/", "faces/pydantic_ai/"),
    "pydantic_ai": ("faces/pydantic_ai/",),
    "pytest": ("testing/",),
    "redis": ("engines/redis/",),
    "regex": ("files/",),
    "rich": ("faces/cli/",),
    "safetensors": ("search/",),
    "sortedcontainers": ("engines/memory/",),
    "spoon_ai": ("faces/spoon/",),
    "strands": ("faces/strands/",),
    "starlette": ("server/",),
    "tokenizers": ("search/",),
    "typer": ("faces/cli/",),
    "uvicorn": ("server/run/",),
    "wcmatch": ("model/",),
}


def folder_of(module: str) -> str:
    """The folder of a module, with a slash behind it; of the top folder, nothing."""
    return module.rpartition("/")[0] + "/" if "/" in module else ""


def names_of(imported: str) -> set[str]:
    """The names by which a rule may allow an imported module: its own, and its folder's."""
    path = "/".join(imported.split(".")[1:])
    if path and (SRC / "holdall" / path / "__init__.py").exists():
        return {path + "/"}
    return {path, folder_of(path)} if "/" in path else {path}


MOST_MODULES = 9


def test_a_module_imports_what_the_rule_of_its_folder_allows() -> None:
    strays = []
    for module in (name for name in MODULES if not name.startswith("testing/")):
        folder = folder_of(module)
        allowed = RULES[folder] | {folder} if folder in RULES else TOP.get(Path(module).stem, set())
        strays += [(module, name) for name in ours(module) if not names_of(name) & allowed]
    assert strays == []


def test_a_rule_may_name_one_module_of_a_folder() -> None:
    assert names_of("holdall.core.face_api") == {"core/face_api", "core/"}
    assert names_of("holdall.core") == {"core/"}
    assert names_of("holdall.errors") == {"errors"}
    assert names_of("holdall") == {""}


def test_the_face_api_has_every_name_that_faces_take_from_it_and_no_other() -> None:
    taken = set()
    for module in (name for name in MODULES if name.startswith(("faces/", "server/"))):
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("core.face_api"):
                taken |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "face_api":
                taken.add(node.attr)
    assert taken == set(exported("core/face_api.py"))


def test_every_folder_has_a_rule() -> None:
    folders = {folder_of(name) for name in MODULES if not name.startswith("testing/")}
    assert folders - {"", "engines/"} == set(RULES)


def test_only_urls_names_engines() -> None:
    naming = [module for module in MODULES if any("holdall.engines." in text for text in strings(module))]
    assert naming == ["core/urls.py"]


def test_a_folder_has_at_most_nine_modules() -> None:
    modules = Counter(folder_of(name) for name in MODULES if not name.endswith("__init__.py"))
    del modules["testing/contract/"]
    assert {folder: number for folder, number in modules.items() if number > MOST_MODULES} == {}


def test_a_file_name_does_not_repeat_its_folder() -> None:
    parts = [Path(module).with_suffix("").parts for module in MODULES]
    assert [path for path in parts if any(path[-1].startswith(f"{folder}_") for folder in path[:-1])] == []


#: The command's way in, which nothing imports, is not of the core.
CORE_AND_ENGINES = [
    name for name in MODULES if not name.startswith(("faces/", "server/", "testing/")) and name != "__main__.py"
]


def test_the_core_and_the_engines_know_no_face_and_no_test_suite() -> None:
    above = ("holdall.faces", "holdall.testing")
    assert [(module, name) for module in CORE_AND_ENGINES for name in ours(module) if name.startswith(above)] == []


def test_faces_touch_nothing_private_of_the_core() -> None:
    """They have `holdall.core.face_api`. What they call `self._x` is their own."""
    private, found = private_names_of_the_core(), []
    for module in (name for name in MODULES if name.startswith(("faces/", "server/"))):
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ImportFrom) and (node.level != 1 or node.module == "holdall"):
                found += [(module, alias.name) for alias in node.names if alias.name.startswith("_")]
            elif isinstance(node, ast.Attribute) and node.attr in private and not is_own(node):
                found.append((module, f"{ast.unparse(node.value)}.{node.attr}"))
    assert found == []


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


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


def test_each_outside_package_is_imported_in_its_folder() -> None:
    strays = [
        (module, package)
        for module in MODULES
        for package in outside(module)
        if not module.startswith(OUTSIDE.get(package, ()))
    ]
    assert strays == []


def test_importing_holdall_loads_no_driver() -> None:
    script = "import json, sys; import holdall; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", script]))
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith(("holdall.engines", "holdall.faces", "holdall.testing"))] == []


@pytest.mark.timed
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


def exported(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


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
