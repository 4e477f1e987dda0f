"""Options of a client, looked at before the driver sees them: ours are taken out.

``adaptiveRetries`` is an option of a client's URI or one of its keywords.
Source: Client Backpressure, "Token Bucket".
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus

from pymongo.errors import ConfigurationError

from pymongo_resilience_instrumentation import driver

OPTION, TIMEOUT = "adaptiveRetries", "timeoutMS"
_BOOLEANS = {"true": True, "false": False}
adaptive: dict[int, bool] = {}
"""What each client says itself, by its identity."""
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
    head, options, separator = _options(host)
    kept = []
    for each in options:
        name, _, text = each.partition("=")
        value = unquote_plus(text)
        if name.lower() != OPTION.lower():
            kept.append(each)
        elif value.lower() in _BOOLEANS:
            said.append(_BOOLEANS[value.lower()])
        else:
            raise ConfigurationError(f"{OPTION}={value} in the URI: expected true or false")
    if len(kept) == len(options):
        return host
    return head + "?" + separator.join(kept) if any(kept) else head


def refuse_negative_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ConfigurationError (pymongo's) for a negative ``timeoutMS`` in a URI, which pymongo
    drops with a warning (Client Side Operations Timeout); a keyword's pymongo refuses itself."""
    host = args[0] if args else kwargs.get("host")
    for uri in host if isinstance(host, (list, tuple)) else [host]:
        for option in _options(uri)[1] if isinstance(uri, str) else ():
            name, _, value = option.partition("=")
            with suppress(ValueError):  # what is no number is the driver's to refuse
                if name.lower() == TIMEOUT.lower() and float(unquote_plus(value)) < 0:
                    raise ConfigurationError(
                        f"{name}={value} in the URI: expected 0 (no timeout) or more"
                    )


def server_selector(kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The name of the option as it was written, and the selector; None where none was given."""
    given = (each for each in kwargs.items() if each[0].lower() == driver.selection.SELECTOR)
    return next(given, (driver.selection.SELECTOR, None))


def _options(uri: str) -> tuple[str, list[str], str]:
    """What stands before the options, the options, and what separates them."""
    head, _, query = uri.partition("?")
    separator = ";" if ";" in query and "&" not in query else "&"
    return head, query.split(separator), separator
