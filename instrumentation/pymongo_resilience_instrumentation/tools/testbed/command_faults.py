"""Faults of single commands: cut off before or after execution, refused, corrupted, or rejected."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final

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
    not_negative,
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
"""Commands that drivers send by themselves, and the one that sets the server's own failpoints."""
_REJECTED: Final = ("SystemOverloadedError", "RetryableError", "NoWritesPerformed")
_OVERLOAD: Final = {462: ("IngressRequestRateLimitExceeded", _REJECTED), 473: ("", _REJECTED[:1])}
"""Code name and labels for each code. An error without RetryableError must not be retried."""


class OnCommand(Interception):
    """Base of the faults that act on commands, a limited number of times.

    Args:
        command: The name of the command, such as ``"insert"``, or None for every command of the
            application. The name of a method, such as ``"insert_one"``, raises ValueError.
        times: How often the fault acts before it ends.
    """

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        super().__init__()
        if command is not None and (not isinstance(command, str) or not command.isalpha()):
            raise refused("command", command, "the name of a command, or None for any")
        self._command = command
        self.times = whole("times", times)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Return the verdict if the fault applies to this command."""
        if not self._matches(request.command_name):
            return None
        self.injected += 1
        return self.verdict(request)

    def _matches(self, name: str) -> bool:
        if self._command is None:
            return name not in DRIVER_COMMANDS
        if self._command in HELLO_COMMANDS:
            # The command has two names; the server's version decides which one a driver uses.
            return name in HELLO_COMMANDS
        return name == self._command

    @abstractmethod
    def verdict(self, request: Message) -> Verdict:
        """Decide what happens to the request."""


class CutBefore(OnCommand):
    """Closes the connection before the server executes the command."""

    def verdict(self, request: Message) -> Verdict:
        return Cut()


class CutAfter(OnCommand):
    """Closes the connection after the server has executed the command, so that the reply is
    lost.
    """

    def verdict(self, request: Message) -> Verdict:
        return CutAfterReply()


class Fail(OnCommand):
    """Answers the command with an error of the server, without executing it.

    Args:
        code: The error code, such as 11600.
        labels: The ``errorLabels``; none by default. In a transaction, TransientTransactionError
            replaces RetryableWriteError, as on mongod.
        more: Further fields of the reply, such as ``{"baseBackoffMS": 50}``.
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
    """Answers the command as a member that is no longer primary, although its hello still
    says so.
    """

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        labels = ["RetryableWriteError"]
        super().__init__(
            command, times, code=10107, name="NotWritablePrimary", text="not primary", labels=labels
        )


class FailWriteConcern(OnCommand):
    """Lets the server execute the command, and adds a write concern error to the reply.

    Does not act inside of a transaction, where only the commit has a write concern.

    Args:
        code: The error code, such as 64, or 91 for a member that is shutting down.
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
    """Answers a write as mongod does if its statement fails, without executing it.

    ``ok`` is 1, and the error is in ``writeErrors``, without a label. During an election, mongod
    uses the code 189.

    Args:
        code: The error code, such as 189 or 112.
    """

    def __init__(self, command: str | None = None, times: int = 1, *, code: int) -> None:
        super().__init__(command, times)
        self._document = {"n": 0, "writeErrors": [{"index": 0, **_error(code)}], "ok": 1.0}

    def verdict(self, request: Message) -> Verdict:
        more: Document = {"nModified": 0} if request.command_name == "update" else {}
        return Answer(self._document | more)


class Corrupt(OnCommand):
    """Lets the server execute the command, and sends other bytes instead of its reply.

    Args:
        rewritten: A function from the reply to the bytes to send. To corrupt hellos, use the
            command ``hello``.
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
    """Rejects the command with an overload error, without executing it.

    The reply is that of the ingress request rate limiter of MongoDB 8.2 and newer. It has no
    ``topologyVersion``, and no transaction labels even in a transaction. The connection stays open.

    Args:
        command: The name, such as ``"insert"`` or ``"saslStart"``. None rejects everything,
            including hello and login on new connections, as the server does.
        base_backoff: How long clients are asked to wait before their first retry, in seconds, or
            None.
        code: 462 with all labels, or 473 with only SystemOverloadedError.
    """

    decides_on_arrival: ClassVar[bool] = True

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

    def _matches(self, name: str) -> bool:
        return self._command is None or super()._matches(name)


