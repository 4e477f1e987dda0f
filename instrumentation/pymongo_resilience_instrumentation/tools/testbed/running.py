"""What is started and stopped, explicitly or by a ``with`` block; child processes among it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

_STOP_TIMEOUT: Final = 5.0


class TestbedError(RuntimeError):
    """The test bed cannot run here; the message says what to do."""

    __test__ = False  # pytest must not take the name for a test class


class Running(ABC):
    """A context manager over ``start`` and ``stop``, for ``with`` and for ``async with``.

    Both work inside of a running event loop as well; ``async with`` lets it run meanwhile.
    """

    @abstractmethod
    def start(self) -> None:
        """Begin; raises if it cannot, and leaves nothing behind then."""

    @abstractmethod
    def stop(self) -> None:
        """End; harmless when it does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await _in_a_thread(self.start)
        except asyncio.CancelledError:
            await _in_a_thread(self.stop)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_a_thread(self.stop)


class Child:
    """A program of ours in a process of its own, which ends once its standard input does.

    So whatever ends this process, a kill included, ends that one too.

    :param log: the file that takes its standard error.
    """

    def __init__(self, program: str, *arguments: str, log: Path) -> None:
        path = Path(__file__).parent / program
        self._command = [sys.executable, "-P", str(path), *arguments]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, line: str, deadline: float) -> int:
        """Write one line to it; returns the number that it answers with, 0 where it has none."""
        with self._log.open("a") as log:
            self._process = process = subprocess.Popen(  # noqa: S603 - our own program
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C goes to the parent alone, which then closes the pipe.
                start_new_session=True,
            )
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
        timer.daemon = True
        timer.start()
        try:
            # A child that has died already has no answer.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{line}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            answer = process.stdout.readline().strip()  # type: ignore[union-attr]
        finally:
            timer.cancel()
        return int(answer) if answer.isdigit() else 0

    def failure(self, why: str) -> TestbedError:
        """An error with the end of its log."""
        log = self._log.read_text(errors="replace")[-2000:].strip()
        return TestbedError(f"{why}; its last words:\n{log}" if log else why)

    def wait(self, timeout: float) -> bool:
        """Whether it ends within so many seconds."""
        try:
            if self._process is not None:
                self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Close its standard input and wait; kill it where that is not enough, or on a Ctrl-C."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            process.wait(_STOP_TIMEOUT)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            process.stdout.close()  # type: ignore[union-attr]


async def _in_a_thread(function: Callable[[], None]) -> None:
    """Raises what it raises; a cancellation once it is over, since a thread cannot be cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    cancelled = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    running.result()
