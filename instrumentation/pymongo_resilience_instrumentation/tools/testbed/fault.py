"""Base classes of faults. A fault acts on members of a deployment and counts how often it does.

An interception is a fault in the traffic. The deployment calls it, in its thread, for every request
and every hello that passes a member, and it returns a verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from .wire import Document, Message

HELLO_COMMANDS: Final = frozenset({"hello", "isMaster", "ismaster"})


class Fault(ABC):
    """Base of all faults. An instance can be injected once: create a new one for each injection."""

    _text: str

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        # Keep the text of the call now: the constructor may replace arguments, and they may change
        # later.
        made._text = call_text(cls, arguments, options)
        return made

    def __init__(self) -> None:
        self.injected = 0
        """Incremented each time the fault acts. Read it as ``struck``."""

    @property
    def struck(self) -> int:
        """How often the fault has acted. May be read from any thread."""
        return self.injected

    def __repr__(self) -> str:
        """Return the call that creates an equal fault, such as ``CutAfter('insert', times=2)``."""
        return self._text

    @abstractmethod
    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Act on members of a deployment, in its event loop, and repair the damage at the end.

        The method is cancelled when the deployment is cleared, so repairs belong into a ``finally``
        clause. ``Deployment.inject`` returns after the part before the first ``await``, and raises
        what that part raises. The method returns when the fault has ended.
        """


def call_text(
    kind: Callable[..., object], arguments: Sequence[object], options: Mapping[str, object]
) -> str:
    shown = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in options.items())]
    return f"{kind.__name__}({', '.join(shown)})"


# Checks of arguments. Each returns the value, or raises a ValueError that names the argument, the
# value, and what is allowed. A boolean does not count as a number.


def positive(name: str, value: float) -> float:
    """Return a finite number greater than 0."""
    if not is_finite(value) or value <= 0:
        raise refused(name, value, "a finite number greater than 0")
    return value


def not_negative(name: str, value: float) -> float:
    """Return a finite number of at least 0."""
    if not is_finite(value) or value < 0:
        raise refused(name, value, "a finite number of at least 0")
    return value


def whole(name: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number within bounds."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not valid or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refused(name, value, str(least) if most == least else f"a whole number {bounds}")
    return value


def refused(name: str, value: object, allowed: str) -> ValueError:
    """Return the error for an invalid argument."""
    return ValueError(f"{name} is {value!r}, but must be {allowed}")


def is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection. The server never receives the request."""


@dataclass(frozen=True, slots=True)
class CutAfterReply:
    """Let the server execute the request, and close the connection instead of sending the reply."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Do not answer for this many seconds, then close the connection. The server never receives the
    request.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Send this document. The server never receives the request."""

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
    """Forward the request, and delay its reply by this many seconds."""

    seconds: float


Verdict = Cut | CutAfterReply | Hang | Answer | Amend | Rewrite | Delay


class Interception(Fault):
    """A fault in the traffic of members. The base class acts on nothing.

    An instance that applies to several members counts for all of them together.

    Args:
        seconds: How long the fault lasts; None means until the deployment is cleared.
    """

    parts_members: ClassVar[bool] = False
    """True if the fault also applies to the traffic between the members of a set."""
    decides_on_arrival: ClassVar[bool] = False
    """True if the fault decides about an awaitable hello when it arrives, and not when it is
    answered.
    """
    until = math.inf
    """The latest end of the fault, on the monotonic clock."""
    times: float = math.inf
    """How often the fault acts before it ends."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self._lasts = math.inf if seconds is None else positive("seconds", seconds)
        self._acted: asyncio.Event | None = None

    @property
    def is_over(self) -> bool:
        """Return True if the fault has ended, so that members can forget it."""
        return self.injected >= self.times or time.monotonic() >= self.until

    def on_request(self, request: Message, connection: Any) -> Verdict | None:
        """Decide about one request on a connection. None leaves the decision to the next fault."""
        return None

    def on_hello(self, reply: Document) -> None:
        """Change the reply to a hello, in place."""

    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Add this interception after the active ones, until it has ended."""
        self.until = min(self.until, time.monotonic() + self._lasts)
        self._acted = asyncio.Event()
        for member in targets:
            member.interceptions.append(self)
        while not self.is_over:
            self._acted.clear()
            left = self.until - time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._acted.wait(), None if math.isinf(left) else left)

    def acted(self) -> None:
        """Called when a member has carried out a decision of this fault, which may end it."""
        if self._acted is not None:
            self._acted.set()
