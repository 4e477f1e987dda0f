"""A real server in a child process, for tests and demonstrations."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from . import mongod
from .fault import positive, refused
from .mongod import ask
from .running import Child, Running, TestbedError

__all__ = ["EmbeddedServer", "TestbedError", "ask"]

Kind = Literal["replica-set", "standalone", "sharded", "members"]

_PROGRAM = "server_process.py"
"""Runs SecantusDB."""


class EmbeddedServer(Running):
    """SecantusDB, or a mongod of yours, on a free port of 127.0.0.1.

    A context manager::

        with EmbeddedServer() as server:
            client = MongoClient(server.uri)

    The data lives in a temporary directory that is removed at the end. The child process ends
    with the ``with`` block and also when this process dies without leaving it. Not thread-safe;
    share the running server, not its start and stop.

    :param server: ``"mongod"``, which is looked for in the PATH, or ``"mongod=/path/to/mongod"``:
        a replica set of one member. By default what the variable PYMONGO_RESILIENCE_TESTBED_SERVER
        says, and without it SecantusDB, ``"secantus"``.
    :param kind: what a mongod is: ``"sharded"`` is two of them behind the mongos that lies beside
        the mongod, and a replica set where there is none; ``"members"`` are ``members`` of them
        that are no replica set yet. SecantusDB has one kind.
    :param startup_timeout: seconds until a server that does not answer is an error.
    :param user: with ``password``, switches access control on; this user may do everything, and
        others nothing. Without the two the server has no access control.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        kind: Kind = "replica-set",
        members: int = 1,
        startup_timeout: float = 30.0,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        if (user is None) != (password is None):
            raise ValueError("user and password go together: give both, or neither")
        if kind == "sharded" and user is not None:
            raise refused("kind", kind, "another one with access control")
        self._startup_timeout = positive("startup_timeout", startup_timeout)
        self._credentials = None if user is None or password is None else (user, password)
        self._executable = mongod.program(server)
        self._kind = kind
        self._members = members
        self.processes: list[Child | mongod.Process] = []
        self._directory: Path | None = None
        self._address: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; raises :class:`TestbedError` when the server does not run."""
        if self._address is None:
            raise TestbedError("the embedded server is not running: use it in a with block")
        return self._address

    @property
    def uri(self) -> str:
        """``mongodb://host:port/`` of the server itself, without a proxy.

        With access control it holds the user and the password: do not log it.
        """
        host, port = self.address
        if self._credentials is None:
            return f"mongodb://{host}:{port}/"
        user, password = (quote(each, safe="") for each in self._credentials)
        return f"mongodb://{user}:{password}@{host}:{port}/"

    def start(self) -> None:
        """Start the child process and return once it answers, a mongod once it takes writes.

        Raises :class:`TestbedError` if it runs already, if SecantusDB is not installed, or if it
        does not answer in time; the message then holds the end of the child's standard error.
        """
        if self._executable is None and importlib.util.find_spec("secantus") is None:
            raise TestbedError(
                "the embedded server needs SecantusDB, which is not installed: "
                'pip install "pymongo-resilience[testbed]"'
            )
        if self._directory is not None:
            raise TestbedError("the embedded server is running already")
        deadline = time.monotonic() + self._startup_timeout
        self._directory = mongod.data_folder(in_memory=self._executable is not None)
        try:
            self._address = self._started(self._directory, deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the child process and remove its data; harmless when it does not run."""
        directory, self._directory, self._address = self._directory, None, None
        try:
            while self.processes:
                self.processes.pop().stop()
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def _started(self, directory: Path, deadline: float) -> tuple[str, int]:
        executable, kind = self._executable, self._kind
        if executable is not None:
            if kind == "sharded" and not mongod.mongos_beside(executable).exists():
                kind = "replica-set"
            return mongod.start(
                self.processes,
                executable,
                directory,
                kind=kind,
                members=self._members,
                credentials=self._credentials,
                deadline=deadline,
            )
        child = Child(_PROGRAM, str(directory), log=directory / "stderr.txt")
        self.processes.append(child)
        # Through the pipe: arguments and environment of a process can be read by others.
        address = "127.0.0.1", child.start(json.dumps(self._credentials), deadline)
        if not address[1]:
            raise child.failure("the embedded server did not start")
        try:
            mongod.wait_until_writable(address, deadline)
        except TestbedError as error:
            raise child.failure(str(error)) from error
        return address


def described(address: tuple[str, int]) -> str:
    """Name and version of the server at an address; raises ``OSError`` where there is none."""
    info = ask(address, {"buildInfo": 1, "$db": "admin"})
    version = info.get("secantusVersion")
    return (
        f"SecantusDB {version}" if version else f"MongoDB {info.get('version', 'that is locked')}"
    )
