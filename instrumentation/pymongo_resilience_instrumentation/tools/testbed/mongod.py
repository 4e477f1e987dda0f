"""Processes of mongod and mongos, which end with this process: one, a set of one, a cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pymongo_resilience.config import SERVER_VARIABLE

from . import wire
from .fault import refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOST: Final = "127.0.0.1"
SET_NAME: Final = "rs0"
_PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections."""
_WATCHED: Final = Path(__file__).with_name("watched_process.py")
PREFIX: Final = "pymongo-resilience-"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_ROOM: Final = 2_000_000_000
_OPTIONS: Final = (
    *("--bind_ip", HOST, "--nounixsocket", "--quiet"),
    *("--setParameter", "enableTestCommands=1"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)
_STORAGE: Final = ("--oplogSize", "64", "--wiredTigerCacheSizeGB", "0.25")
_RETRY_INTERVAL: Final = 0.02
_ASKED_WITHIN: Final = 10.0


class TestbedError(RuntimeError):
    """The test bed cannot run here; the message says what to do."""

    __test__ = False  # pytest must not take the name for a test class


def program(server: str | None) -> Path | None:
    """The mongod that ``server`` or the variable names; None for SecantusDB.

    Raises ``ValueError`` for what is neither, TestbedError where there is no such program.
    """
    name = "server" if server is not None else SERVER_VARIABLE
    value = os.environ.get(SERVER_VARIABLE) if server is None else server
    if not value or value == "secantus":
        return None
    kind, _, path = value.partition("=")
    if kind != "mongod" or value == "mongod=":
        raise refused(name, value, "'secantus', 'mongod', or 'mongod=/path/to/mongod'")
    found = shutil.which(path or "mongod")
    if found is None:
        raise TestbedError(
            f"{name} is {value!r}, but {path!r} is no program that can be run"
            if path
            else f"{name} is 'mongod', but there is no mongod in the PATH: "
            "install MongoDB, or say mongod=/path/to/mongod"
        )
    return Path(found).absolute()


def data_folder() -> Path:
    """A new one: in TMPDIR, or in memory where there is room: a mongod flushes its files often."""
    may = "TMPDIR" not in os.environ and _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    has_room = may and shutil.disk_usage(_MEMORY).free > _ROOM
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=_MEMORY if has_room else None))


def ask(
    address: tuple[str, int], body: dict[str, Any], timeout: float = _ASKED_WITHIN
) -> dict[str, Any]:
    """The reply to one command, past pymongo, which may be instrumented; raises ``OSError``."""
    with socket.create_connection(address, timeout=timeout) as connection:
        connection.sendall(wire.command(body).raw)
        with connection.makefile("rb") as answered:
            head = answered.read(4)
            rest = answered.read(int.from_bytes(head, "little") - len(head)) if head else b""
    try:
        return wire.parse(head + rest).body
    except wire.WireError as error:
        raise OSError(f"no reply: {error}") from error


def wait_until_writable(address: tuple[str, int], deadline: float) -> None:
    """Raises TestbedError where it takes longer."""
    while True:
        with contextlib.suppress(OSError):
            if ask(address, {"isMaster": 1, "$db": "admin"}).get("ismaster"):
                return
        if time.monotonic() > deadline:
            raise TestbedError("the server did not become writable in time")
        time.sleep(_RETRY_INTERVAL)


