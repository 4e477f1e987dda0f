"""The faults of the table, as the test bed strikes them: one for each attempt, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from pymongo_resilience_instrumentation.tools.testbed.fault import (
    HELLO_COMMANDS,
    Answer,
    Cut,
    CutAfterReply,
    Hang,
    Verdict,
)
from pymongo_resilience_instrumentation.tools.testbed.relay import Connection
from pymongo_resilience_instrumentation.tools.testbed.wire import Message
from support.engine.failing_work import Fault
from support.engine.fake_clock import FakeClock

from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED, RetryReason, Stage
from pymongo_resilience.testbed import Fail, Interception, Overload

CODES = {
    RetryReason.NOT_PRIMARY: 10107,
    RetryReason.TEMPORARILY_UNAVAILABLE: 6,
    RetryReason.WRITE_CONFLICT: 112,
    RetryReason.LOCK_TIMEOUT: 24,
    RetryReason.AUTHENTICATION_ERROR: 18,
    RetryReason.ACCESS_ERROR: 13,
    RetryReason.UNKNOWN: 2,
}
LOGIN = {"username": "somebody", "password": "secret", "authMechanism": "PLAIN"}
"""An attempt that is not to be sent is cut at the login: what is cut earlier, at the hello, pymongo
since 4.18 calls an overload. So all clients log in."""
LOGGED_IN = Answer({"ok": 1.0, "conversationId": 1, "done": True, "payload": b""})
"""The server has no accounts: the test bed says yes to everybody."""
SILENCE = 30.0
"""Seconds; the client hangs up first."""


class FaultsInOrder(Interception):
    """Strikes each attempt of one operation with the next of its faults, then lets it pass.

    The clock is turned here, in the test bed's thread, while the caller waits for the reply.
    """

    def __init__(self, faults: Sequence[Fault], clock: FakeClock) -> None:
        super().__init__()
        self.passed = 0
        """Attempts that reached the server after the last fault."""
        self.met: list[Fault] = []
        """Those of attempts that found a server."""
        self.min_rtt = 0.0
        """As the row has it for the last one."""
        self.holds_monitor = False
        self._to_come = list(faults)
        self._clock = clock
        self._commands: Sequence[str] = ()

    def arm(self, commands: Sequence[str]) -> None:
        """Until now nothing is struck. ``commands``: what the operation sends; a bulk write sends
        two, and is at the second where a fault says so."""
        self._commands = commands

    def disarm(self) -> None:
        self._commands = ()

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        name = request.command_name
        due = self._due()
        if due is not None and is_refusal(due):
            due = None
        not_sent = due is not None and due.stage is Stage.NOT_SENT
        if name == "saslStart":
            return self._strike(request) if not_sent else LOGGED_IN
        if name in HELLO_COMMANDS:
            return None if due is None else self._hello(due)
        if name not in self._commands:
            return None
        if due is None:
            self.passed += 1
            return None
        # Where the fault should have come sooner, the row's attempts will not come true.
        before_its_turn = due.next_command and name == self._commands[0]
        return None if not_sent or before_its_turn else self._strike(request)

    def refusal(self) -> Fault | None:
        """In place of the breaker's own answer: what the row has for this attempt, if it is one.

        Its server never hears of it.
        """
        due = self._due()
        if due is None or not is_refusal(due):
            return None
        self._take()
        return due

    def _due(self) -> Fault | None:
        return self._to_come[0] if self._commands and self._to_come else None

    def _hello(self, due: Fault) -> Verdict | None:
        """No server is known as long as no hello is answered.

        The first is held for that: what the monitor was told before could else come to the client
        after its server was lost, and bring it back.
        """
        if not any(fault.selection for fault in self._to_come):
            return None
        if not self.holds_monitor:
            self.holds_monitor = True
            return Hang(SILENCE)
        return Cut() if due.selection else None

    def _strike(self, request: Message) -> Verdict:
        return verdict(self._take(), request)

    def _take(self) -> Fault:
        fault = self._to_come.pop(0)
        self.met.append(fault)
        self.injected += 1
        self.min_rtt = fault.min_rtt
        self._clock.advance(fault.takes)
        return fault


def is_refusal(fault: Fault) -> bool:
    """Of a circuit breaker's."""
    return fault.reason is RetryReason.CIRCUIT_BREAKER_OPEN


def verdict(fault: Fault, request: Message) -> Verdict:
    """What makes pymongo and the facts say what the row says of the attempt."""
    if fault.timed_out:
        return Hang(SILENCE)
    if fault.reason is RetryReason.SOCKET_NOT_AVAILABLE:
        return Cut()
    if fault.reason is RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT:
        # Of the two cuts the worse: the server has done it.
        return CutAfterReply()
    if fault.reason is RetryReason.OVERLOADED:
        return Overload(base_backoff=fault.base_backoff).verdict(request)
    return Fail(code=CODES[fault.reason], labels=fault.labels).verdict(request)


def as_stated(fault: Fault) -> Fault:
    """What the facts make of it: both labels go before the code."""
    overloaded = fault.labels >= {SYSTEM_OVERLOADED, RETRYABLE}
    return fault(reason=RetryReason.OVERLOADED) if overloaded else fault
