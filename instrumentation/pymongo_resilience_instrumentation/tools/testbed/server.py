"""A real server in a child process, for tests and demonstrations."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from .fault import positive, refused
from .mongod import PREFIX, Process, TestbedError, ask, data_folder, mongos_beside, program, started
from .running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EmbeddedServer", "TestbedError", "ask"]

_PROGRAM: Final = Path(__file__).with_name("server_process.py")
_STOP_TIMEOUT: Final = 5.0
_RETRY_INTERVAL: Final = 0.02

Kind = Literal["replica-set", "standalone", "sharded"]


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
        the mongod, and a replica set where there is none. SecantusDB has one kind.
    :param startup_timeout: seconds until a server that does not answer is an error.
    :param user: with ``password``, switches access control on; this user may do everything, and
        others nothing. Without the two the server has no access control.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        kind: Kind = "replica-set",
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
        self._mongod = program(server)
        self._kind = kind
        self._process: subprocess.Popen[str] | None = None
        self._mongods: list[Process] = []
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
        if self._mongod is None and importlib.util.find_spec("secantus") is None:
            raise TestbedError(
                "the embedded server needs SecantusDB, which is not installed: "
                'pip install "pymongo-resilience[testbed]"'
            )
        if self._directory is not None:
            raise TestbedError("the embedded server is running already")
        deadline = time.monotonic() + self._startup_timeout
        self._directory = data_folder() if self._mongod else Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            if self._mongod is None:
                self._address = self._start_secantus(self._directory, deadline)
            else:
                self._address = self._start_mongod(self._mongod, self._directory, deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the child process and remove its data; harmless when it does not run."""
        process, directory, mongods = self._process, self._directory, self._mongods
        self._process = self._directory = self._address = None
        self._mongods = []
        try:
            for each in reversed(mongods):
                each.stop()
            if process is not None:
                _end(process)
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def _start_mongod(self, mongod: Path, directory: Path, deadline: float) -> tuple[str, int]:
        without_mongos = self._kind == "sharded" and not mongos_beside(mongod).exists()
        kind = "replica-set" if without_mongos else self._kind
        self._mongods = started(mongod, directory, kind, self._credentials, deadline)
        return self._mongods[-1].address

    def _start_secantus(self, directory: Path, deadline: float) -> tuple[str, int]:
        with self._last_words(directory / "stderr.txt"):
            with (directory / "stderr.txt").open("w") as stderr:
                self._process = subprocess.Popen(  # noqa: S603 (our own program)
                    [sys.executable, "-P", str(_PROGRAM), str(directory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    # Ctrl-C goes to the parent alone, which then closes the pipe.
                    start_new_session=True,
                )
            self._hand_over_credentials(self._process)
            address = "127.0.0.1", self._read_port(self._process, deadline)
            self._wait_until_it_answers(address, deadline)
        return address

    @contextlib.contextmanager
    def _last_words(self, errors: Path) -> Iterator[None]:
        try:
            yield
        except TestbedError as exc:
            if detail := errors.read_text(errors="replace")[-2000:].strip():
                raise TestbedError(f"{exc}; its last words:\n{detail}") from exc
            raise

    def _hand_over_credentials(self, process: subprocess.Popen[str]) -> None:
        # Through the pipe: arguments and environment of a process can be read by others.
        line = json.dumps(self._credentials) + "\n"
        # A child that has died already says why when its port is read.
        with contextlib.suppress(BrokenPipeError):
            if process.stdin is not None:
                os.write(process.stdin.fileno(), line.encode())

    def _read_port(self, process: subprocess.Popen[str], deadline: float) -> int:
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
        finally:
            timer.cancel()
        if not line.strip().isdigit():
            raise TestbedError("the embedded server did not start")
        return int(line)

    def _wait_until_it_answers(self, address: tuple[str, int], deadline: float) -> None:
        while True:
            with contextlib.suppress(OSError):
                ask(address, {"ping": 1, "$db": "admin"}, timeout=1.0)
                return
            if time.monotonic() > deadline:
                raise TestbedError(
                    f"the embedded server did not answer within {self._startup_timeout:g} s"
                )
            time.sleep(_RETRY_INTERVAL)


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT)
    except BaseException as error:
        process.kill()
        process.wait()
        # A Ctrl-C, say.
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def described(address: tuple[str, int]) -> str:
    """Name and version of the server at an address; raises ``OSError`` where there is none."""
    info = ask(address, {"buildInfo": 1, "$db": "admin"})
    version = info.get("secantusVersion")
    return (
        f"SecantusDB {version}" if version else f"MongoDB {info.get('version', 'that is locked')}"
    )
