"""A real MongoDB-compatible server in a child process, for tests and demonstrations."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from . import wire
from .fault import positive
from .running import Running

_PROGRAM: Final = Path(__file__).with_name("server_process.py")
_STOP_TIMEOUT: Final = 5.0
_RETRY_INTERVAL: Final = 0.02


class TestbedError(RuntimeError):
    """The test bed cannot run here; the message says what to do."""

    __test__ = False  # pytest must not take the name for a test class


class EmbeddedServer(Running):
    """SecantusDB on a free port of 127.0.0.1: wire protocol, transactions and failpoints.

    A context manager::

        with EmbeddedServer() as server:
            client = MongoClient(server.uri)

    The data lives in a temporary directory that is removed at the end. The child process ends
    with the ``with`` block and also when this process dies without leaving it. Not thread-safe;
    share the running server, not its start and stop.

    :param startup_timeout: seconds until a server that does not answer is an error.
    :param user: with ``password``, switches access control on; this user may do everything, and
        others nothing. Without the two the server has no access control.
    """

    def __init__(
        self,
        *,
        startup_timeout: float = 30.0,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        if (user is None) != (password is None):
            raise ValueError("user and password go together: give both, or neither")
        self._startup_timeout = positive("startup_timeout", startup_timeout)
        self._credentials = None if user is None or password is None else (user, password)
        self._process: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._port: int | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; raises :class:`TestbedError` when the server does not run."""
        if self._port is None:
            raise TestbedError("the embedded server is not running: use it in a with block")
        return "127.0.0.1", self._port

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
        """Start the child process and return once it answers a ``ping``.

        Raises :class:`TestbedError` if it runs already, if SecantusDB is not installed, or if it
        does not answer in time; the message then holds the end of the child's standard error.
        """
        if importlib.util.find_spec("secantus") is None:
            raise TestbedError(
                "the embedded server needs SecantusDB, which is not installed: "
                'pip install "pymongo-resilience[testbed]"'
            )
        if self._process is not None:
            raise TestbedError("the embedded server is running already")
        deadline = time.monotonic() + self._startup_timeout
        self._directory = Path(tempfile.mkdtemp(prefix="pymongo-resilience-"))
        errors = self._directory / "stderr.txt"
        try:
            with errors.open("w") as stderr:
                self._process = subprocess.Popen(  # noqa: S603 (our own program)
                    [sys.executable, "-P", str(_PROGRAM), str(self._directory)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    # Ctrl-C goes to the parent alone, which then closes the pipe.
                    start_new_session=True,
                )
            self._hand_over_credentials(self._process)
            self._port = self._read_port(self._process, deadline)
            self._wait_until_it_answers(deadline)
        except BaseException as exc:
            detail = errors.read_text(errors="replace")[-2000:].strip()
            self.stop()
            if isinstance(exc, TestbedError) and detail:
                raise TestbedError(f"{exc}; its last words:\n{detail}") from exc
            raise

    def stop(self) -> None:
        """End the child process and remove its data; harmless when it does not run."""
        process, directory = self._process, self._directory
        self._process = self._directory = self._port = None
        try:
            if process is not None:
                _end(process)
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

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

    def _wait_until_it_answers(self, deadline: float) -> None:
        ping = wire.command({"ping": 1, "$db": "admin"}).raw
        while True:
            try:
                with socket.create_connection(self.address, timeout=1.0) as connection:
                    connection.sendall(ping)
                    if connection.recv(1):
                        return
            except OSError:
                pass
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
