"""Faults a proxy can inject: each a small class whose name says what goes wrong.

Given to a proxy a fault belongs to that proxy: make a new one for each. ``injected`` counts how
often it acted and may be read from any thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pymongo_resilience_instrumentation.testbed.interception import (
    HELLO_COMMANDS,
    Answer,
    Connection,
    Cut,
    CutAfterReply,
    Delay,
    Fault,
    Verdict,
)

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.testbed.wire import Document, Message

_DRIVER_COMMANDS: Final = HELLO_COMMANDS | {
    "authenticate",
    "configureFailPoint",
    "endSessions",
    "killCursors",
    "saslContinue",
    "saslStart",
}
_WRITE_COMMANDS: Final = frozenset(
    {
        "abortTransaction",
        "bulkWrite",
        "commitTransaction",
        "delete",
        "findAndModify",
        "insert",
        "update",
    }
)


class _Times(Fault):
    """A fault that acts a number of times and is over then."""

    def __init__(self, times: int) -> None:
        if times < 1:
            raise ValueError(f"times is {times}, but a fault acts at least once")
        super().__init__()
        self._times = times

    @property
    def is_over(self) -> bool:
        return self.injected >= self._times


class _OnCommand(_Times):
    """Acts on commands of one name, or on all that an application sends."""

    verdict: Verdict

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        super().__init__(times)
        self._command = command

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        del connection
        name = request.command_name
        matches = name not in _DRIVER_COMMANDS if self._command is None else name == self._command
        if not matches:
            return None
        self.injected += 1
        return self.verdict


class CutBefore(_OnCommand):
    """Cuts the connection before the server executes the command."""

    verdict = Cut()


class CutAfter(_OnCommand):
    """Cuts the connection after the server executed the command, so that its reply is lost."""

    verdict = CutAfterReply()


class NotPrimary(_OnCommand):
    """Refuses the command as a member that is no longer primary, while hello still says it is."""

    verdict = Answer(
        {
            "ok": 0.0,
            "errmsg": "not primary",
            "code": 10107,
            "codeName": "NotWritablePrimary",
            "errorLabels": ["RetryableWriteError"],
        }
    )


class Overload(_OnCommand):
    """Sheds the command with both overload labels; nothing of it is executed.

    :param base_backoff: what the server asks clients to wait at first (seconds), if anything.
    """

    def __init__(
        self, command: str | None = None, times: int = 1, base_backoff: float | None = None
    ) -> None:
        super().__init__(command, times)
        document: Document = {
            "ok": 0.0,
            "errmsg": "the server is overloaded: too many requests",
            "code": 462,
            "codeName": "IngressRequestRateLimitExceeded",
            "errorLabels": ["SystemOverloadedError", "RetryableError"],
        }
        if base_backoff is not None:
            document["baseBackoffMS"] = round(base_backoff * 1000)
        self.verdict = Answer(document)


class CutAtHandshake(_Times):
    """Cuts the first hello of application connections.

    At its first hello a monitor's connection looks like any other. But a monitor keeps its
    connection open: while one is open, a new connection is the application's; while none is, the
    new one is taken for the monitor's and let through. This holds for one client per proxy.
    """

    def __init__(self, times: int = 1) -> None:
        super().__init__(times)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        first = connection.hellos == 0 and connection.commands == 0
        if not first or request.command_name not in HELLO_COMMANDS:
            return None
        if not any(sibling.is_monitor for sibling in connection.siblings):
            return None
        self.injected += 1
        return Cut()


class _Lasting(Fault):
    """A fault that begins when it is made and lasts so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


class Refuse(_Lasting):
    """Closes all connections, monitors' too, and every new one at once."""

    def refuses_connections(self) -> bool:
        self.injected += 1
        return True


class StepDown(_Lasting):
    """The member is a secondary for a while, as in the gap of an election.

    Hello says so; writes and reads that need a primary are refused as a secondary refuses them.
    """

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        del connection
        name = request.command_name
        if name in _WRITE_COMMANDS:
            self.injected += 1
            return NotPrimary.verdict
        mode = request.body.get("$readPreference", {}).get("mode", "primary")
        # A cursor that was opened before survives the step-down.
        if name in _DRIVER_COMMANDS or name == "getMore" or mode != "primary":
            return None
        self.injected += 1
        return Answer(
            {
                "ok": 0.0,
                "errmsg": "not primary and secondaryOk=false",
                "code": 13435,
                "codeName": "NotPrimaryNoSecondaryOk",
            }
        )

    def on_hello(self, reply: Document) -> None:
        reply.update(isWritablePrimary=False, ismaster=False, secondary=True)
        reply.pop("primary", None)
        reply.pop("electionId", None)


class Slow(Fault):
    """Holds back every reply to an application's command, until the proxy is cleared."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._verdict = Delay(seconds)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        del connection
        if request.command_name in _DRIVER_COMMANDS:
            return None
        self.injected += 1
        return self._verdict
