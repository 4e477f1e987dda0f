"""Server processes that end together with this process, and commands to them without pymongo."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from . import wire
from .running import TestbedError

HOST: Final = "127.0.0.1"
PROGRAM = Path(__file__).with_name("server_process.py")
THIS_PYTHON: Final = (sys.executable, "-P")
_PORTS: Final = range(20_000, 32_000)
"""Below the ports that the operating system uses for outgoing connections."""
_STOP_TIMEOUT: Final = 5.0
_KILLED_WITHIN: Final = 10.0
_RETRY_INTERVAL: Final = 0.02
_REPLY_TIMEOUT: Final = 10.0


class Process:
    """A server process that ends together with this process.

    However this process ends, even if it is killed, the folder around ``folder`` is removed.

    Args:
        folder: The folder for the log.
        command: The command of a mongod or mongos, without its port; empty for SecantusDB.
        python: The command of the Python that runs the process. SecantusDB must be installed in it.
    """

    def __init__(self, folder: Path, *command: str, python: Sequence[str] = THIS_PYTHON) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._command = command
        self._python = python
        self._port = self._pid = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self._port

    @property
    def runs(self) -> bool:
        """True if the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, deadline: float, credentials: tuple[str, str] | None = None) -> None:
        """Start the process, and return when it listens.

        Args:
            credentials: User and password of a SecantusDB with access control.

        Raises:
            TestbedError: The process does not start. The message contains the end of its log.
        """
        with contextlib.nullcontext() if self._port or not self._command else _lock():
            if self._command:
                self._port = self._port or _free_port()
                command = [*self._command, "--port", str(self._port)]
                self._pid = self._launch(command, "null", deadline)
            else:
                # Pass credentials through the pipe, because other users can read the arguments and
                # the environment of a process.
                self._port = self._launch([], json.dumps(credentials), deadline)
            while self._port and self.runs and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    socket.create_connection(self.address, timeout=1.0).close()
                    return
                time.sleep(_RETRY_INTERVAL)
        why = "has ended" if time.monotonic() < deadline else "did not listen in time"
        log = (self._folder / "log.txt").read_text(errors="replace")[-2000:].strip()
        name = self._command[0] if self._command else "SecantusDB"
        raise TestbedError(f"{name} {why}" + f". The end of its log:\n{log}" * bool(log))

    def signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP, SIGCONT, SIGKILL or SIGTERM to a mongod. Does nothing if it has ended."""
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self, timeout: float) -> None:
        """Wait until the process has ended, and kill it after this many seconds."""
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                # Only now may standard input be closed, because that removes the folder with the
                # data of all members.
                self._process.wait(_KILLED_WITHIN)
            self.stop()

    def stop(self) -> None:
        """Close the process's standard input and wait. Kill it if that is not enough, or on
        Ctrl-C.
        """
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired), process:
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()  # type: ignore[union-attr]
                process.wait(_STOP_TIMEOUT)
            except BaseException:
                process.kill()
                raise

    def _launch(self, command: list[str], line: str, deadline: float) -> int:
        """Return the number that the child prints, or 0 if it ends before."""
        with (self._folder / "log.txt").open("a") as log:
            self._process = process = subprocess.Popen(  # noqa: S603 - our own program
                [*self._python, str(PROGRAM), str(self._folder.parent), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Only the parent gets Ctrl-C. It then closes the pipe.
                start_new_session=True,
            )
        # Reading from the pipe has no timeout. Killing the child ends it.
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
        timer.daemon = True
        timer.start()
        try:
            # A child that has already died does not answer.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{line}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            return int(process.stdout.readline() or 0)  # type: ignore[union-attr]
        finally:
            timer.cancel()


def ask(
    address: tuple[str, int], body: dict[str, Any], timeout: float = _REPLY_TIMEOUT
) -> dict[str, Any]:
    """Return the reply to one command, sent without pymongo, which may be instrumented.

    Raises:
        OSError: The server cannot be reached.
    """
    with socket.create_connection(address, timeout=timeout) as connection:
        return wire.exchange(connection, body)


def wait_until_writable(address: tuple[str, int], deadline: float) -> None:
    """Wait until the server accepts writes.

    Raises:
        TestbedError: It takes too long.
    """
    while True:
        with contextlib.suppress(OSError):
            if ask(address, {"isMaster": 1, "$db": "admin"}, timeout=1.0).get("ismaster"):
                return
        if time.monotonic() > deadline:
            raise TestbedError(
                "the server did not accept writes in time: raise startup_timeout, or see its log"
            )
        time.sleep(_RETRY_INTERVAL)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Let only one process at a time look for a free port, because a mongod cannot report which
    port the operating system gave it.
    """
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
