"""Who set the timeout of an operation."""

from __future__ import annotations

import enum
from typing import Self


class TimeoutSource(enum.StrEnum):
    """Who set a timeout. It decides what the timeout may replace and what it may end.

    A timeout from the library's configuration was never chosen in place of the application's own
    limits: it bounds commands, never the life of a cursor, and the application's shorter limits
    (maxTimeMS, socketTimeoutMS and so on) still hold. A timeout that the application set replaces
    them (Client Side Operations Timeout, "timeoutMS overrides deprecated timeout options").
    """

    is_configuration: bool
    """The library's configuration set it, not the application."""

    def __new__(cls, value: str, is_configuration: bool = False) -> Self:
        source = str.__new__(cls, value)
        source._value_ = value
        source.is_configuration = is_configuration
        return source

    NONE = "none"
    CONFIGURATION = "configuration", True
    """``timeout_ms`` of ``instrument()``, of an environment variable, or of a file."""
    RULE = "rule", True
    """A rule for the namespace, which is part of the configuration."""
    CLIENT = "client"
    """``timeoutMS`` of the client."""
    BINDING = "binding"
    """``bind()``, or a session's ``default_timeout_ms``."""
    BLOCK = "block"
    """``override(timeout_ms=...)``."""
    PYMONGO_TIMEOUT = "pymongo.timeout"
    REQUEST = "request", True
    """What the incoming request has left (``pymongo_resilience.deadlines``), and nothing else set a
    timeout. Like the configuration's, it was not chosen in place of the application's own
    limits."""
