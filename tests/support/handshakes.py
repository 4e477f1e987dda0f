"""The handshakes of a pool's connections: kept, answered, or left without an answer."""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.tools.testbed.fault import (
    HELLO_COMMANDS,
    Answer,
    Delay,
    Hang,
    Verdict,
)
from pymongo_resilience_instrumentation.tools.testbed.relay import Connection
from support.clients import Side
from support.transactions import LOW, DriversTime

from pymongo_resilience.testbed import Interception

USER: dict[str, Any] = {
    "username": "user",
    "password": "password",
    "authMechanism": "PLAIN",
    "authSource": "$external",
}
HELLO, LOGIN = "hello", "saslStart"
LOGGED_IN = Answer({"ok": 1.0, "conversationId": 1, "done": True, "payload": b""})


class Handshakes(Interception):
    """Answers logins, and keeps what the handshakes of the pool are sent; the monitor, which keeps
    its connection, has made it before that is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[str, Any]] = []
        self.silent: str | None = None
        self.slow_hello: float | None = None
        """Seconds."""
        self.clock: DriversTime | None = None

    def on_request(self, request: Any, connection: Connection) -> Verdict | None:
        name = HELLO if request.command_name in HELLO_COMMANDS else request.command_name
        if name != LOGIN and (name != HELLO or connection.hellos):
            return None
        self.commands.append((name, request.body.get("maxTimeMS")))
        if self.clock is not None:
            self.clock.passed += LOW / 4 / 1000
        if name == self.silent:
            return Hang(60)
        if name == LOGIN:
            return LOGGED_IN
        return None if self.slow_hello is None else Delay(self.slow_hello)


def find_server(side: Side, client: Any) -> None:
    """By its monitor alone: the pool has no connection then."""
    if side.runner is not None:
        side.do(client.aconnect)
    side.wait_for_members(client, 1)
