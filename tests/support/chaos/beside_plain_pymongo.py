"""The same operation, met by the same hostile replies, with the library and without it."""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import bson
from bson import Int64
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.failures.reasons import RELAYED
from pymongo_resilience_instrumentation.telemetry import listeners
from pymongo_resilience_instrumentation.tools.testbed.fault import Delay, Rewrite
from support.chaos.operations_under_attack import Operation
from support.clients import Side
from support.origin_text import text_without_origin
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION
from pymongo_resilience.testbed import Interception, ReplicaSet
from pymongo_resilience.testing import is_active

OUR_PACKAGES = ("/pymongo_resilience/", "/pymongo_resilience_instrumentation/")
VOLATILE = {"$clusterTime", "operationTime", "electionId", "opTime", "topologyVersion"}
_NUMBERS = re.compile(r"[0-9a-f]{24}|-?\d+(\.\d+)?(e-?\d+)?")
"""Identifiers, ports and times differ from one run to the next."""
_LOST = re.compile(r"[Cc]onnection (is )?(already )?closed|\[Errno \d+\] [A-Z][a-z]+( [a-z]+)*")
"""Which of these it is depends on who looks first, the driver or the kernel."""

Damage = Callable[[bytes], bytes]


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


class Unhurried(Interception):
    """Lets the client wait for its reply.

    A reply with a header that cannot be is a ProtocolError in async clients that wait for it, and
    a lost connection in those that do not do so yet.
    """

    def on_request(self, request: Any, connection: Any) -> Delay:
        return Delay(0.01)


class Hostile(Interception):
    """Lets the server execute a command, and sends what ``damage`` makes of its reply.

    :param closes: whether the connection ends after that, lest the client wait for the rest.
    """

    def __init__(self, command: str, damage: Damage, times: int, *, closes: bool) -> None:
        super().__init__()
        self._command = command
        self._damage = damage
        self._times = times
        self.closes = closes
        self.seen = 0

    def on_request(self, request: Any, connection: Any) -> Rewrite | None:
        if request.command_name != self._command:
            return None
        self.seen += 1
        if self.seen > self._times:
            return None
        self.injected += 1

        def rewritten(reply: Any) -> bytes:
            if self.closes:
                asyncio.get_running_loop().call_soon(connection.writer.close)
            body = _lasting(reply.body)
            if self.closes and "cursor" in body:
                # Nobody asks for more of it, and chance is not to be damaged.
                body["cursor"]["id"] = Int64(7)
            return self._damage(reply.with_body(body).raw)

        return Rewrite(rewritten)


def instead(document: Mapping[str, Any]) -> Damage:
    """Another document in the same message."""
    body = bson.encode(document)

    def damage(raw: bytes) -> bytes:
        _, request_id, response_to, opcode = struct.unpack_from("<iiii", raw)
        payload = struct.pack("<IB", 0, 0) + body
        return struct.pack("<iiii", 16 + len(payload), request_id, response_to, opcode) + payload

    return damage


@dataclass(frozen=True)
class Outcome:
    """What the application saw; equal where it could not tell the difference."""

    result: str | None
    error: tuple[Any, ...] | None
    cause: type | None = None
    raised: BaseException | None = field(compare=False, repr=False, default=None)


@dataclass(frozen=True)
class Run:
    """The attacked operation, one after it that nobody attacks, and what was seen of it."""

    attacked: Outcome
    after: Outcome
    attempts: int
    honest: int
    """Replies among them that nobody changed."""

    def but_for_the_cause(self) -> Run:
        return replace(self, attacked=replace(self.attacked, cause=None))

    def with_a_routers_label(self) -> Run:
        """The same run with the label that routers omit in a transaction, if the code is theirs."""
        error = self.attacked.error
        if error is None or error[3] not in map(str, RELAYED):
            return self
        labels = sorted({*error[4], repr(TRANSIENT_TRANSACTION)})
        return replace(self, attacked=replace(self.attacked, error=(*error[:4], labels)))


