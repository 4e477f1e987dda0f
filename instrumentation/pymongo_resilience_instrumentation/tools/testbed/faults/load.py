"""Faults of load: a server that sheds requests, or is slow to answer them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pymongo_resilience_instrumentation.tools.testbed.fault import positive, refused
from pymongo_resilience_instrumentation.tools.testbed.traffic import (
    Answer,
    Connection,
    Delay,
    Interception,
    Lasting,
    Verdict,
)

from .command_faults import DRIVER_COMMANDS, Fail

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.tools.testbed.wire import Message

_MILLISECONDS: Final = 1000
_BOTH: Final = ("SystemOverloadedError", "RetryableError")
_LABELS: Final = {462: _BOTH, 473: _BOTH[:1]}
"""By the code of the error. One without RetryableError is not to be repeated."""
_NAMES: Final = {462: "IngressRequestRateLimitExceeded"}


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
        if code not in _LABELS:
            raise refused("code", code, "462 or 473")
        hint = {} if base_backoff is None else {"baseBackoffMS": _whole_ms(base_backoff)}
        super().__init__(
            command,
            times,
            code=code,
            name=_NAMES.get(code, ""),
            text="the server is overloaded: too many requests",
            labels=_LABELS[code],
            more=hint,
        )


class RateLimit(Lasting):
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
        """Delay the reply."""
        if request.command_name in DRIVER_COMMANDS:
            return None
        self.injected += 1
        return self._verdict


def _whole_ms(base_backoff: float) -> int:
    return max(1, round(positive("base_backoff", base_backoff) * _MILLISECONDS))
