"""What a member asks a fault about the traffic that passes it, and what a fault may answer.

An interception is asked about every request and every hello, in the thread of the deployment, and
answers with a verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from .fault import Fault, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .wire import Document, Message

HELLO_COMMANDS: Final = frozenset({"hello", "isMaster", "ismaster"})


@dataclass(eq=False, slots=True)
class Connection:
    """What a member knows about one client connection."""

    siblings: Collection[Connection] = field(repr=False)
    """The open connections of the same member, this one included."""
    hellos: int = 0
    """How many hellos were answered."""
    commands: int = 0
    """How many other commands were received."""
    is_internal: bool = False
    """It is another member's."""

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
class Hang:
    """Say nothing for so many seconds, then close; the server never sees the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Send this document; the server never sees the request."""

    document: Document


@dataclass(frozen=True, slots=True)
class Amend:
    """Let the server execute the request, and add these fields to its reply."""

    fields: Document


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Let the server execute the request, and send these bytes instead of its reply."""

    rewritten: Callable[[Message], bytes]


@dataclass(frozen=True, slots=True)
class Delay:
    """Forward the request and hold its reply back for so many seconds."""

    seconds: float


Verdict = Cut | CutAfterReply | Hang | Answer | Amend | Rewrite | Delay


class Interception(Fault):
    """A fault in the traffic of a member: acts on nothing until a subclass says otherwise.

    One instance given to several members counts for all of them together.
    """

    parts_members: ClassVar[bool] = False
    """It strikes what the members of a set say to each other, too."""
    until = math.inf
    """When it is over at the latest, on the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self._acted: asyncio.Event | None = None

    @property
    def is_over(self) -> bool:
        """A member forgets an interception that is over."""
        return time.monotonic() >= self.until

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Decide about one request; ``None`` leaves it to the next fault."""
        return None

    def on_hello(self, reply: Document) -> None:
        """Change the reply to a hello, in place."""

    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Take a place behind the interceptions in force, until it is over."""
        self._acted = asyncio.Event()
        for member in targets:
            member.interceptions.append(self)
        while not self.is_over:
            self._acted.clear()
            left = self.until - time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._acted.wait(), None if math.isinf(left) else left)

    def acted(self) -> None:
        """A member has done what this one decided: it may be over now."""
        if self._acted is not None:
            self._acted.set()


class Lasting(Interception):
    """An interception that is over so many seconds after it began; without any, when cleared."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self._seconds = math.inf if seconds is None else positive("seconds", seconds)

    @property
    def remaining(self) -> float:
        """Seconds until it is over, at least 0."""
        return max(0.0, self.until - time.monotonic())

    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Begin now."""
        self.until = min(self.until, time.monotonic() + self._seconds)
        await super().strike(deployment, targets)
