"""The parent's end of the three processes: all run the same step, and wait for the slowest."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Self

from . import side_process
from .tally import FinalMessage, Outcome

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType

    from .contenders import Side
    from .workload import Step

_START_TIMEOUT: Final = 60.0
_STEP_TIMEOUT: Final = 90.0
_STOP_TIMEOUT: Final = 5.0


class DemoError(RuntimeError):
    """The demonstration itself failed; its message says how."""


class ProcessPool:
    """Starts one process per side, on entering; ends them all, on leaving. Not thread-safe."""

    def __init__(self, settings: list[side_process.Settings]) -> None:
        self._settings = settings
        self._processes: dict[Side, SpawnProcess] = {}
        self._connections: dict[Side, Connection[Any, Any]] = {}

    def step(self, step: Step) -> dict[Side, Outcome]:
        """Have every side run the step; returns when all have. Raises :class:`DemoError`."""
        answers = self._ask(step, _STEP_TIMEOUT)
        return {side: answer for side, answer in answers.items() if isinstance(answer, Outcome)}

    def final_messages(self) -> dict[Side, FinalMessage]:
        """End the workload; returns the last message of each side. Raises :class:`DemoError`."""
        answers = self._ask(None, _STEP_TIMEOUT)
        return {
            side: answer for side, answer in answers.items() if isinstance(answer, FinalMessage)
        }

    def _ask(self, message: Step | None, timeout: float) -> dict[Side, Any]:
        for side, connection in self._connections.items():
            try:
                connection.send(message)
            except OSError as exc:
                raise self._died(side) from exc
        return self._gather(timeout)

    def _gather(self, timeout: float) -> dict[Side, Any]:
        answers: dict[Side, Any] = {}
        waiting = {connection: side for side, connection in self._connections.items()}
        deadline = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(side.title for side in waiting.values())
                raise DemoError(f"no answer within {timeout:g} s from: {late}")
            for connection in list(waiting):
                if connection in ready:
                    side = waiting.pop(connection)
                    try:
                        answers[side] = connection.recv()
                    except (EOFError, OSError) as exc:
                        raise self._died(side) from exc
        return answers

    def _died(self, side: Side) -> DemoError:
        process = self._processes[side]
        process.join(_STOP_TIMEOUT)
        return DemoError(f"the process of {side.title} ended with status {process.exitcode}")

    def _start(self, settings: side_process.Settings) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=side_process.main, args=(settings, theirs), name=settings.side.value, daemon=True
        )
        with _ctrl_c_ignored():
            process.start()
        theirs.close()
        self._processes[settings.side] = process
        self._connections[settings.side] = ours

    def __enter__(self) -> Self:
        try:
            for settings in self._settings:
                self._start(settings)
            self._gather(_START_TIMEOUT)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for connection in self._connections.values():
            connection.close()
        for process in self._processes.values():
            # Its data is temporary: nothing needs an orderly end, least of all a hanging side.
            process.kill()
            process.join(_STOP_TIMEOUT)


class _ctrl_c_ignored:  # noqa: N801 (reads as a statement)
    """A child starts with the parent's signal dispositions, so none of it prints a traceback."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
