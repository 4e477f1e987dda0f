"""Faults of commands: cut before or after the server executed them, refused, corrupted, shed."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from .fault import (
    HELLO_COMMANDS,
    Amend,
    Answer,
    Cut,
    CutAfterReply,
    Delay,
    Interception,
    Rewrite,
    Verdict,
    positive,
    refused,
    whole,
)
from .relay import Connection
from .wire import Document, Message

DRIVER_COMMANDS: Final = HELLO_COMMANDS | {
    "authenticate",
    "configureFailPoint",
    "endSessions",
    "killCursors",
    "saslContinue",
    "saslStart",
}
"""What a driver sends on its own account, and what arms the server's own failpoints."""
_BOTH: Final = ("SystemOverloadedError", "RetryableError")
_OVERLOAD: Final = {462: ("IngressRequestRateLimitExceeded", _BOTH), 473: ("", _BOTH[:1])}
"""Name and labels by the code. An error without RetryableError is not to be repeated."""


class OnCommand(Interception):
    """Acts a number of times on commands of one name, or on all that an application sends.

    :param command: the name, for example ``"insert"``; ``None`` for every application command. That
        of a method, as ``"insert_one"``, is a ``ValueError``.
    :param times: after how many it is over.
    """

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        super().__init__()
        if command is not None and (not isinstance(command, str) or not command.isalpha()):
            raise refused("command", command, "the name of a command, or None for any")
        self._command = command
        self.times = whole("times", times)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Give the verdict if this is the command that is meant."""
        name = request.command_name
        if self._command is None:
            matches = name not in DRIVER_COMMANDS
        elif self._command in HELLO_COMMANDS:
            # Which of its names a driver uses depends on the server's version.
            matches = name in HELLO_COMMANDS
        else:
            matches = name == self._command
        if not matches:
            return None
        self.injected += 1
        return self.verdict(request)

    @abstractmethod
    def verdict(self, request: Message) -> Verdict:
        """What happens to the request."""


class CutBefore(OnCommand):
    """Cuts the connection before the server executes the command."""

    def verdict(self, request: Message) -> Verdict:
        return Cut()


class CutAfter(OnCommand):
    """Cuts the connection after the server executed the command, so that its reply is lost."""

    def verdict(self, request: Message) -> Verdict:
        return CutAfterReply()


class Fail(OnCommand):
    """Refuses the command with an error of the server's; nothing of it is executed.

    :param code: for example 11600.
    :param labels: the ``errorLabels``; none by default. Inside of a transaction
        TransientTransactionError takes the place of RetryableWriteError, as on mongod.
    :param more: further fields of the reply, for example ``{"baseBackoffMS": 50}``.
    """

    def __init__(
        self,
        command: str | None = None,
        times: int = 1,
        *,
        code: int,
        name: str = "",
        text: str = "",
        labels: Sequence[str] = (),
        more: Document | None = None,
    ) -> None:
        super().__init__(command, times)
        self.document: Document = {"ok": 0.0, **_error(code, text)}
        if name:
            self.document["codeName"] = name
        self.document |= _labelled(labels) | (more or {})

    def verdict(self, request: Message) -> Verdict:
        labels = self.document.get("errorLabels", ())
        if "RetryableWriteError" not in labels or not request.is_inside_transaction:
            return Answer(self.document)
        inside = [
            "TransientTransactionError" if each == "RetryableWriteError" else each
            for each in labels
        ]
        return Answer({**self.document, "errorLabels": inside})


class NotPrimary(Fail):
    """Refuses the command as a member that is no longer primary, while hello still says it is."""

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        labels = ["RetryableWriteError"]
        super().__init__(
            command, times, code=10107, name="NotWritablePrimary", text="not primary", labels=labels
        )


class FailWriteConcern(OnCommand):
    """Lets the server execute the command, and adds a write concern error to its reply.

    Not inside of a transaction: there, only the commit has a write concern.

    :param code: for example 64, or 91 for a member that shuts down.
    """

    def __init__(
        self,
        command: str | None = None,
        times: int = 1,
        *,
        code: int,
        name: str = "",
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(command, times)
        error = _error(code) | ({"codeName": name} if name else {})
        self._fields: Document = {"writeConcernError": error} | _labelled(labels)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        return None if request.is_inside_transaction else super().on_request(request, connection)

    def verdict(self, request: Message) -> Verdict:
        return Amend(self._fields)


class FailStatement(OnCommand):
    """Answers a write as mongod does where its statement fails: ``ok`` is 1, and the error is in
    ``writeErrors``, without a label. In an election its code is 189. Nothing is executed.

    :param code: for example 189 or 112.
    """

    def __init__(self, command: str | None = None, times: int = 1, *, code: int) -> None:
        super().__init__(command, times)
        self._document = {"n": 0, "writeErrors": [{"index": 0, **_error(code)}], "ok": 1.0}

    def verdict(self, request: Message) -> Verdict:
        more: Document = {"nModified": 0} if request.command_name == "update" else {}
        return Answer(self._document | more)


class Corrupt(OnCommand):
    """Lets the server execute the command, and sends other bytes than its reply.

    :param rewritten: from the reply to what is sent; hellos are corrupted by naming ``hello``.
    """

    def __init__(
        self, rewritten: Callable[[Message], bytes], command: str | None = None, times: int = 1
    ) -> None:
        super().__init__(command, times)
        if not callable(rewritten):
            raise refused("rewritten", rewritten, "a function from a reply to bytes")
        self._rewritten = rewritten

    def verdict(self, request: Message) -> Verdict:
        return Rewrite(self._rewritten)


class Overload(Fail):
    """Sheds the command with the overload labels of its code; nothing of it is executed.

    :param base_backoff: what the server asks clients to wait at first (seconds), if anything.
    :param code: 462 with both labels; 473 with SystemOverloadedError alone.
    """

    def __init__(
        self,
        command: str | None = None,
        times: int = 1,
        base_backoff: float | None = None,
        *,
        code: int = 462,
    ) -> None:
        if code not in _OVERLOAD:
            raise refused("code", code, "462 or 473")
        name, labels = _OVERLOAD[code]
        more = {}
        if base_backoff is not None:
            more["baseBackoffMS"] = max(1, round(positive("base_backoff", base_backoff) * 1000))
        text = "the server is overloaded: too many requests"
        super().__init__(command, times, code=code, name=name, text=text, labels=labels, more=more)


class RateLimit(Interception):
    """Admits so many commands per second, as a token bucket does, and sheds what is above it.

    Until the deployment is cleared, or for so many seconds.

    :param rate: commands per second.
    :param burst: how many may come at once, at first and after a pause: at least 1; by default a
        second's worth.
    :param base_backoff: as with :class:`Overload`.
    :param seconds: how long it lasts; ``None``: until it is cleared.
    """

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        *,
        base_backoff: float | None = None,
        seconds: float | None = None,
    ) -> None:
        super().__init__(seconds)
        self._rate = positive("rate", rate)
        # Less than one token would never admit anything.
        self._burst = max(1.0, rate) if burst is None else positive("burst", burst)
        if self._burst < 1:
            raise refused("burst", burst, "a finite number of at least 1")
        self._tokens = self._burst
        self._refilled = time.monotonic()
        self._refusal = Answer(Overload(base_backoff=base_backoff).document)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Take a token, or shed the command for want of one."""
        if request.command_name in DRIVER_COMMANDS:
            return None
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        self.injected += 1
        return self._refusal


class Slow(Interception):
    """Holds back every reply to an application's command, while hellos are as fast as ever.

    :param seconds: for how long each reply is held back.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._verdict = Delay(positive("seconds", seconds))

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        if request.command_name in DRIVER_COMMANDS:
            return None
        self.injected += 1
        return self._verdict


def _error(code: int, text: str = "") -> Document:
    return {"errmsg": text or f"the test bed answers code {code}", "code": whole("code", code)}


def _labelled(labels: Sequence[str]) -> Document:
    several = isinstance(labels, list | tuple | set | frozenset)
    if not several or not all(isinstance(label, str) for label in labels):
        raise refused("labels", labels, "a list of texts")
    return {"errorLabels": list(labels)} if labels else {}
