"""Faults of commands: cut before or after the server executed them, refused, corrupted, shed."""

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
"""What a driver sends on its own account, and what arms the server's own failpoints."""
_REJECTED: Final = ("SystemOverloadedError", "RetryableError", "NoWritesPerformed")
_OVERLOAD: Final = {462: ("IngressRequestRateLimitExceeded", _REJECTED), 473: ("", _REJECTED[:1])}
"""Name and labels by the code. An error without RetryableError must not be retried."""


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
        if not self._matches(request.command_name):
            return None
        self.injected += 1
        return self.verdict(request)

    def _matches(self, name: str) -> bool:
        if self._command is None:
            return name not in DRIVER_COMMANDS
        if self._command in HELLO_COMMANDS:
            # Which of its names a driver uses depends on the server's version.
            return name in HELLO_COMMANDS
        return name == self._command

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
    """Rejects the command with the overload labels of its code; nothing of it is executed.

    The reply is the one of the ingress request rate limiter of MongoDB 8.2 and newer: it has no
    ``topologyVersion``, inside a transaction it has no label of transactions, and the connection
    stays open.

    :param command: the name, for example ``"insert"`` or ``"saslStart"``. ``None`` rejects whatever
        comes, hello and login of new connections included, as the server does.
    :param base_backoff: how long the server asks clients to wait at first (seconds), if at all.
    :param code: 462 with all labels; 473 with SystemOverloadedError alone.
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
    """A token bucket. Its subclasses say what takes a token."""

    def __init__(self, rate: float, burst: float | None, seconds: float | None) -> None:
        super().__init__(seconds)
        self._rate = positive("rate", rate)
        # Less than one token would never admit anything.
        self._burst = max(1.0, rate) if burst is None else positive("burst", burst)
        if self._burst < 1:
            raise refused("burst", burst, "a finite number of at least 1")
        self._tokens = self._burst
        self._refilled = time.monotonic()

    @abstractmethod
    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Take a token for what the limit is about."""

    def _take(self, cost: float = 0.0) -> bool:
        """Take one token. Without one, take ``cost`` for the rejection and return False."""
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
    """Admits so many commands per second, like the ingress request rate limiter of MongoDB 8.2 and
    newer, and rejects the others as :class:`Overload` does. It lasts until the deployment is
    cleared, or for ``seconds``.

    *Every* command takes a token: the hello and the login of a new connection, ``ping``,
    ``killCursors``, ``endSessions``, commits and aborts. A hello that is awaited takes its token
    when it arrives; the replies that stream after it are free.

    :param rate: commands per second.
    :param burst: how many may come at once, at first and after a pause: at least 1; by default a
        second's worth.
    :param base_backoff: as with :class:`Overload`.
    :param seconds: how long it lasts; ``None``: until it is cleared.
    :param rejection_cost: how much of a token a rejection takes. MongoDB's limiter takes nothing;
        a server whose processor is the bottleneck pays for each rejection.
    :param exempt: names of applications (``appname``) whose connections are not limited. As on the
        server, their first hello is: the name is known once it has been answered.
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
    """Admits so many new connections per second and closes the others at their first message, like
    the connection establishment rate limiter of MongoDB 8.2 and newer.

    :param rate: connections per second.
    :param burst: as with :class:`RateLimit`.
    :param seconds: how long it lasts; ``None``: until it is cleared.
    :param rejects: answer the first hello as :class:`Overload` does instead of closing.
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
        """Take a token for a new connection; without one, end or reject it."""
        is_new = connection.hellos == connection.commands == 0
        return self._verdict if is_new and not self._take() else None


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