class Laboratory:
    """Runs one operation at a time, each with a client of its own."""

    def __init__(
        self, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
    ) -> None:
        self.side = side
        self.proxy = proxy
        self.database = database
        self._instrument = instrument
        self.options: dict[str, Any] = {}
        """Of the clients that are made from now on, beside those that keep a test short."""
        self.telemetry: Telemetry | None = None
        """Of the last run with the library."""

    def __repr__(self) -> str:
        return f"<{self.side.name}>"

    def plain(self, operation: Operation, hostile: Callable[[], Hostile]) -> Run:
        """Without the library: nothing of pymongo is wrapped."""
        assert not is_active()
        return self._run(operation, hostile())

    def with_library(
        self, operation: Operation, hostile: Callable[[], Hostile], strategy: str, **config: Any
    ) -> Run:
        """With it; fails where the library complains about itself."""
        with self.instrumented(strategy, **config):
            return self._run(operation, hostile())

    @contextmanager
    def instrumented(self, strategy: str, **config: Any) -> Iterator[Telemetry]:
        with no_complaints():
            self.telemetry = telemetry = self._instrument(
                config_strategy=strategy, base_backoff_ms=1, max_backoff_ms=1, **config
            )
            try:
                yield telemetry
                telemetry.reader.collect()
            finally:
                pymongo_resilience.uninstrument()

    def scheduled(self, operation: Operation | None = None) -> list[RetryScheduled]:
        """Retries in the last run with the library; of a transaction's end only if attacked."""
        assert self.telemetry is not None
        attacked = "" if operation is None else operation.command
        not_attacked = {"commitTransaction", "abortTransaction"} - {attacked}
        return [
            each
            for each in self.telemetry.decisions.events
            if isinstance(each, RetryScheduled) and each.operation not in not_attacked
        ]

    def _run(self, operation: Operation, hostile: Hostile) -> Run:
        client = self.client()
        try:
            if hostile.closes:
                self.proxy.inject(Unhurried())
            self.proxy.inject(hostile)
            attacked = self.outcome(lambda: operation.run(self.side, client, self.database))
            self.proxy.clear()
            after = self.outcome(lambda: self.side.do(client.admin.command, "ping"))
            self.collect()
        finally:
            self.proxy.clear()
            self.close(client)
        return Run(attacked, after, hostile.seen, hostile.seen - hostile.injected)

    def collect(self) -> None:
        """Let OpenTelemetry ask for the state of the clients that are alive, if anybody does."""
        if self.telemetry is not None and is_active():
            self.telemetry.reader.collect()

    def client(self) -> Any:
        options = {
            "serverSelectionTimeoutMS": 1500,
            "socketTimeoutMS": 1500,
            "connectTimeoutMS": 1500,
        }
        client = self.side.do(self.side.client, self.proxy.uri, **{**options, **self.options})
        # The driver's own back-off after an overload takes up to ten seconds.
        client._retry_policy.backoff_max = 0.001
        return client

    def close(self, client: Any) -> None:
        self.side.clients.remove(client)
        try:
            self.side.do(client.close)
        except Exception:  # noqa: BLE001 - what ends sessions may stumble, as any other command
            self.side.do(client._topology.close)

    def outcome(self, run: Callable[[], Any]) -> Outcome:
        try:
            return Outcome(_shown(run()), None)
        except Exception as error:  # noqa: BLE001 - whatever the application would see
            return Outcome(None, _facts(error), _cause(error), error)


REFUSAL = "operation would exceed time limit, remaining timeout:"


def raised_by_us(error: BaseException) -> bool:
    """Whether the innermost frame of the traceback is one of this library's.

    What it says on purpose is none, but an answer to the application: that a command is not sent
    for want of a millisecond, in the driver's words, and that no server will ever do.
    """
    if str(error).startswith(REFUSAL) or terminal_cause(error) is not None:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(package in frames[-1].filename for package in OUR_PACKAGES)


def _facts(error: Exception) -> tuple[Any, ...]:
    return (
        type(error),
        _steady(text_without_origin(error)),
        _steady(text_without_origin(repr(_attribute(error, "details")))),
        repr(_attribute(error, "code")),
        sorted(map(repr, getattr(error, "_error_labels", ()))),
    )


def _steady(text: str) -> str:
    return _NUMBERS.sub("#", _LOST.sub("connection lost", text))


def _cause(error: Exception) -> type:
    cause = error.__cause__
    return OSError if isinstance(cause, OSError) else type(cause)


def _attribute(error: Exception, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception as stumbled:  # noqa: BLE001 - the driver's own property
        return type(stumbled)


def _shown(value: Any) -> str:
    return repr(_lasting(value))


def _lasting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lasting(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return value
