"""Replies of MongoDB-compatible engines, as users have published them. See docs/engines.md."""

from __future__ import annotations

import struct
import time
from typing import Any

import bson
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand, _Tokens
from pymongo_resilience_instrumentation.tools.testbed.fault import Answer, Interception
from pymongo_resilience_instrumentation.tools.testbed.processes import ask

THROTTLED = 16500
DOCUMENTDB = {"ok": 0.0, "code": 301, "errmsg": "Retryable writes are not supported"}
COSMOS_DB = {
    "ok": 0.0,
    "code": 2,
    "errmsg": (
        'Retryable writes are not supported. Please disable retryable writes by specifying '
        '"retrywrites=false" in the connection string or an equivalent driver specific config.'
    ),
}  # fmt: skip
STANDALONE = {
    "ok": 0.0,
    "code": 20,
    "codeName": "IllegalOperation",
    "errmsg": "Transaction numbers are only allowed on a replica set member or mongos",
}
STATEMENTS = {"insert": "documents", "update": "updates", "delete": "deletes"}
"""The commands whose statements have errors of their own."""


def throttled_text(after_ms: int | None = 34) -> str:
    said = "" if after_ms is None else f"RetryAfterMs={after_ms}, "
    return (
        f"Error=16500, {said}Details='Response status code does not indicate success: "
        "TooManyRequests (429); Substatus: 3200; Reason: (Request rate is large. More Request "
        "Units may be needed, so no changes were made. Please retry this request later.)'"
    )


class RefuseNumbers(Interception):
    """Answers each command with a transaction number as an engine without retryable writes does."""

    def __init__(self, reply: Any = DOCUMENTDB) -> None:
        super().__init__()
        self._verdict = Answer(reply)

    def on_request(self, request: Any, connection: Any) -> Any:
        if "txnNumber" not in request.body or "autocommit" in request.body:
            return None
        self.injected += 1
        return self._verdict


def throttled_reply(request: Any, text: str) -> Any:
    """The reply to a command of which nothing was executed."""
    error = {"code": THROTTLED, "errmsg": text}
    if request.command_name not in STATEMENTS:
        return {"ok": 0.0, **error}
    return {"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [{"index": 0, **error}]}


class Throttle(OnCommand):
    """Throttles a command some times, and executes nothing of it."""

    def __init__(self, command: str, times: int = 1, *, after_ms: int | None = 34) -> None:
        super().__init__(command, times)
        self._text = throttled_text(after_ms)
        self.at: list[float] = []
        """When, on the monotonic clock."""

    def verdict(self, request: Any) -> Any:
        self.at.append(time.monotonic())
        return Answer(throttled_reply(request, self._text))


class ThrottleStatements(OnCommand):
    """Throttles some statements of each command, and lets the server execute others.

    Args:
        command: ``"insert"``, ``"update"`` or ``"delete"``.
        server: The server's address.
        statements: For each time, the indexes of the throttled statements.
        executes_them: Whether the server executes the throttled statements nevertheless.
    """

    def __init__(
        self, command: str, server: Any, *statements: list[int], executes_them: bool = False
    ) -> None:
        super().__init__(command, len(statements))
        self._server, self._statements = server, iter(statements)
        self._executes_them = executes_them

    def verdict(self, request: Any) -> Any:
        sent, ordered = statements_of(request), request.body.get("ordered", True)
        throttled = [index for index in next(self._statements) if index < len(sent)]
        throttled = throttled[:1] if ordered else throttled
        executed = list(range(throttled[0] if ordered and throttled else len(sent)))
        executed = [index for index in executed if index not in throttled]
        also = throttled if self._executes_them else []
        own = {"lsid", "$clusterTime", "txnNumber", "maxTimeMS"}
        body = {key: value for key, value in request.body.items() if key not in own}
        name = STATEMENTS[request.command_name]
        reply: Any = {"ok": 1.0, "n": 0, "nModified": 0}
        for index in sorted([*executed, *also]):
            done = ask(self._server, {**body, name: [sent[index]]})
            if index in executed:
                reply["n"] += done["n"]
                reply["nModified"] += done.get("nModified", 0)
        error = {"code": THROTTLED, "errmsg": throttled_text(8)}
        if throttled:
            reply["writeErrors"] = [{"index": index, **error} for index in throttled]
        return Answer(reply)


def statements_of(request: Any) -> list[Any]:
    """The statements of a bulk write's command."""
    name = STATEMENTS[request.command_name]
    if name in request.body:
        return list(request.body[name])
    (sequence,) = request.sequences
    (size,) = struct.unpack_from("<i", sequence)
    begin = sequence.index(b"\0", 4) + 1
    return list(bson.decode_all(sequence[begin:size]))


class RequestUnits(_Tokens):
    """Throttles all writes of more than ``rate`` documents a second, as a collection of Cosmos DB
    does, and tells each client when there is room again.
    """

    def __init__(self, rate: float, burst: float = 1.0) -> None:
        super().__init__(rate, burst, seconds=None)

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name not in STATEMENTS or self._take():
            return None
        after_ms = max(1, round((1 - self._tokens) / self._rate * 1000))
        return Answer(throttled_reply(request, throttled_text(after_ms)))
