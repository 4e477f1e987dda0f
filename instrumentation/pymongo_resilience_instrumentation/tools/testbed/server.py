"""A real server in its own processes, for tests and demonstrations."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from pymongo_resilience.config import PYTHON_VARIABLE, SERVER_VARIABLE

from .fault import positive, refused
from .processes import HOST, THIS_PYTHON, Process, ask, wait_until_writable
from .running import Running, TestbedError

Kind = Literal["replica-set", "standalone", "sharded", "members"]

SET_NAME: Final = "rs0"
NEWEST_WITH_WHEEL: Final = (3, 13)
"""The newest Python for which there is a wheel of SecantusDB. Building it takes minutes."""
_PREFIX: Final = "pymongo-resilience-"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_ROOM: Final = 2_000_000_000
_OPTIONS: Final = (
    *("--bind_ip", HOST, "--nounixsocket", "--quiet"),
    *("--setParameter", "enableTestCommands=1"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)
_STORAGE: Final = ("--oplogSize", "64")


class EmbeddedServer(Running):
    """SecantusDB, or an installed mongod, on a free port of 127.0.0.1.

    A context manager:

        with EmbeddedServer() as server:
            client = MongoClient(server.uri)

    The data is in a temporary directory, which is removed at the end. The child process ends with
    the ``with`` block, and also if this process ends without leaving the block. Not thread-safe:
    share the running server, but start and stop it from one thread.

    Args:
        server: ``"mongod"``, which is searched for in the PATH, or ``"mongod=/path/to/mongod"``,
            for a replica set of one member; or ``"secantus"`` for SecantusDB. By default the value
            of the variable PYMONGO_RESILIENCE_TESTBED_SERVER, otherwise SecantusDB. If SecantusDB
            has no wheel for this Python, name another one, in which it is installed, in the
            variable PYMONGO_RESILIENCE_TESTBED_PYTHON.
        kind: The kind of a mongod deployment. ``"sharded"`` is two of them behind the mongos next
            to the mongod, or a replica set if there is none. ``"members"`` is ``members`` of them
            that do not form a replica set yet. SecantusDB has one kind.
        cache_gb: Size of the cache of each mongod, in gigabytes. A transaction that changes more
            than fits into it fails.
        startup_timeout: Seconds after which a server that does not answer is an error.
        user: With ``password``, turns access control on. This user may do everything, others
            nothing. Without the two there is no access control.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        kind: Kind = "replica-set",
        members: int = 1,
        cache_gb: float = 0.25,
        startup_timeout: float = 30.0,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        if (user is None) != (password is None):
            raise ValueError("user and password must be given together, or not at all")
        if kind == "sharded" and user is not None:
            raise refused("kind", kind, "another kind: this one does not support access control")
        self._cache_gb = positive("cache_gb", cache_gb)
        self._startup_timeout = positive("startup_timeout", startup_timeout)
        self._credentials = None if user is None or password is None else (user, password)
        self._executable = program(server)
        self._kind = kind
        self._members = members
        self._python: Sequence[str] = THIS_PYTHON
        self.processes: list[Process] = []
        self._directory: Path | None = None
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            TestbedError: The server is not running.
        """
        if self._address is None:
            raise TestbedError("the embedded server is not running: use it in a with block")
        return self._address

    @property
    def uri(self) -> str:
        """``mongodb://host:port/`` of the server itself, without a proxy.

        With access control it contains the user and the password: do not log it.
        """
        host, port = self.address
        if self._credentials is None:
            return f"mongodb://{host}:{port}/"
        user, password = (quote(each, safe="") for each in self._credentials)
        return f"mongodb://{user}:{password}@{host}:{port}/"

    def start(self) -> None:
        """Start the child process, and return when it answers; for a mongod, when it accepts
        writes.

        Raises:
            TestbedError: It is already running, SecantusDB is not installed, or it does not answer
                in time. In the last case the message contains the end of the child's standard
                error.
        """
        if self._directory is not None:
            raise TestbedError("the embedded server is running already")
        if self._executable is None:
            self._python = python_of_secantus()
        deadline = time.monotonic() + self._startup_timeout
        self._directory = _data_folder(in_memory=self._executable is not None)
        try:
            if self._executable is None:
                self._address = self._begin(self._directory / "secantus", deadline)
            else:
                self._address = self._mongod(self._executable, self._directory, deadline)
            if self._kind != "members":
                wait_until_writable(self._address, deadline)
            if self._executable is not None and self._credentials is not None:
                user, password = self._credentials
                # The server allows creating the first user without a login, but only from this
                # machine.
                _succeed(self._address, {"createUser": user, "pwd": password, "roles": ["root"]})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the child process and remove its data. Does nothing if it is not running."""
        directory, self._directory, self._address = self._directory, None, None
        try:
            while self.processes:
                self.processes.pop().stop()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def _begin(self, folder: Path, deadline: float, *command: str) -> tuple[str, int]:
        process = Process(folder, *command, python=self._python)
        self.processes.append(process)
        process.start(deadline, self._credentials)
        return process.address

    def _mongod(self, executable: Path, folder: Path, deadline: float) -> tuple[str, int]:
        """Start all processes, and return the address that clients connect to."""

        def begin(name: str, *options: str) -> tuple[str, int]:
            data = folder / name / "data"
            data.mkdir(parents=True)
            storage = *_STORAGE, "--wiredTigerCacheSizeGB", str(self._cache_gb)
            command = str(executable), *options, *_OPTIONS, "--dbpath", str(data), *storage
            return self._begin(data.parent, deadline, *command)

        match self._kind:
            case "members":
                for index in range(self._members):
                    begin(f"member{index}", "--replSet", SET_NAME)
                return self.processes[0].address
            case "standalone":
                return begin("mongod", *(["--auth"] if self._credentials else []))
            case "sharded" if (mongos := _mongos_beside(executable)).exists():
                seeds = {}
                for name, role in (("config", "--configsvr"), ("shard0", "--shardsvr")):
                    address = begin(name, role, "--replSet", name)
                    initiate(name, [address])
                    wait_until_writable(address, deadline)
                    seeds[name] = "{}/{}:{}".format(name, *address)
                command = str(mongos), "--configdb", seeds["config"], *_OPTIONS
                router = self._begin(folder / "mongos", deadline, *command)
                _succeed(router, {"addShard": seeds["shard0"], "name": "shard0"})
                return router
        options = ["--replSet", SET_NAME]
        if self._credentials is not None:
            key = folder / "key"
            key.touch(mode=0o600)
            key.write_text(secrets.token_hex(32))
            options += ["--keyFile", str(key)]
        address = begin("mongod", *options)
        initiate(SET_NAME, [address])
        return address


