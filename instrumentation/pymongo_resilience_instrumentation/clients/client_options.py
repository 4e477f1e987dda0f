"""Options of a client, looked at before the driver sees them: ours are taken out.

``adaptiveRetries`` is an option of a client's URI or one of its keywords.
Source: Client Backpressure, "Token Bucket".
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_plus

from pymongo.errors import ConfigurationError

from pymongo_resilience_instrumentation import driver

OPTION = "adaptiveRetries"
TIMEOUT = "timeoutMS"
_BOOLEANS = {"true": True, "false": False}
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, bool | None]:
    """A client's arguments without ``adaptiveRetries``, and what it said; None where it did not.

    A keyword wins over the URI, as for the driver's own options. Raises ConfigurationError
    (pymongo's) for what is no boolean.
    """
    if args:
        host, said = _from_hosts(args[0])
        args = (host, *args[1:])
    elif "host" in kwargs:
        host, said = _from_hosts(kwargs["host"])
        kwargs = kwargs | {"host": host}
    else:
        said = None
    for name in [name for name in kwargs if name.lower() == OPTION.lower()]:
        kwargs = kwargs.copy()
        said = _from_keyword(name, kwargs.pop(name))
    return (args, kwargs), said


def refuse_negative_timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ConfigurationError (pymongo's) for a negative ``timeoutMS`` in a URI, which pymongo
    drops with a warning; of a keyword it says so itself.

    Source: Client Side Operations Timeout, "timeoutMS".
    """
    host = args[0] if args else kwargs.get("host")
    for uri in host if isinstance(host, (list, tuple)) else [host]:
        if isinstance(uri, str) and TIMEOUT.lower() in uri.lower():
            for option in _options(uri)[1]:
                name, _, value = option.partition("=")
                if name.lower() == TIMEOUT.lower() and _is_negative(unquote_plus(value)):
                    raise ConfigurationError(
                        f"{name}={value} in the URI: expected 0 (no timeout) or more"
                    )


def server_selector(kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The name of the option as it was written, and the selector; None where none was given."""
    for name, value in kwargs.items():
        if name.lower() == driver.selection.SELECTOR:
            return name, value
    return driver.selection.SELECTOR, None


def _is_negative(value: str) -> bool:
    try:
        return float(value) < 0
    except ValueError:  # the driver's to refuse
        return False


def _from_keyword(name: str, value: object) -> bool:
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r}: expected True or False")
    return value


def _from_hosts(host: object) -> tuple[Any, bool | None]:
    if isinstance(host, str):
        return _from_uri(host)
    if not isinstance(host, (list, tuple)):
        return host, None
    found = [_from_uri(each) if isinstance(each, str) else (each, None) for each in host]
    said = [answer for _, answer in found if answer is not None]
    return [each for each, _ in found], said[-1] if said else None


def _from_uri(uri: str) -> tuple[str, bool | None]:
    said, rest = None, []
    head, options, separator = _options(uri)
    for each in options:
        name, _, value = each.partition("=")
        if name.lower() != OPTION.lower():
            rest.append(each)
        elif unquote_plus(value).lower() in _BOOLEANS:
            said = _BOOLEANS[unquote_plus(value).lower()]
        else:
            value = unquote_plus(value)
            raise ConfigurationError(f"{OPTION}={value} in the URI: expected true or false")
    if said is None:
        return uri, None
    return head + "?" + separator.join(rest) if any(rest) else head, said


def _options(uri: str) -> tuple[str, list[str], str]:
    """What stands before the options, the options, and what separates them."""
    head, _, query = uri.partition("?")
    separator = ";" if ";" in query and "&" not in query else "&"
    return head, query.split(separator), separator
