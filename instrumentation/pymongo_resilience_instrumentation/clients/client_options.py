"""Options of a client, looked at before the driver sees them: ours are taken out.

``adaptiveRetries`` is an option of a client's URI or one of its keywords.
Source: Client Backpressure, "Token Bucket".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from pymongo.errors import ConfigurationError

from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def server_selector(kwargs: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The name of the option as it was written, and the selector, if one was given."""
    for name, value in kwargs.items():
        if name.lower() == driver.selection.SELECTOR:
            return name, (value,)
    return driver.selection.SELECTOR, ()


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
    if OPTION.lower() not in uri.lower():
        return uri, None
    head, options, separator = _options(uri)
    ours = [each for each in options if each.partition("=")[0].lower() == OPTION.lower()]
    rest = [each for each in options if each not in ours]
    said = [_from_text(unquote_plus(each.partition("=")[2])) for each in ours]
    left = head + "?" + separator.join(rest) if any(rest) else head
    return left, _last(said)


def _options(uri: str) -> tuple[str, list[str], str]:
    """What stands before the options, the options, and what separates them."""
    head, _, query = uri.partition("?")
    separator = ";" if ";" in query and "&" not in query else "&"
    return head, query.split(separator), separator


def _from_text(value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise ConfigurationError(f"{OPTION}={value} in the URI: expected true or false")
    return _BOOLEANS[value.lower()]


def _last(answers: Sequence[bool]) -> bool | None:
    return answers[-1] if answers else None
