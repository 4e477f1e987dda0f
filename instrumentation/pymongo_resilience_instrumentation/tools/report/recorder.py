"""Writes what happens to a file, one JSON document a line.

Each has ``at`` (seconds since 1970), ``type`` and ``side`` (who: ``ours``, ``plain``, ...):

- ``run``: a side begins; its later records count from here
- ``operation``: ``name``, ``seconds``, ``error`` (a class or null), ``server``, and ``repeated``,
  how often by reason
- ``command``: one command as a server answered it: ``name``, ``seconds``, ``error``, ``server``
- ``fault``: ``fault``, ``on``, ``seconds``, ``struck``
- ``balance``: writes ``lost`` and ``duplicated``, where the database was compared
- ``retry.scheduled``, ``retry.declined``, ``circuit_breaker.opened``, ``circuit_breaker.closed``,
  ``read.hedged``: the library's events with their fields
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from pymongo_resilience.events import (
    BreakerClosed,
    BreakerOpened,
    Event,
    ReadHedged,
    RetryDeclined,
    RetryScheduled,
)
from pymongo_resilience_instrumentation.addresses import address_text

TYPES = {
    RetryScheduled: "retry.scheduled",
    RetryDeclined: "retry.declined",
    BreakerOpened: "circuit_breaker.opened",
    BreakerClosed: "circuit_breaker.closed",
    ReadHedged: "read.hedged",
}


class Recorder:
    """A context manager, and a listener: ``instrument(listeners=[Recorder(path)])``.

    Thread-safe. Holds no value of a document. A file that exists is overwritten.
    """

    def __init__(self, path: Path | str, *, side: str = "ours") -> None:
        self.side = side
        self._lock = threading.Lock()
        self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115 - closed below
        self._write("run")

    def run(self, side: str) -> None:
        """This side begins, after another one: what comes is its, faults included."""
        self.side = side
        self._write("run")

    def balance(self, lost: int, duplicated: int, *, side: str | None = None) -> None:
        self._write("balance", lost=lost, duplicated=duplicated, side=side or self.side)

    def operation(
        self,
        name: str,
        seconds: float,
        *,
        error: str | None = None,
        server: str | None = None,
        repeated: Mapping[str, int] | None = None,
        side: str | None = None,
        at: float | None = None,
    ) -> None:
        """One that began ``at``; by default it ends now."""
        fields = {"name": name, "seconds": round(seconds, 6), "error": error, "server": server}
        fields |= {"repeated": dict(repeated or {}), "side": side or self.side}
        self._write("operation", at=time.time() - seconds if at is None else at, **fields)

    def fault(self, fault: Any, on: object, seconds: float, *, side: str | None = None) -> None:
        """One that ends now; fits ``Deployment.observer``."""
        fields = {"fault": repr(fault), "on": on, "seconds": round(seconds, 3)}
        fields |= {"struck": fault.struck, "side": side or self.side}
        self._write("fault", at=time.time() - seconds, **fields)

    def commands(self) -> CommandListener:
        """For ``MongoClient(event_listeners=[recorder.commands()])``: what each server did."""
        return _Commands(self)

    def command(self, name: str, seconds: float, *, server: str, error: str | None = None) -> None:
        """One that ends now."""
        fields = {"name": name, "seconds": round(seconds, 6), "server": server, "error": error}
        self._write("command", at=time.time() - seconds, **fields)

    def on_event(self, event: Event, /) -> None:
        fields = {
            name: value.value if isinstance(value, enum.Enum) else value
            for name, value in event._asdict().items()
        }
        self._write(TYPES[type(event)], **fields)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, kind: str, *, at: float | None = None, **fields: Any) -> None:
        at = time.time() if at is None else at
        line = json.dumps({"at": round(at, 6), "type": kind, "side": self.side} | fields)
        with self._lock:
            if not self._file.closed:
                self._file.write(f"{line}\n")


class _Commands(CommandListener):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def started(self, event: CommandStartedEvent) -> None: ...

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self._ended(event, None)

    def failed(self, event: CommandFailedEvent) -> None:
        # Its text may quote values.
        self._ended(event, str(event.failure.get("codeName") or event.failure.get("errtype")))

    def _ended(self, event: CommandSucceededEvent | CommandFailedEvent, error: str | None) -> None:
        self._recorder.command(
            event.command_name,
            event.duration_micros / 1e6,
            server=address_text(event.connection_id),
            error=error,
        )
