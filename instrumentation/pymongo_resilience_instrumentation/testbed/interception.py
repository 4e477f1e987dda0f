"""What a proxy asks a fault, and what a fault may answer.

A fault is asked about every connection and request that passes the proxy, in the proxy's own
thread, and answers with a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from pymongo_resilience_instrumentation.testbed.wire import Document, Message

HELLO_COMMANDS: Final = frozenset({"hello", "isMaster", "ismaster"})


@dataclass(eq=False, slots=True)
class Connection:
    """What the proxy knows about one client connection."""

    siblings: Collection[Connection] = field(repr=False)
    """The open connections of the same proxy, this one included."""
    hellos: int = 0
    """How many hellos were answered."""
    commands: int = 0
    """How many other commands were received."""

    @property
    def is_application(self) -> bool:
        """It has carried a command: a monitor never sends anything but hello."""
        return self.commands > 0

    @property
    def is_monitor(self) -> bool:
        """It has said hello and nothing else: a monitor, or an application's unused connection."""
        return self.hellos > 0 and self.commands == 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection; the server never sees the request."""


@dataclass(frozen=True, slots=True)
class CutAfterReply:
    """Let the server execute the request and close the connection instead of its reply."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Send this document; the server never sees the request."""

    document: Document


@dataclass(frozen=True, slots=True)
class Delay:
    """Forward the request and hold its reply back for so many seconds."""

    seconds: float


Verdict = Cut | CutAfterReply | Answer | Delay


class Fault:
    """The base of all faults: acts on nothing until a subclass says otherwise."""

    def __init__(self) -> None:
        self.injected = 0

    @property
    def is_over(self) -> bool:
        """The proxy forgets a fault that is over."""
        return False

    def refuses_connections(self) -> bool:
        """Close connections, those that are open and those that arrive."""
        return False

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Decide about one request; ``None`` leaves it to the next fault."""
        del request, connection
        return None

    def on_hello(self, reply: Document) -> None:
        """Change the server's reply to a hello, in place."""
