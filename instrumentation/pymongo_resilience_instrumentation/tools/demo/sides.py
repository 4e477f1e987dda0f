"""The three sides: plain pymongo, a naive retry loop, pymongo-resilience; each in its own process.

Instrumenting patches pymongo in the whole process.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple, Self

import tenacity
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import Config, Event, RetryScheduled, instrument
from pymongo_resilience_instrumentation.tools.testbed import TestbedError

from .fault_script import MAX_IDLE
from .otel_setup import SpanRecorder, providers
from .result import Outcome, Side
from .workload import Step, perform

DEADLINE_MS: Final = 20_000
_TRIES: Final = 3
_PAUSE: Final = 0.05
_START_TIMEOUT: Final = 60.0
_STEP_TIMEOUT: Final = 90.0
_STOP_TIMEOUT: Final = 5.0


class Settings(NamedTuple):
    side: Side
    uri: str
    otlp: str | None


class Processes:
    """Starts one process per side, on entering; ends them all, on leaving. Not thread-safe."""

    def __init__(self, settings: list[Settings]) -> None:
        self._settings = settings
        self._processes: dict[Side, SpawnProcess] = {}
        self._connections: dict[Side, Connection[Any, Any]] = {}

    def ask(self, step: Step | None) -> dict[Side, Any]:
        """Have every side run the step, and wait for the slowest: an Outcome for each.

        Without a step they end, with the trace of each. Raises :class:`TestbedError`.
        """
        for side, connection in self._connections.items():
            try:
                connection.send(step)
            except OSError as exc:
                raise self._died(side) from exc
        return self._gather(_STEP_TIMEOUT)

    def _gather(self, timeout: float) -> dict[Side, Any]:
        answers: dict[Side, Any] = {}
        waiting = {connection: side for side, connection in self._connections.items()}
        deadline = time.monotonic() + timeout
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(side.title for side in waiting.values())
                raise TestbedError(f"no answer within {timeout:g} s from: {late}")
            for connection in waiting.keys() & ready:
                side = waiting.pop(connection)
                try:
                    answers[side] = connection.recv()
                except (EOFError, OSError) as exc:
                    raise self._died(side) from exc
        return answers

    def _died(self, side: Side) -> TestbedError:
        process = self._processes[side]
        process.join(_STOP_TIMEOUT)
        return TestbedError(f"the process of {side.title} ended with status {process.exitcode}")

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Children start with the parent's signal dispositions: none prints a traceback on Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for each in self._settings:
                ours, theirs = context.Pipe()
                process = context.Process(target=_main, args=(each, theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes[each.side], self._connections[each.side] = process, ours
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            self._gather(_START_TIMEOUT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        for process in self._processes.values():
            # Its data is temporary: nothing needs an orderly end, least of all a hanging side.
            process.kill()
            process.join(_STOP_TIMEOUT)


def _main(settings: Settings, parent: Connection[Any, Any]) -> None:
    """A side's process: answers a Step by its Outcome, ``None`` by one trace."""
    # Ctrl-C reaches the whole group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder, retries = SpanRecorder(), ReportedRetries()
    telemetry = providers(recorder, settings.otlp)
    run = _connect(settings, retries, telemetry)
    try:
        parent.send(None)
        while (step := parent.recv()) is not None:
            parent.send(_outcome(run, retries, step))
        for each in telemetry.values():
            # It may take seconds where the collector does not answer.
            each.shutdown()
        parent.send(recorder.trace)
    except (EOFError, OSError):
        return


def _outcome(run: Callable[[Step], None], retries: ReportedRetries, step: Step) -> Outcome:
    error: str | None = None
    retries.reasons.clear()
    started = time.perf_counter()
    try:
        run(step)
    except PyMongoError as exc:
        error = type(exc).__name__
    return Outcome(time.perf_counter() - started, error, dict(retries.reasons))


def _connect(
    settings: Settings, retries: ReportedRetries, providers: dict[str, Any]
) -> Callable[[Step], None]:
    """Open the side's client; returns what runs one step. Patches pymongo on our side."""
    if settings.side is Side.OURS:
        instrument(config=Config(timeout_ms=DEADLINE_MS), listeners=[retries], **providers)
    client: MongoClient[dict[str, Any]] = MongoClient(
        settings.uri, maxIdleTimeMS=round(MAX_IDLE * 1000)
    )
    database = client[settings.side.database]
    if settings.side is not Side.NAIVE:
        return lambda step: perform(database, step)
    # What one writes in a hurry: again on any error, around the code that builds the document.
    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_fixed(_PAUSE),
        retry=tenacity.retry_if_exception_type(PyMongoError),
        reraise=True,
    )
    return lambda step: again(perform, database, step)


class ReportedRetries:
    """Counts each retry, by the library's events. For one thread at a time."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def on_event(self, event: Event, /) -> None:
        """Count what was scheduled; what was declined is an error the application sees."""
        if isinstance(event, RetryScheduled):
            self.reasons[event.reason.name] += 1
