"""The origin of an operation's timeout."""

from __future__ import annotations

import enum
from typing import Self


class TimeoutSource(enum.StrEnum):
    """Where a timeout was set. This decides which other limits it replaces, and what it may end.

    A timeout from the library's configuration applies to commands but not to the life of a cursor,
    and the application's own shorter limits (maxTimeMS, socketTimeoutMS and so on) still apply,
    because the application did not choose it in their place. A timeout that the application set
    replaces them (Client Side Operations Timeout, "timeoutMS overrides deprecated timeout
    options").
    """

    is_configuration: bool
    """True if the library's configuration set the timeout, not the application."""

    def __new__(cls, value: str, is_configuration: bool = False) -> Self:
        source = str.__new__(cls, value)
        source._value_ = value
        source.is_configuration = is_configuration
        return source

    NONE = "none"
    CONFIGURATION = "configuration", True
    """``timeout_ms`` of ``instrument()``, an environment variable, or a file."""
    RULE = "rule", True
    """A namespace rule, which is part of the configuration."""
    CLIENT = "client"
    """``timeoutMS`` of the client."""
    BINDING = "binding"
    """``bind()``, or a session's ``default_timeout_ms``."""
    BLOCK = "block"
    """``override(timeout_ms=...)``."""
    PYMONGO_TIMEOUT = "pymongo.timeout"
    REQUEST = "request", True
    """The deadline of the incoming request (``pymongo_resilience.deadlines``), if nothing else set
    a timeout. Like a timeout from the configuration, it does not replace the application's own
    limits.
    """
