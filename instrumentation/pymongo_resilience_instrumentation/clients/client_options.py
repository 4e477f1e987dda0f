"""Removes the library's own options from a client's arguments before pymongo sees them.

``adaptiveRetries`` is an option of the URI or a keyword argument. Source: Client Backpressure,
"Token Bucket".
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus

from pymongo.errors import ConfigurationError

OPTION = "adaptiveRetries"
SRV = "mongodb+srv://"
_ADAPTIVE = re.compile(f"[?&;]{OPTION}=([^&;]*)", re.IGNORECASE)
_TIMEOUT = re.compile("[?&;](timeoutMS)=([^&;]*)", re.IGNORECASE)
_BOOLEANS = {"true": True, "false": False}
KEPT = "_pymongo_resilience_adaptive"
"""The attribute of a client that holds its own value of the option."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, bool | None]:
    """Return a client's arguments without ``adaptiveRetries``, and the value of the option, or
    None.

    Raises:
        pymongo.errors.ConfigurationError: If the value is not a boolean.
    """
    values: list[bool] = []
    if args:
        args = (_without(args[0], values), *args[1:])
    elif "host" in kwargs:
        kwargs = kwargs | {"host": _without(kwargs["host"], values)}
    # pymongo ignores the case of option names as well.
    for name in [name for name in kwargs if name.lower() == OPTION.lower()]:
        # The dictionary may belong to the application.
        kwargs = kwargs.copy()
        value = kwargs.pop(name)
        flag = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(flag, bool):
            raise ConfigurationError(f"{name}={value!r}: expected True or False")
        values.append(flag)
    # The value of a keyword argument was added last, so it takes precedence.
    return (args, kwargs), values[-1] if values else None


def _without(host: Any, values: list[bool]) -> Any:
    if isinstance(host, (list, tuple)):
        return [_without(item, values) for item in host]
    if not isinstance(host, str):
        return host
    # Cut the option out of the text instead of parsing the URI, so that pymongo sees everything
    # else as it was written.
    head, _, query = host.partition("?")
    options = f"?{query}"
    for text in _ADAPTIVE.findall(options):
        flag = _BOOLEANS.get(unquote_plus(text).lower())
        if flag is None:
            raise ConfigurationError(f"{OPTION}={text} in the URI: expected true or false")
        values.append(flag)
    remaining = _ADAPTIVE.sub("", options)
    if remaining == options:
        return host
    return f"{head}?{remaining[1:]}" if remaining[1:] else head


def has_srv(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a client's hosts come from SRV records."""
    host = args[0] if args else kwargs.get("host")
    hosts = host if isinstance(host, (list, tuple)) else [host]
    return any(isinstance(item, str) and item.startswith(SRV) for item in hosts)


def refuse_negative_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise pymongo's ConfigurationError for a negative ``timeoutMS`` in a URI."""
    host = args[0] if args else kwargs.get("host")
    for uri in host if isinstance(host, (list, tuple)) else [host]:
        query = uri.partition("?")[2] if isinstance(uri, str) else ""
        for option, value in _TIMEOUT.findall(f"?{query}"):
            # Let pymongo refuse a value that is not a number.
            with suppress(ValueError):
                if float(unquote_plus(value)) < 0:
                    # Source: Client Side Operations Timeout, "timeoutMS". pymongo 4.20 ignores such
                    # a value with a warning, although it refuses a negative keyword argument.
                    raise ConfigurationError(
                        f"{option}={value} in the URI: expected 0 (no timeout) or more"
                    )
