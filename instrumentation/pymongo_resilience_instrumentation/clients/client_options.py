"""Options of a client, looked at before the driver sees them: ours are taken out.

``adaptiveRetries`` is an option of a client's URI or one of its keywords.
Source: Client Backpressure, "Token Bucket".
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
"""A client's attribute: what it says itself."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, bool | None]:
    """A client's arguments without ``adaptiveRetries``, and what it said; None where it did not.

    A keyword wins over the URI, as for the driver's own options. Raises ConfigurationError
    (pymongo's) for what is no boolean.
    """
    said: list[bool] = []
    if args:
        args = (_without(args[0], said), *args[1:])
    elif "host" in kwargs:
        kwargs = kwargs | {"host": _without(kwargs["host"], said)}
    for name in [name for name in kwargs if name.lower() == OPTION.lower()]:
        kwargs = kwargs.copy()
        value = kwargs.pop(name)
        found = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise ConfigurationError(f"{name}={value!r}: expected True or False")
        said.append(found)
    return (args, kwargs), said[-1] if said else None


def _without(host: Any, said: list[bool]) -> Any:
    if isinstance(host, (list, tuple)):
        return [_without(each, said) for each in host]
    if not isinstance(host, str):
        return host
    head, _, query = host.partition("?")
    options = f"?{query}"
    for text in _ADAPTIVE.findall(options):
        found = _BOOLEANS.get(unquote_plus(text).lower())
        if found is None:
            raise ConfigurationError(f"{OPTION}={text} in the URI: expected true or false")
        said.append(found)
    left = _ADAPTIVE.sub("", options)
    if left == options:
        return host
    return f"{head}?{left[1:]}" if left[1:] else head


def has_srv(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a client's hosts come from SRV records."""
    host = args[0] if args else kwargs.get("host")
    hosts = host if isinstance(host, (list, tuple)) else [host]
    return any(isinstance(each, str) and each.startswith(SRV) for each in hosts)


def refuse_negative_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ConfigurationError (pymongo's) for a negative ``timeoutMS`` in a URI, which pymongo
    drops with a warning (Client Side Operations Timeout); a keyword's pymongo refuses itself."""
    host = args[0] if args else kwargs.get("host")
    for uri in host if isinstance(host, (list, tuple)) else [host]:
        query = uri.partition("?")[2] if isinstance(uri, str) else ""
        for option, value in _TIMEOUT.findall(f"?{query}"):
            with suppress(ValueError):  # what is no number is the driver's to refuse
                if float(unquote_plus(value)) < 0:
                    raise ConfigurationError(
                        f"{option}={value} in the URI: expected 0 (no timeout) or more"
                    )
