"""One side in a process of its own, since instrumenting patches pymongo in the whole process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import PyMongoError

from .contenders import Counts, Side, connect
from .tally import FinalMessage, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from .otel_setup import SpanRecorder, Telemetry
    from .workload import Step

_NOTE_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """What a side needs to know."""

    side: Side
    uri: str
    otlp: str | None
    traced_phase: str
    """The phase whose trace is shown, if one of its operations was retried."""


class _Notes(logging.Handler):
    """Keeps warnings for the end: written at once they would tear the picture.

    Of each logger the first of each level: an exporter repeats itself.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._first: dict[tuple[str, int], str] = {}

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._first.values())

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.name}: {record.getMessage()}"
        self._first.setdefault((record.name, record.levelno), line[:_NOTE_LENGTH])


def main(settings: Settings, runner: Connection[Any, Any]) -> None:
    """A :class:`Step` is run and answered by its Outcome, ``None`` by the FinalMessage.

    Returns when the other end of the connection is gone.
    """
    # Ctrl-C reaches the whole group; the conductor ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_conductor, daemon=True).start()
    notes = _Notes()
    logging.getLogger().addHandler(notes)
    recorder, otel_setup = _telemetry(settings)
    run, counts = connect(settings.side, settings.uri, otel_setup.providers if otel_setup else {})
    try:
        runner.send(None)
        while (step := runner.recv()) is not None:
            if recorder is not None:
                recorder.phase = step.phase
            runner.send(_outcome(run, counts, step))
        if otel_setup is not None:
            otel_setup.shutdown()
        runner.send(_final_message(recorder, notes))
    except (EOFError, OSError):
        return


def _end_with_the_conductor() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # An operation may still be retrying against a server that is gone too.
        os._exit(1)


def _telemetry(settings: Settings) -> tuple[SpanRecorder | None, Telemetry | None]:
    if settings.side is not Side.OURS:
        return None, None
    from . import otel_setup  # noqa: PLC0415 - the SDK is our side's alone

    recorder = otel_setup.SpanRecorder(settings.traced_phase)
    return recorder, otel_setup.Telemetry(recorder, settings.otlp)


def _outcome(run: Callable[[Step], None], counts: Counts, step: Step) -> Outcome:
    error: PyMongoError | None = None
    started = time.perf_counter()
    try:
        run(step)
    except PyMongoError as exc:
        error = exc
    seconds = time.perf_counter() - started
    name = None if error is None else type(error).__name__
    return Outcome(seconds, name, counts.take(error))


def _final_message(recorder: SpanRecorder | None, notes: _Notes) -> FinalMessage:
    if recorder is None:
        return FinalMessage(notes=notes.lines)
    return FinalMessage(
        spans=dict(recorder.names),
        trace=recorder.trace,
        trace_phase=recorder.trace_phase,
        notes=notes.lines,
    )