class _Tokens(Interception):
    """A token bucket. Subclasses decide what takes a token."""

    def __init__(self, rate: float, burst: float | None, seconds: float | None) -> None:
        super().__init__(seconds)
        self._rate = positive("rate", rate)
        # A bucket for less than one token would never admit anything.
        self._burst = max(1.0, rate) if burst is None else positive("burst", burst)
        if self._burst < 1:
            raise refused("burst", burst, "a finite number of at least 1")
        self._tokens = self._burst
        self._refilled = time.monotonic()

    @abstractmethod
    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Take a token for what the limit applies to."""

    def _take(self, cost: float = 0.0) -> bool:
        """Take one token and return True. Without a token, take ``cost`` for the rejection and
        return False.
        """
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return True
        self._tokens -= cost
        self.injected += 1
        return False


class RateLimit(_Tokens):
    """Admits a number of commands per second, and rejects the others as ``Overload`` does.

    Behaves like the ingress request rate limiter of MongoDB 8.2 and newer. It lasts for
    ``seconds``, or until the deployment is cleared.

    *Every* command takes a token: hello and login on a new connection, ``ping``, ``killCursors``,
    ``endSessions``, commits and aborts. An awaitable hello takes its token when it arrives. The
    replies that stream after it are free.

    Args:
        rate: Commands per second.
        burst: How many commands may arrive at once, at the beginning and after a pause, at least 1.
            By default the rate of one second.
        base_backoff: As for ``Overload``.
        seconds: How long the limit lasts; None means until the deployment is cleared.
        rejection_cost: How much of a token a rejection takes. MongoDB's limiter takes nothing; a
            server that is limited by its processor does work for each rejection.
        exempt: Values of ``appname`` whose connections are not limited. As on the server, their
            first hello still is, because the name is only known afterwards.
    """

    decides_on_arrival: ClassVar[bool] = True

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        *,
        base_backoff: float | None = None,
        seconds: float | None = None,
        rejection_cost: float = 0.0,
        exempt: Collection[str] = (),
    ) -> None:
        super().__init__(rate, burst, seconds)
        self._rejection_cost = not_negative("rejection_cost", rejection_cost)
        if isinstance(exempt, str) or not all(isinstance(name, str) for name in exempt):
            raise refused("exempt", exempt, "a list of application names")
        self._exempt = frozenset(exempt)
        self._refusal = Answer(Overload(base_backoff=base_backoff).document)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Take a token, or reject the command if there is none."""
        if connection.application in self._exempt or self._take(self._rejection_cost):
            return None
        return self._refusal


class ConnectionRateLimit(_Tokens):
    """Admits a number of new connections per second, and closes the others at their first message.

    Behaves like the connection establishment rate limiter of MongoDB 8.2 and newer.

    Args:
        rate: Connections per second.
        burst: As for ``RateLimit``.
        seconds: How long the limit lasts; None means until the deployment is cleared.
        rejects: Answer the first hello as ``Overload`` does, instead of closing the
            connection.
    """

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        *,
        seconds: float | None = None,
        rejects: bool = False,
    ) -> None:
        super().__init__(rate, burst, seconds)
        self._verdict: Verdict = Answer(Overload().document) if rejects else Cut()

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Take a token for a new connection. If there is none, close or reject the connection."""
        is_new = connection.hellos == connection.commands == 0
        return self._verdict if is_new and not self._take() else None


class Slow(Interception):
    """Delays every reply to a command of the application. Hellos are not delayed.

    Args:
        seconds: The delay of each reply.
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
