"""Processes of mongod and mongos, which end with this process: one, a set of one, a cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pymongo_resilience.config import SERVER_VARIABLE

from . import wire
from .fault import refused
from .running import Child, TestbedError

HOST: Final = "127.0.0.1"
SET_NAME: Final = "rs0"
_PORTS: Final = range(20_000, 32_000)
"""Below those that the system gives to outgoing connections."""
_PREFIX: Final = "pymongo-resilience-"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_ROOM: Final = 2_000_000_000
_OPTIONS: Final = (
    *("--bind_ip", HOST, "--nounixsocket", "--quiet"),
    *("--setParameter", "enableTestCommands=1"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)
_STORAGE: Final = ("--oplogSize", "64", "--wiredTigerCacheSizeGB", "0.25")
_KILLED_WITHIN: Final = 10.0
_RETRY_INTERVAL: Final = 0.02
_ASKED_WITHIN: Final = 10.0


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


def data_folder(*, in_memory: bool = True) -> Path:
    """A new one: in TMPDIR, or in memory where there is room: a mongod flushes its files often."""
    may = in_memory and "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK)
    has_room = may and shutil.disk_usage(_MEMORY).free > _ROOM
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY if has_room else None))


def ask(
    address: tuple[str, int], body: dict[str, Any], timeout: float = _ASKED_WITHIN
) -> dict[str, Any]:
    """The reply to one command, past pymongo, which may be instrumented; raises ``OSError``."""
    with socket.create_connection(address, timeout=timeout) as connection:
        try:
            return wire.exchange(connection, body)
        except wire.WireError as error:
            raise OSError(f"no reply: {error}") from error


def wait_until_writable(address: tuple[str, int], deadline: float) -> None:
    """Raises TestbedError where it takes longer."""
    while True:
        with contextlib.suppress(OSError):
            if ask(address, {"isMaster": 1, "$db": "admin"}, timeout=1.0).get("ismaster"):
                return
        if time.monotonic() > deadline:
            raise TestbedError("the server did not become writable in time")
        time.sleep(_RETRY_INTERVAL)


class Process:
    """One mongod or mongos; ends with this process, and takes the folder around its own with it.

    :param folder: for the log and the data.
    """

    def __init__(self, executable: Path, folder: Path, *options: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._command = [str(executable), *options, *_OPTIONS]
        if executable.stem != "mongos":
            (folder / "data").mkdir()
            self._command += ["--dbpath", str(folder / "data"), *_STORAGE]
        self._port = 0
        self._child: Child | None = None
        self._pid = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self._port

    @property
    def runs(self) -> bool:
        """It was started, and has not ended."""
        return self._child is not None and self._child.runs

    def start(self, deadline: float) -> None:
        """Returns when it listens; raises TestbedError with the last lines of its log."""
        with contextlib.nullcontext() if self._port else _lock():
            self._port = self._port or _free_port()
            command = [*self._command, "--port", str(self._port)]
            folder, log = str(self._folder.parent), self._folder / "log.txt"
            self._child = child = Child("watched_process.py", folder, *command, log=log)
            self._pid = child.start("", deadline)
            while child.runs and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    socket.create_connection(self.address, timeout=1.0).close()
                    return
                time.sleep(_RETRY_INTERVAL)
        why = "did not listen in time" if child.runs else "has ended"
        raise child.failure(f"{self._command[0]} {why}")

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT, SIGKILL or SIGTERM; harmless where it has ended."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self, timeout: float) -> None:
        """Until it has ended; kills it after so many seconds."""
        if self._child is not None:
            if not self._child.wait(timeout):
                self.signal(signal.SIGKILL)
                # Closing its standard input before removes the folder, with all members' data.
                self._child.wait(_KILLED_WITHIN)
            self._child.stop()

    def stop(self) -> None:
        """Kill it, and remove its folder; harmless when it does not run."""
        if self._child is not None:
            self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def start(
    running: list[Child | Process],
    executable: Path,
    folder: Path,
    *,
    kind: str,
    members: int,
    credentials: tuple[str, str] | None,
    deadline: float,
) -> tuple[str, int]:
    """Start the processes of one embedded server; returns the address that clients connect to.

    :param running: each process is added to it before it starts; the caller stops them.
    :param kind: ``"replica-set"``, ``"standalone"``, or ``"sharded"``, which needs a mongos beside
        the mongod; ``"members"``: so many that are no replica set yet.
    """

    def begin(name: str, executable: Path, *options: str) -> tuple[str, int]:
        process = Process(executable, folder / name, *options)
        running.append(process)
        process.start(deadline)
        return process.address

    if kind == "members":
        names = [f"member{index}" for index in range(members)]
        addresses = [begin(name, executable, "--replSet", SET_NAME) for name in names]
        return addresses[0]
    if kind == "standalone":
        address = begin("mongod", executable, *(["--auth"] if credentials else []))
    elif kind == "sharded":
        sets = {}
        for name, role in (("config", "--configsvr"), ("shard0", "--shardsvr")):
            sets[name] = begin(name, executable, role, "--replSet", name)
            initiate(name, [sets[name]])
        for each in sets.values():
            wait_until_writable(each, deadline)
        seeds = {name: "{}/{}:{}".format(name, *each) for name, each in sets.items()}
        address = begin("mongos", mongos_beside(executable), "--configdb", seeds["config"])
        _succeed(address, {"addShard": seeds["shard0"], "name": "shard0"})
    else:
        options = ["--replSet", SET_NAME]
        if credentials is not None:
            options += ["--keyFile", str(_key_file(folder))]
        address = begin("mongod", executable, *options)
        initiate(SET_NAME, [address])
    wait_until_writable(address, deadline)
    if credentials is not None:
        user, password = credentials
        # The first user may be made without a login, from this machine alone.
        _succeed(address, {"createUser": user, "pwd": password, "roles": ["root"]})
    return address


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
