"""What an application can observe of one operation: pymongo's events, their order and operation
ids, its log lines, and the error. Without what differs between any two runs."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import monitoring
from pymongo.errors import PyMongoError

LOGGERS = ("pymongo.command", "pymongo.connection", "pymongo.serverSelection")
VARIES = {
    "$clusterTime", "lsid", "txnNumber", "cursors", "getMore", "recoveryToken", "comment",
}  # fmt: skip
"""Fields of commands whose values are of one run: that they are there counts."""
ALWAYS = {"killCursors", "endSessions", "hello", "ping"}
"""Commands that background tasks send at any time. A killCursors that the library sends is retried,
so the lines about its server selection have an operation id in addition."""
ADDED = {"attempts", "declined_because", "retry_reasons", "retry_rule", "server", "stage"}
"""Attributes that the library adds to errors, as its documents say."""
NUMBERS = re.compile(r"[0-9a-f]{24}|\d+(\.\d+)?")


class Recorder(logging.Handler, monitoring.CommandListener):
    """Keeps what it is told inside of a call, as texts that two runs have in common."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.operations: dict[Any, int] = {}

    def note(self, line: str) -> None:
        if _is_the_callers():
            self.lines.append(line)

    def _note_command(self, event: Any, what: object) -> None:
        if event.command_name not in ALWAYS:
            number = self.operations.setdefault(event.operation_id, len(self.operations))
            self.note(f"{type(event).__name__} of operation {number}: {what}")

    def started(self, event: Any) -> None:
        self._note_command(event, f"{shown(event.command)} to {bool(event.database_name)}")

    def succeeded(self, event: Any) -> None:
        self._note_command(event, f"{event.command_name} {sorted(event.reply)}")

    def failed(self, event: Any) -> None:
        self._note_command(event, f"{event.command_name} {sorted(event.failure)}")

    def emit(self, record: logging.LogRecord) -> None:
        fields = json.loads(record.getMessage())
        if not {fields.get("commandName"), fields.get("operation")} & ALWAYS:
            self.note(f"{record.name}: {fields.pop('message')} {sorted(fields)}")


class Pool(monitoring.ConnectionPoolListener):
    """The same of a client's pools."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.connections = 0

    def connection_ready(self, event: Any) -> None:
        self.connections += 1
        self._note(event)

    def _note(self, event: Any) -> None:
        self._recorder.note(f"{type(event).__name__} {getattr(event, 'reason', '')}")

    pool_created = pool_ready = pool_cleared = pool_closed = _note
    connection_created = connection_closed = _note
    connection_check_out_started = connection_check_out_failed = _note
    connection_checked_out = connection_checked_in = _note


def _is_the_callers() -> bool:
    """Not in a background thread or task, which does what it does at any time."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    name = "" if task is None else str(getattr(task.get_coro(), "__qualname__", ""))
    return name.startswith("Side.do.")


def shown(command: Any) -> str:
    fields = {
        name: "..." if name in VARIES else value for name, value in command.items() if name != "$db"
    }
    return NUMBERS.sub("#", repr(fields))


def facts(error: BaseException | None) -> Any:
    """Type, attributes and labels of an error, its arguments without their texts."""
    if error is None:
        return None
    names = vars(error).keys() - ADDED
    labels = sorted(getattr(error, "_error_labels", ()))
    return type(error).__name__, sorted(names), labels, getattr(error, "code", None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(recorder)
        each.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.removeHandler(recorder)
            each.setLevel(level)


def observed(recorder: Recorder, call: Callable[[], Any]) -> tuple[list[str], Any]:
    """The lines of one call, and its error."""
    recorder.lines.clear()
    recorder.operations.clear()
    error: PyMongoError | None = None
    try:
        call()
    except PyMongoError as raised:
        error = raised
    return list(recorder.lines), facts(error)
