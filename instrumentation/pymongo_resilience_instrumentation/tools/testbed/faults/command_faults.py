"""Faults of single commands: cut before or after the server executed them, refused, corrupted."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from pymongo_resilience_instrumentation.tools.testbed.fault import refused, whole
from pymongo_resilience_instrumentation.tools.testbed.proxy.command_names import COMMANDS, hint
from pymongo_resilience_instrumentation.tools.testbed.traffic import (
    HELLO_COMMANDS,
    Amend,
    Answer,
    Connection,
    Cut,
    CutAfterReply,
    Interception,
    Rewrite,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

DRIVER_COMMANDS: Final = HELLO_COMMANDS | {
    "authenticate",
    "configureFailPoint",
    "endSessions",
    "killCursors",
    "saslContinue",
    "saslStart",
}
"""What a driver sends on its own account, and what arms the server's own failpoints."""


class OnCommand(Interception):
    """Acts a number of times on commands of one name, or on all that an application sends.

    :param command: the name, for example ``"insert"``; ``None`` for every application command. One
        that MongoDB does not have is a ``ValueError`` with the nearest name.
    :param times: after how many it is over.
    """

    def __init__(self, command: str | None = None, times: int = 1) -> None:
        super().__init__()
        if command is not None and not (isinstance(command, str) and command in COMMANDS):
            near = hint(command) if isinstance(command, str) else ""
            raise refused("command", command, f"the name of a command, or None for any{near}")
        self._command = command
        self._times = whole("times", times)

    def __repr__(self) -> str:
        command = "" if self._command is None else f"{self._command!r}, "
        return f"{type(self).__name__}({command}times={self._times})"

    @property
    def is_over(self) -> bool:
        """It has acted as often as it should."""
        return self.injected >= self._times or super().is_over

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
        """Cut."""
        return Cut()


class CutAfter(OnCommand):
    """Cuts the connection after the server executed the command, so that its reply is lost."""

    def verdict(self, request: Message) -> Verdict:
        """Cut instead of replying."""
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
        document: Document = {
            "ok": 0.0,
            "errmsg": text or f"the test bed answers code {code}",
            "code": whole("code", code),
        }
        if name:
            document["codeName"] = name
        document |= _labelled(labels)
        self.document = document | (more or {})

    def verdict(self, request: Message) -> Verdict:
        """Answer with the error."""
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
        super().__init__(
            command,
            times,
            code=10107,
            name="NotWritablePrimary",
            text="not primary",
            labels=["RetryableWriteError"],
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
        error = {
            "code": whole("code", code),
            "codeName": name,
            "errmsg": f"the test bed answers code {code}",
        }
        self._fields: Document = {"writeConcernError": error} | _labelled(labels)

    def on_request(self, request: Message, connection: Connection) -> Verdict | None:
        """Give the verdict on a command that has a write concern."""
        return None if request.is_inside_transaction else super().on_request(request, connection)

    def verdict(self, request: Message) -> Verdict:
        """Execute, and add the error."""
        return Amend(self._fields)


class FailStatement(OnCommand):
    """Answers a write as mongod does where its statement fails: ``ok`` is 1, and the error is in
    ``writeErrors``, without a label. In an election its code is 189. Nothing is executed.

    :param code: for example 189 or 112.
    """

    def __init__(self, command: str | None = None, times: int = 1, *, code: int) -> None:
        super().__init__(command, times)
        text = f"the test bed answers code {code}"
        error = {"index": 0, "code": whole("code", code), "errmsg": text}
        self._document: Document = {"n": 0, "writeErrors": [error], "ok": 1.0}

    def verdict(self, request: Message) -> Verdict:
        """Answer with the error."""
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
        """Execute, and corrupt the reply."""
        return Rewrite(self._rewritten)


def _labelled(labels: Sequence[str]) -> Document:
    several = isinstance(labels, list | tuple | set | frozenset)
    if not several or not all(isinstance(label, str) for label in labels):
        raise refused("labels", labels, "a list of texts")
    return {"errorLabels": list(labels)} if labels else {}
