"""Whether the library, or OpenTelemetry in its place, had to complain about a fault of ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pymongo_resilience_instrumentation.telemetry import listeners

LISTENED_TO = {"pymongo_resilience": logging.ERROR, "opentelemetry": logging.WARNING}


class Complaints(logging.Handler):
    """Faults of its own that the library logs, and values that OpenTelemetry cannot take."""

    def __init__(self, level: int, texts: list[str]) -> None:
        super().__init__(level)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


@contextmanager
def no_complaints() -> Iterator[None]:
    """Fails where there was one inside of the block."""
    texts: list[str] = []
    handlers = {name: Complaints(level, texts) for name, level in LISTENED_TO.items()}
    # A listener logs its first fault alone; each example needs to hear of its own.
    listeners.faulty.clear()
    for name, handler in handlers.items():
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name, handler in handlers.items():
            logging.getLogger(name).removeHandler(handler)
    assert texts == []