def program(server: str | None) -> Path | None:
    """Return the path of the mongod that ``server`` or the variable names, or None for SecantusDB.

    Raises:
        ValueError: The value is neither.
        TestbedError: There is no such program.
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
            f"{name} is {value!r}, but {path!r} is not an executable program"
            if path
            else f"{name} is 'mongod', but there is no mongod in the PATH: "
            "install MongoDB, or use mongod=/path/to/mongod"
        )
    return Path(found).absolute()


def python_of_secantus() -> Sequence[str]:
    """Return the command of the Python that runs SecantusDB: the one that the variable names, or
    this one.

    Raises:
        TestbedError: The variable names no program, or SecantusDB is not installed.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise TestbedError(f"{PYTHON_VARIABLE} is {named!r}, not an executable program")
        # Variables such as PYTHONPATH are meant for this Python. Keep them from the other one.
        return str(Path(found).absolute()), "-I"
    if importlib.util.find_spec("secantus") is not None:
        return THIS_PYTHON
    needed = "the embedded server needs SecantusDB, which "
    if sys.version_info[:2] <= NEWEST_WITH_WHEEL:
        raise TestbedError(f'{needed}is not installed: pip install "pymongo-resilience[testbed]"')
    raise TestbedError(
        f"{needed}has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}: install "
        '"pymongo-resilience[testbed]" in an environment with Python '
        f"{'.'.join(map(str, NEWEST_WITH_WHEEL))}, and set {PYTHON_VARIABLE} to the path of its "
        f"python; or use a mongod ({SERVER_VARIABLE}=mongod)"
    )


def _mongos_beside(executable: Path) -> Path:
    """Return the path of the mongos next to a mongod, which may not exist."""
    return executable.with_name(executable.name.replace("mongod", "mongos"))


def _data_folder(*, in_memory: bool) -> Path:
    """Create a folder in TMPDIR, or in memory if there is enough, because a mongod flushes its
    files often.
    """
    may = in_memory and "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK)
    has_room = may and shutil.disk_usage(_MEMORY).free > _ROOM
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY if has_room else None))


def initiate(name: str, members: Sequence[tuple[str, int]], **settings: Any) -> None:
    """Make a replica set of several servers."""
    hosts = [{"_id": index, "host": "{}:{}".format(*each)} for index, each in enumerate(members)]
    config: dict[str, Any] = {"_id": name, "members": hosts, "settings": settings}
    if name == "config":
        config["configsvr"] = True
    _succeed(members[0], {"replSetInitiate": config})


def _succeed(address: tuple[str, int], body: dict[str, Any]) -> None:
    reply = ask(address, {**body, "$db": "admin"})
    if not reply.get("ok"):
        raise TestbedError(f"{next(iter(body))} failed: {reply.get('errmsg')}")


def described(address: tuple[str, int]) -> str:
    """Return name and version of the server at an address.

    Raises:
        OSError: There is no server.
    """
    info = ask(address, {"buildInfo": 1, "$db": "admin"})
    if "secantusVersion" in info:
        return f"SecantusDB {info['secantusVersion']}"
    return f"MongoDB {info.get('version', 'that is locked')}"
