"""Determines how long a request may take: the time that its caller specifies, up to a maximum, or a
default.
"""

from __future__ import annotations

import math
import re

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.events import RequestExpired, outlet
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import ATTEMPT_TIMEOUT_MS, MAX_MS, shown

GRPC_TIMEOUT = "grpc-timeout"
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GRPC_VALUE = re.compile(r"([0-9]{1,8})([HMSmun])")
"""At most eight digits and a unit. Source: gRPC over HTTP2, "Requests"."""
_MILLISECONDS = re.compile(r"[0-9]{1,10}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
EXPIRED_TEXT = "the request's deadline had passed when it arrived"
EXPIRED_BODY = EXPIRED_TEXT.encode() + b"\n"
"""The body of the response 504."""


class RequestLimits:
    """Limits for the time of requests. Durations are in seconds. Thread- and task-safe."""

    def __init__(
        self, *, max_ms: int | None, default_ms: int | None, header: str | None = None
    ) -> None:
        """Check and store the limits.

        Args:
            max_ms: The maximum, in milliseconds.
            default_ms: The timeout of requests that name none, in milliseconds.
            header: The name of the header that contains the timeout.

        Raises:
            ConfigurationError: A value is invalid.
        """
        problems: list[str] = []
        for name, value in (("max_ms", max_ms), ("default_ms", default_ms)):
            if value is not None and not ATTEMPT_TIMEOUT_MS.legal(value):
                problems.append(ATTEMPT_TIMEOUT_MS.problem(name, value))
        if header is not None and not _is_header_name(header):
            problems.append(f"header={shown(header)}: expected the name of a header")
        if not problems and max_ms is not None and default_ms is not None and default_ms > max_ms:
            problems.append(f"default_ms={default_ms}: expected at most max_ms={max_ms}")
        if problems:
            raise ConfigurationError(problems)
        self.header = (header or "").lower()
        self._longest = math.inf if max_ms is None else max_ms / 1000
        self.default = None if default_ms is None else default_ms / 1000
        """Seconds that a request without the header may take, or None."""
        self._has_logged = False

    def seconds_of_header(self, value: str | None) -> float | None:
        """Return how long a request with this header may take.

        A value that cannot be parsed counts as no header.

        Returns:
            Seconds, 0 if the time is over, or None without a limit.
        """
        if value is None:
            return self.default
        seconds = self._parse(value)
        if seconds is None:
            self._log_ignored()
        return self.seconds_of(seconds)

    def seconds_of(self, seconds: float | None) -> float | None:
        """Return how long a request may take whose timeout a framework has read, as
        ``seconds_of_header`` does.
        """
        # "not <=" also treats NaN as no timeout.
        if seconds is None or not seconds <= MAX_MS / 1000:
            return self.default
        return min(max(seconds, 0.0), self._longest)

    def _parse(self, text: str) -> float | None:
        if self.header == GRPC_TIMEOUT:
            match = _GRPC_VALUE.fullmatch(text)
            seconds = None if match is None else int(match[1]) * _UNITS[match[2]]
        else:
            seconds = int(text) / 1000 if _MILLISECONDS.fullmatch(text) else None
        return seconds if seconds is not None and seconds <= MAX_MS / 1000 else None

    def _log_ignored(self) -> None:
        # Callers may send anything. So do not log the value, and log only once, or they could fill
        # the log.
        if not self._has_logged:
            self._has_logged = True
            expected = (
                "up to eight digits and a unit, as in 500m"
                if self.header == GRPC_TIMEOUT
                else f"a whole number of milliseconds up to {MAX_MS}"
            )
            logger.warning(
                "the header %s of a request is ignored: expected %s; further cases are not logged",
                self.header,
                expected,
            )


def _is_header_name(name: object) -> bool:
    return isinstance(name, str) and _HEADER_NAME.fullmatch(name) is not None


def report_expired(received_by: str) -> None:
    """Report a refused request to listeners, the log, and metrics."""
    outlet.on_event(RequestExpired(received_by))