class Process:
    """One mongod or mongos; ends with this process, and takes the folder around its own with it.

    :param folder: for the log and the data.
    :param port: a free one by default.
    """

    def __init__(
        self, executable: Path, folder: Path, *options: str, port: int | None = None
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._command = [str(executable), *options, *_OPTIONS]
        if executable.stem != "mongos":
            (folder / "data").mkdir()
            self._command += ["--dbpath", str(folder / "data"), *_STORAGE]
        self._port = port
        self._watched: subprocess.Popen[str] | None = None
        self._pid = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self._port or 0

    @property
    def runs(self) -> bool:
        """It was started, and has not ended."""
        return self._watched is not None and self._watched.poll() is None

    def start(self, deadline: float) -> None:
        """Returns when it listens; raises TestbedError with the last lines of its log."""
        with _lock() if self._port is None else contextlib.nullcontext():
            self._port = self._port or _free_port()
            with (self._folder / "log.txt").open("a") as log:
                self._watched = subprocess.Popen(  # noqa: S603 - the program that was asked for
                    [
                        *(sys.executable, "-P", str(_WATCHED), str(self._folder.parent)),
                        *(*self._command, "--port", str(self._port)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    # Ctrl-C goes to the parent alone, which then closes the pipe.
                    start_new_session=True,
                )
            line = "" if self._watched.stdout is None else self._watched.stdout.readline().strip()
            self._pid = int(line or 0)
            self._wait_until_it_listens(deadline)

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT, SIGKILL or SIGTERM; harmless where it has ended."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self, timeout: float) -> None:
        """Until it has ended; kills it after so many seconds."""
        if self._watched is not None:
            try:
                self._watched.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self._watched.wait()
            self._close_pipes(self._watched)

    def stop(self) -> None:
        """Kill it, and remove its folder; harmless when it does not run."""
        watched, self._watched = self._watched, None
        if watched is not None:
            self._close_pipes(watched)
            watched.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipes(self, watched: subprocess.Popen[str]) -> None:
        for pipe in (watched.stdin, watched.stdout):
            if pipe is not None:
                pipe.close()

    def _wait_until_it_listens(self, deadline: float) -> None:
        while self.runs and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(self.address, timeout=1.0).close()
                return
            time.sleep(_RETRY_INTERVAL)
        why = "did not listen in time" if self.runs else "has ended"
        log = (self._folder / "log.txt").read_text(errors="replace")[-2000:].strip()
        raise TestbedError(f"{self._command[0]} {why}; its last words:\n{log}")


def started(
    executable: Path,
    folder: Path,
    kind: str,
    credentials: tuple[str, str] | None,
    deadline: float,
) -> list[Process]:
    """The processes of one embedded server: the last one is to be talked to.

    :param kind: ``"replica-set"``, ``"standalone"``, or ``"sharded"``, which needs a mongos beside
        the mongod.
    """
    running: list[Process] = []

    with contextlib.ExitStack() as undo:

        def start(name: str, executable: Path, *options: str) -> tuple[str, int]:
            process = Process(executable, folder / name, *options)
            undo.callback(process.stop)
            running.append(process)
            process.start(deadline)
            return process.address

        if kind == "standalone":
            address = start("mongod", executable, *(["--auth"] if credentials else []))
        elif kind == "sharded":
            names = {"config": "--configsvr", "shard0": "--shardsvr"}
            sets = {}
            for name, role in names.items():
                sets[name] = start(name, executable, role, "--replSet", name)
                initiate(name, [sets[name]])
            for each in sets.values():
                wait_until_writable(each, deadline)
            seeds = {name: "{}/{}:{}".format(name, *each) for name, each in sets.items()}
            address = start("mongos", mongos_beside(executable), "--configdb", seeds["config"])
            _succeed(address, {"addShard": seeds["shard0"], "name": "shard0"})
        else:
            options = ["--replSet", SET_NAME]
            if credentials is not None:
                options += ["--keyFile", str(_key_file(folder))]
            address = start("mongod", executable, *options)
            initiate(SET_NAME, [address])
        wait_until_writable(address, deadline)
        if credentials is not None:
            user, password = credentials
            # The first user may be made without a login, from this machine alone.
            _succeed(address, {"createUser": user, "pwd": password, "roles": ["root"]})
        undo.pop_all()
    return running


def mongos_beside(executable: Path) -> Path:
    """The mongos of a mongod, whether there is one or not."""
    return executable.with_name(executable.name.replace("mongod", "mongos"))


def initiate(name: str, members: Sequence[tuple[str, int]], **settings: Any) -> None:
    """Make servers a replica set."""
    hosts = [{"_id": index, "host": "{}:{}".format(*each)} for index, each in enumerate(members)]
    config: dict[str, Any] = {"_id": name, "members": hosts, "settings": settings}
    if name == "config":
        config["configsvr"] = True
    _succeed(members[0], {"replSetInitiate": config})


def _succeed(address: tuple[str, int], body: dict[str, Any]) -> None:
    reply = ask(address, {**body, "$db": "admin"})
    if not reply.get("ok"):
        raise TestbedError(f"{next(iter(body))} failed: {reply.get('errmsg')}")


def _key_file(folder: Path) -> Path:
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One process at a time looks for a port: a mongod cannot say which one the system gave it."""
    import fcntl  # noqa: PLC0415 - POSIX alone, like what is done with mongod

    path = Path(tempfile.gettempdir(), f"pymongo_resilience_ports_{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind((HOST, port))
            return port
