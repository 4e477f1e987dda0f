"""The three sides: plain pymongo, a naive retry loop, pymongo-resilience; each in its own process.

Instrumenting patches pymongo in the whole process.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple, Self

import tenacity
from pymongo import MongoClient
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    ConnectionCheckOutFailedEvent,
    ConnectionPoolListener,
)

from pymongo_resilience import Config, Event, RetryScheduled, instrument

from .fault_script import MAX_IDLE
from .result import FinalMessage, Outcome, Side
from .workload import Step, perform

DEADLINE_MS: Final = 20_000
_TRIES: Final = 3
_PAUSE: Final = 0.05
_NOTE_LENGTH: Final = 200
_START_TIMEOUT: Final = 60.0
_STEP_TIMEOUT: Final = 90.0
_STOP_TIMEOUT: Final = 5.0


class DemoError(RuntimeError):
    """The demonstration itself failed; its message says how."""


class Settings(NamedTuple):
    """What a side needs to know."""

    side: Side
    uri: str
    otlp: str | None
    traced_phase: str
    """The phase whose trace is shown, if one of its operations was retried."""


class Processes:
    """Starts one process per side, on entering; ends them all, on leaving. Not thread-safe."""

    def __init__(self, settings: list[Settings]) -> None:
        self._settings = settings
        self._processes: dict[Side, SpawnProcess] = {}
        self._connections: dict[Side, Connection[Any, Any]] = {}

    def ask(self, step: Step | None) -> dict[Side, Any]:
        """Have every side run the step, and wait for the slowest: an Outcome for each.

        Without a step they end, with a FinalMessage for each. Raises :class:`DemoError`.
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
                raise DemoError(f"no answer within {timeout:g} s from: {late}")
            for connection in waiting.keys() & ready:
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

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for each in self._settings:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_main, args=(each, theirs), name=each.side.value, daemon=True
                )
                with _ctrl_c_ignored():
                    process.start()
                theirs.close()
                self._processes[each.side], self._connections[each.side] = process, ours
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


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A child starts with the parent's signal dispositions, so none of it prints a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _main(settings: Settings, parent: Connection[Any, Any]) -> None:
    """A side's process: answers a Step by its Outcome, ``None`` by the FinalMessage.

    Returns when the other end of the connection is gone.
    """
    # Ctrl-C reaches the whole group; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    notes = _Notes()
    logging.getLogger().addHandler(notes)
    telemetry, recorder = None, None
    if settings.side is Side.OURS:
        from . import otel_setup  # noqa: PLC0415 - the SDK is our side's alone

        recorder = otel_setup.SpanRecorder(settings.traced_phase)
        telemetry = otel_setup.Telemetry(recorder, settings.otlp)
    run, counts = _connect(settings, telemetry.providers if telemetry else {})
    try:
        parent.send(None)
        while (step := parent.recv()) is not None:
            if recorder is not None:
                recorder.phase = step.phase
            parent.send(_outcome(run, counts, step))
        if telemetry is not None:
            telemetry.shutdown()
        found = recorder.found() if recorder is not None else {}
        parent.send(FinalMessage(notes=tuple(notes.first.values()), **found))
    except (EOFError, OSError):
        return


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # An operation may still be retrying against a server that is gone too.
        os._exit(1)


class _Notes(logging.Handler):
    """Keeps warnings for the end: written at once they would tear the picture.

    Of each logger the first of each level: an exporter repeats itself.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first: dict[tuple[str, int], str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.name}: {record.getMessage()}"
        self.first.setdefault((record.name, record.levelno), line[:_NOTE_LENGTH])


def _outcome(
    run: Callable[[Step], None], counts: FailedAttempts | ReportedRetries, step: Step
) -> Outcome:
    error: PyMongoError | None = None
    started = time.perf_counter()
    try:
        run(step)
    except PyMongoError as exc:
        error = exc
    seconds = time.perf_counter() - started
    return Outcome(seconds, None if error is None else type(error).__name__, counts.take(error))


def _connect(
    settings: Settings, providers: dict[str, Any]
) -> tuple[Callable[[Step], None], FailedAttempts | ReportedRetries]:
    """Open the side's client; returns what runs one step and what counts its retries.

    ``providers`` are the tracer and meter provider for :func:`pymongo_resilience.instrument`.
    Patches pymongo in this process on our side.
    """
    counts: FailedAttempts | ReportedRetries
    listeners: list[Any] = []
    if settings.side is Side.OURS:
        counts = ReportedRetries()
        instrument(config=Config(timeout_ms=DEADLINE_MS), listeners=[counts], **providers)
    else:
        counts = FailedAttempts()
        listeners = [counts]
    client: MongoClient[dict[str, Any]] = MongoClient(
        settings.uri, maxIdleTimeMS=round(MAX_IDLE * 1000), event_listeners=listeners
    )
    database = client[settings.side.database]
    if settings.side is not Side.NAIVE:
        return lambda step: perform(database, step), counts
    # What one writes in a hurry: again on any error, around the code that builds the document.
    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_fixed(_PAUSE),
        retry=tenacity.retry_if_exception_type(PyMongoError),
        reraise=True,
    )
    return lambda step: again(perform, database, step), counts


class FailedAttempts(CommandListener, ConnectionPoolListener):
    """Counts each attempt that failed, by the driver's events.

    An attempt is named after the server's error code or the driver's exception class; one that
    got no connection is ``ConnectionCheckOutFailed``. For one thread at a time.
    """

    def __init__(self) -> None:
        self._failed: list[str] = []

    def take(self, error: Exception | None) -> dict[str, int]:
        """The repeated ones among the attempts of the operation that just ended.

        All but the last, if the operation raised: that one was not repeated.
        """
        failed, self._failed = self._failed, []
        # A selection that timed out sent no attempt: it is itself the end.
        if error is not None and not isinstance(error, ServerSelectionTimeoutError):
            del failed[-1:]
        return dict(Counter(failed))

    def failed(self, event: CommandFailedEvent) -> None:
        self._failed.append(str(event.failure.get("codeName") or event.failure.get("errtype")))

    def connection_check_out_failed(self, event: ConnectionCheckOutFailedEvent) -> None:
        self._failed.append("ConnectionCheckOutFailed")

    def _ignore(self, event: Any) -> None: ...

    started = succeeded = _ignore
    pool_created = pool_ready = pool_cleared = pool_closed = _ignore
    connection_created = connection_ready = connection_closed = _ignore
    connection_check_out_started = connection_checked_out = connection_checked_in = _ignore


class ReportedRetries:
    """Counts each retry, by the library's events. For one thread at a time."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def take(self, error: Exception | None) -> dict[str, int]:
        """The reasons of the retries of the operation that just ended."""
        reasons, self._reasons = self._reasons, Counter()
        return dict(reasons)

    def on_event(self, event: Event, /) -> None:
        """Count what was scheduled; what was declined is an error the application sees."""
        if isinstance(event, RetryScheduled):
            self._reasons[event.reason.name] += 1
