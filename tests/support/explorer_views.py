"""A store with a bit of everything, and the views of the explorer that show it: for axe-core and for screenshots."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import holdall
from holdall.faces.langgraph import HoldallSaver
from holdall.ops import Put

PLAN = """# Trip to Lisbon

Ada asked for a **quiet** week. The budget is *1,200 €*.

- [x] Book the flights
- [x] Find a hotel near the river
- [ ] Reserve a table, without peanuts

| day | plan |
|---|---|
| Monday | Alfama, on foot |
| Tuesday | Sintra |

> Ask before anything is paid.
"""
SCRIPT = '''"""Finds a table for two."""

import datetime


def find_table(city: str, day: datetime.date, allergies: list[str]) -> str | None:
    """Ask each restaurant in turn."""
    for name in ("Ramiro", "Taberna", "Cervejaria"):
        if "peanuts" not in allergies or name != "Taberna":
            return f"{name}, {day:%A} at 20:00"
    return None  # everything is full
'''


def fill_store(store: holdall.Store) -> None:
    """Write what the views show. An agent signs its changes, and has made a mistake."""
    for user, city in {"ada": "Lisbon", "bob": "Oslo", "chen": "Taipei"}.items():
        facts = {
            "diet": {"text": f"{user.title()} is allergic to peanuts", "importance": 9, "source": "chat"},
            "home": {"text": f"lives in {city}", "importance": 5, "source": "profile"},
            "seat": {"text": "prefers a window seat", "importance": 3, "source": "chat"},
            "language": {"text": "speaks English and French", "importance": 4, "source": "chat"},
        }
        store.execute([Put(("users", user, "facts"), key, value) for key, value in facts.items()])
        for number in range(12):
            value = {"text": f"Session {number + 1}: asked about trains and hotels in {city}", "importance": number % 7}
            store.put(("users", user, "episodes"), f"2026-11-{number + 1:02}", value, ttl=(number + 1) * 86_400)
    agent = store.acting("travel-agent", reason="planning the trip")
    preferences = {
        "theme": "dark",
        "alerts": {"email": True, "push": False},
        "budget": 1200,
        "tags": ["quiet", "river"],
    }
    agent.put(("users", "ada", "settings"), "preferences", preferences | {"budget": 900})
    agent.put(("users", "ada", "settings"), "preferences", preferences)
    files = agent.files(("users", "ada", "files"))
    files.write("/trip/plan.md", PLAN.replace("[x] Find", "[ ] Find"))
    files.write("/trip/plan.md", PLAN)
    files.write("/trip/find_table.py", SCRIPT)
    files.write("/trip/map.png", make_png(160, 100))
    files.write("/trip/notes.bin", bytes(range(256)) * 4)
    files.write("/todo.md", "- call the dentist\n- buy almonds\n")
    add_threads(store)
    for number in range(40):
        paper = {"title": f"On memory, part {number}", "year": 2020 + number % 6}
        store.put(("teams", "research", "papers"), f"paper-{number:03}", paper)


def add_threads(store: holdall.Store, turns: int = 1) -> None:
    """Let a graph talk in two threads, with a tool."""

    def answer(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage(f"{last.content} is free. Shall I book it?")]}
        call = {"name": "find_table", "args": {"city": "Lisbon", "without": ["peanuts"]}, "id": "call-1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def use_tool(_state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolMessage("A table at Ramiro, Tuesday at 20:00,", tool_call_id="call-1")]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", answer)
    builder.add_node("tool", use_tool)
    builder.add_node("reply", answer)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tool")
    builder.add_edge("tool", "reply")
    graph = builder.compile(checkpointer=HoldallSaver(store))
    for thread, text in {"trip-to-lisbon": "Find a table for two in Lisbon, please.", "train": "And dinner?"}.items():
        config: Any = {"configurable": {"thread_id": thread}, "metadata": {"user_id": "ada"}}
        for _ in range(turns):
            graph.invoke({"messages": [HumanMessage(text)]}, config)


def make_png(width: int, height: int) -> bytes:
    """A picture with a gradient."""
    rows = b"".join(
        b"\0" + bytes(part for x in range(width) for part in (60 + x, 90 + y, 220 - x // 2)) for y in range(height)
    )

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@dataclass(frozen=True)
class View:
    """A view: its address, what must be on it, and what is done there."""

    address: str
    ready: str
    act: Callable[[Any, holdall.Store], None] | None = None

    def open(self, page: Any, url: str, store: holdall.Store) -> None:
        page.goto("about:blank")
        page.goto(f"{url}{self.address}")
        page.locator(self.ready).first.wait_for()
        if self.act is not None:
            self.act(page, store)
        page.wait_for_timeout(400)


def _type_conflict(page: Any, store: holdall.Store) -> None:
    page.locator(".edit").click()
    page.locator(".editor").fill('{\n  "text": "lives in Porto",\n  "importance": 5,\n  "source": "profile"\n}')
    value = {"text": "lives in Coimbra", "importance": 6, "source": "chat"}
    store.acting("travel-agent").put(("users", "ada", "facts"), "home", value)
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".conflict .diff").wait_for()


def _change_something(page: Any, store: holdall.Store) -> None:
    page.locator('[data-status="live"]').wait_for()
    agent = store.acting("travel-agent", reason="planning the trip")
    agent.put(("users", "ada", "facts"), "seat", {"text": "prefers an aisle seat", "importance": 4, "source": "chat"})
    agent.put(("users", "bob", "facts"), "pet", {"text": "has a cat called Mio", "importance": 2, "source": "chat"})
    store.acting("billing").put(("users", "ada", "settings"), "plan", {"name": "pro", "until": "2027-01-31"})
    store.acting("clean-up").delete(("users", "chen", "facts"), "seat")
    page.locator(".change").nth(3).wait_for()
    page.locator(".change-details .added").first.wait_for()


def _find_lines(page: Any, _store: holdall.Store) -> None:
    page.get_by_label("Find lines in these files").fill("peanuts")
    page.locator(".grep-lines li").nth(3).wait_for()


def _open_difference(page: Any, _store: holdall.Store) -> None:
    page.locator(".results .result", has_text="preferences").click()
    page.locator(".diff").wait_for()


def _press(key: str, ready: str) -> Callable[[Any, holdall.Store], None]:
    def press(page: Any, _store: holdall.Store) -> None:
        page.keyboard.press(key)
        page.locator(ready).wait_for()

    return press


_TRIP = "#/browse?ns=users/ada/files&folder=/trip/&entry=users/ada/files/%252Ftrip%252F"
#: Every view, by its name. Those that change the store come last.
VIEWS = {
    "namespaces": View("#/browse", ".tree-count"),
    "entries": View("#/browse?ns=users/ada&pane=main", ".key-name"),
    "entry": View("#/browse?ns=users/ada/settings&entry=users/ada/settings/preferences", ".json"),
    "entry-history": View("#/browse?ns=users/ada/settings&entry=users/ada/settings/preferences&tab=history", ".diff"),
    "folder": View("#/browse?ns=users/ada/files&folder=/trip/", ".file-row"),
    "folder-history": View("#/browse?ns=users/ada/files&folder=/&list=history", ".folder-timeline"),
    "markdown": View(_TRIP + "plan.md", ".markdown"),
    "source": View(_TRIP + "find_table.py", ".code"),
    "image": View(_TRIP + "map.png", ".stored-image"),
    "bytes": View(_TRIP + "notes.bin", ".hex"),
    "grep": View("#/browse?ns=users/ada/files&folder=/", ".file-row", _find_lines),
    "search": View("#/search?q=allergic+to+peanuts", ".result mark"),
    "filtered": View('#/browse?filter={"importance":9}&order=newest&pane=main', ".chip"),
    "history": View("#/history?ns=users/ada", ".results .kind", _open_difference),
    "threads": View("#/threads", ".thread-list .result"),
    "thread": View("#/threads?thread=trip-to-lisbon", ".message"),
    "operation": View("#/operation", ".chart .series"),
    "keys": View("#/browse?pane=main", ".key-name", _press("?", "dialog")),
    "new-entry": View("#/browse?ns=users/ada&pane=main", ".key-name", _press("n", "dialog")),
    "live": View("#/live", ".changes", _change_something),
    "conflict": View("#/browse?ns=users/ada/facts&entry=users/ada/facts/home", ".json", _type_conflict),
}
