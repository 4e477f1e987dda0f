"""What every fault is: something that strikes members of a deployment, and counts its blows.

An interception is a fault in the traffic: it is asked about every request and every hello that
passes a member, in the thread of the deployment, and answers with a verdict.
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
    """The base of all faults. An instance strikes once: make a new one for each injection."""

    _text: str

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._text = call_text(cls, arguments, options)
        return made

    def __init__(self) -> None:
        self.injected = 0
        """What a fault adds to each time it acts; read it as ``struck``."""

    @property
    def struck(self) -> int:
        """How often it has struck; may be read from any thread."""
        return self.injected

    def __repr__(self) -> str:
        """As it was made: ``CutAfter('insert', times=2)``."""
        return self._text

    @abstractmethod
    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Do the harm to members of a ``Deployment``, in its event loop, and repair it at the end.

        Cancelled when the deployment is cleared: whatever must be repaired belongs into a
        ``finally`` clause. What is done before the first ``await`` is in force when
        ``Deployment.inject`` returns, and what is raised before it, ``Deployment.inject`` raises.
        It returns when the fault has run its course.
        """


def call_text(
    kind: Callable[..., object], arguments: Sequence[object], options: Mapping[str, object]
) -> str:
    shown = [*map(repr, arguments), *(f"{name}={value!r}" for name, value in options.items())]
    return f"{kind.__name__}({', '.join(shown)})"


# What arguments may be: each of these returns the value, or raises a ``ValueError`` that names the
# argument, the value, and what is allowed. Booleans are no numbers here.


def positive(name: str, value: float) -> float:
    """A finite number greater than 0: how long or how often anything can be."""
    if not is_finite(value) or value <= 0:
        raise refused(name, value, "a finite number greater than 0")
    return value


def not_negative(name: str, value: float) -> float:
    """A finite number of at least 0."""
    if not is_finite(value) or value < 0:
        raise refused(name, value, "a finite number of at least 0")
    return value


def whole(name: str, value: int, *, least: int = 1, most: int | None = None) -> int:
    """A whole number within bounds."""
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not valid or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise refused(name, value, str(least) if most == least else f"a whole number {bounds}")
    return value


def refused(name: str, value: object, allowed: str) -> ValueError:
    """The error for an argument that cannot be."""
    return ValueError(f"{name} is {value!r}, but must be {allowed}")


def is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection; the server never sees the request."""


@dataclass(frozen=True, slots=True)
class CutAfterReply:
    """Let the server execute the request and close the connection instead of its reply."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Do not answer for so many seconds, then close; the server never sees the request."""

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

    :param seconds: how long it lasts; ``None``: until the deployment is cleared.
    """

    parts_members: ClassVar[bool] = False
    """It strikes what the members of a set say to each other, too."""
    decides_on_arrival: ClassVar[bool] = False
    """It decides about a hello that is awaited when it arrives, not when it is answered."""
    until = math.inf
    """When it is over at the latest, on the monotonic clock."""
    times: float = math.inf
    """After how many strikes it is over."""

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__()
        self._lasts = math.inf if seconds is None else positive("seconds", seconds)
        self._acted: asyncio.Event | None = None

    @property
    def is_over(self) -> bool:
        """A member forgets an interception that is over."""
        return self.injected >= self.times or time.monotonic() >= self.until

    def on_request(self, request: Message, connection: Any) -> Verdict | None:
        """Decide about one request of a ``Connection``; ``None`` leaves it to the next fault."""
        return None

    def on_hello(self, reply: Document) -> None:
        """Change the reply to a hello, in place."""

    async def strike(self, deployment: Any, targets: Sequence[Any]) -> None:
        """Take a place behind the interceptions in force, until it is over."""
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
        """A member has done what this one decided: it may be over now."""
        if self._acted is not None:
            self._acted.set()
