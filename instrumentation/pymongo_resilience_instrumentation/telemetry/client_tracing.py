"""What holds for the spans of one client: read once, when it is made.

``tracing={"enabled": ..., "query_text_max_length": ...}`` among the client's keywords wins over the
two variables of MongoDB's specification.
Source: OpenTelemetry (MongoDB driver specifications), "Tracing" and "MongoClient Options".

What OpenTelemetry's own instrumentation of pymongo, or the driver, records is not recorded again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pymongo.errors import ConfigurationError

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import BOOLEAN, OptionType, integer, shown
from pymongo_resilience_instrumentation import driver

OPTION = "tracing"
ENABLED_VARIABLE = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_ENABLED"
LENGTH_VARIABLE = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH"
_KEYS: dict[str, tuple[str, OptionType, Any]] = {
    "enabled": (ENABLED_VARIABLE, BOOLEAN, True),
    "query_text_max_length": (LENGTH_VARIABLE, integer(0, 16 * 1024 * 1024), 0),
}
"""The variable, the type of its value, and what holds without it."""
KEPT = "_pymongo_resilience_tracing"
"""A client's attribute."""
CONTRIB = "opentelemetry.instrumentation.pymongo"


class Tracing(NamedTuple):
    """Immutable, so thread- and task-safe."""

    enabled: bool = True
    query_text_max_length: int = 0
    """Characters; 0 is no text at all."""

    @property
    def quotes(self) -> bool:
        """Whether texts may leave that hold values of documents: of commands, and of errors."""
        return self.query_text_max_length > 0


DEFAULT = Tracing()


def tracing_of(client: object) -> Tracing:
    found: Tracing = getattr(client, KEPT, DEFAULT)
    return found


def keep(client: object, tracing: Tracing) -> None:
    setattr(client, KEPT, tracing)


def keep_for_existing(client: object) -> None:
    """One that was made without the instrumentation goes by the variables as they are now."""
    if getattr(client, KEPT, None) is None:
        keep(client, _settled({}))


def take(kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """A client's keywords without ``tracing``, and its value or None. Raises pymongo's
    ConfigurationError that names every bad value, where the driver does not know the option."""
    options = kwargs.get(OPTION)
    if driver.clients.knows_tracing():
        return kwargs, options if isinstance(options, Mapping) else None
    if OPTION in kwargs:
        kwargs = {name: value for name, value in kwargs.items() if name != OPTION}
    if options is not None:
        _check(options)
    return kwargs, options


def _check(options: object) -> None:
    if isinstance(options, Mapping):
        problems = [f"unknown key {shown(each)}" for each in options if each not in _KEYS]
        problems += [
            f"{key}={shown(options[key])}: expected {kind.allowed}"
            for key, (_, kind, _) in _KEYS.items()
            if key in options and not kind.legal(options[key])
        ]
    else:
        problems = [f"it is of type {type(options).__name__}"]
    if problems:
        raise ConfigurationError(
            f"{OPTION}: expected a dict with {', '.join(_KEYS)} or both; {'; '.join(problems)}"
        )


def _settled(options: Mapping[str, Any]) -> Tracing:
    """What holds for a client with these options, under the variables as they are now."""
    return Tracing(
        *(_of_variable(key) if options.get(key) is None else options[key] for key in _KEYS)
    )


def _of_variable(key: str) -> Any:
    """A bad value is logged, and shows less: telemetry must not keep an application from making
    its client."""
    variable, kind, unset = _KEYS[key]
    text = os.environ.get(variable, "").strip()
    if not text:
        return unset
    with suppress(KeyError, ValueError):
        value = kind.parse(text)
        if kind.legal(value):
            return value
    logger.error("%s=%r: expected %s; nothing is shown", variable, text, kind.allowed)
    return type(unset)()


def settle(options: Mapping[str, Any] | None, warn: Callable[[str], None]) -> Tracing:
    """What holds for a client that is being made, with these options."""
    tracing = _settled(options or {})
    # Without the option and the variable, a driver's own tracing is off.
    asked = (options or {}).get("enabled") or os.environ.get(ENABLED_VARIABLE, "").strip()
    if not (tracing.enabled and asked and driver.clients.knows_tracing()):
        return tracing
    warn(
        "pymongo records the spans of this client itself: pymongo-resilience records none; "
        "retries and metrics are not affected"
    )
    return Tracing(enabled=False)


def recorded_by_contrib(warn: Callable[[str], None]) -> bool:
    """Whether OpenTelemetry's own instrumentation listens to a client that is being made."""
    if not contrib_is_active():
        return False
    warn(
        "opentelemetry-instrumentation-pymongo is active: it records the command spans, and "
        "pymongo-resilience only those of operations; to get both from here, uninstrument it "
        "or set OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=pymongo"
    )
    return True


def contrib_is_active() -> bool:
    """Whether OpenTelemetry's own instrumentation of pymongo records spans now."""
    instrumentor = getattr(sys.modules.get(CONTRIB), "PymongoInstrumentor", None)
    return instrumentor is not None and bool(instrumentor().is_instrumented_by_opentelemetry)
