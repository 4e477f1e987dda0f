"""The tracing options of one client, read once when it is created.

``tracing={"enabled": ..., "query_text_max_length": ...}`` among the client's keyword arguments
takes precedence over the two variables of MongoDB's specification. Source: OpenTelemetry (MongoDB
driver specifications), "Tracing" and "MongoClient Options".

Spans that OpenTelemetry's own instrumentation of pymongo or pymongo itself records are not recorded
twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pymongo.errors import ConfigurationError

from pymongo_resilience.config import QueryText
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import BOOLEAN, OptionType, integer, shown
from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Client

OPTION = "tracing"
ENABLED_VARIABLE = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_ENABLED"
LENGTH_VARIABLE = "OTEL_PYTHON_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH"
KEPT = "_pymongo_resilience_tracing"
"""The attribute of a client."""
CONTRIB = "opentelemetry.instrumentation.pymongo"
CONTRIB_IS_ACTIVE = (
    "opentelemetry-instrumentation-pymongo is active, so it records the command spans, and "
    "pymongo-resilience records only operation spans. To get both from pymongo-resilience, "
    "uninstrument opentelemetry-instrumentation-pymongo or set "
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=pymongo"
)


class Tracing(NamedTuple):
    """The tracing options of one client. Immutable, so thread- and task-safe."""

    enabled: bool = True
    query_text_max_length: int | None = None
    """Maximum length of the texts of whole commands, in characters. 0 means no texts. None means
    that the option ``query_text`` decides about shapes.
    """

    @property
    def quotes(self) -> bool:
        """True if texts that contain values of documents may be exported: those of whole commands
        and of errors.
        """
        return bool(self.query_text_max_length)

    def sanitizes(self, query_text: str) -> bool:
        """Return True if the shape of commands may be exported, with this option ``query_text``."""
        return query_text == QueryText.SANITIZED and self.query_text_max_length != 0


DEFAULT = Tracing()
_KEYS: dict[str, tuple[str, OptionType]] = {
    "enabled": (ENABLED_VARIABLE, BOOLEAN),
    "query_text_max_length": (LENGTH_VARIABLE, integer(0, 16 * 1024 * 1024)),
}
"""The variable, and the type of its value."""


def tracing_of(client: Client) -> Tracing:
    found: Tracing = getattr(client, KEPT, DEFAULT)
    return found


def keep_for_existing(client: Client) -> None:
    """Give a client that was created without the instrumentation the options of the current
    variables.
    """
    if not hasattr(client, KEPT):
        setattr(client, KEPT, Tracing(*map(_of_variable, _KEYS)))


def take(kwargs: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return a client's keyword arguments without ``tracing``, and its value.

    A pymongo that has the option itself gets it, and checks it.

    Raises:
        pymongo.errors.ConfigurationError: If the value is invalid.
    """
    options = kwargs.get(OPTION)
    options = {} if options is None else options
    if driver.clients.knows_tracing():
        return kwargs, options if isinstance(options, Mapping) else {}
    if not isinstance(options, Mapping):
        _refuse(f"it is of type {type(options).__name__}")
    for key, value in options.items():
        if key not in _KEYS:
            _refuse(f"unknown key {shown(key)}")
        if not _KEYS[key][1].legal(value):
            _refuse(f"{key}={shown(value)}: expected {_KEYS[key][1].allowed}")
    return {name: value for name, value in kwargs.items() if name != OPTION}, options


def _refuse(problem: str) -> NoReturn:
    expected = f"{OPTION}: expected a dict with {', '.join(_KEYS)} or both"
    raise ConfigurationError(f"{expected}; {problem}")


def _of_variable(key: str) -> Any:
    """Return an option's value from its variable.

    An invalid value is logged and shows less, because telemetry must not prevent an application
    from creating its client.
    """
    variable, kind = _KEYS[key]
    text = os.environ.get(variable, "").strip()
    if not text:
        return getattr(DEFAULT, key)
    value = kind.read(text)
    if value is None:
        logger.error(
            "%s=%r: expected %s. Until it is corrected, it counts as 0 (off)",
            variable,
            text,
            kind.allowed,
        )
    return value or 0


def settle(client: Client, options: Mapping[str, Any], warn: Callable[[str], None]) -> Tracing:
    """Return and store the options of a client that is being created."""
    tracing = Tracing(*(options[key] if key in options else _of_variable(key) for key in _KEYS))
    # Without the option and the variable, a driver's own tracing is off.
    asked = options.get("enabled") or os.environ.get(ENABLED_VARIABLE, "").strip()
    if tracing.enabled and asked and driver.clients.knows_tracing():
        warn(
            "pymongo records the spans of this client itself, so pymongo-resilience does not. "
            "Retries and metrics are not affected"
        )
        tracing = Tracing(enabled=False)
    setattr(client, KEPT, tracing)
    return tracing


def contrib_is_active() -> bool:
    """Return True if OpenTelemetry's own instrumentation of pymongo records spans now."""
    instrumentor = getattr(sys.modules.get(CONTRIB), "PymongoInstrumentor", None)
    return instrumentor is not None and bool(instrumentor().is_instrumented_by_opentelemetry)
