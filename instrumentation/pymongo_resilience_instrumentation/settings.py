"""What one ``instrument()`` was given, and how that differs from what another one was given."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pymongo_resilience.config import Config, Loaded
from pymongo_resilience.events import Listener
from pymongo_resilience.option_types import PREFIX, shown
from pymongo_resilience.rules.strategy import RetryStrategy
from pymongo_resilience_instrumentation.telemetry.command_spans import Hook

HOOKS = ("request_hook", "response_hook", "failed_hook")
OBJECTS = ("strategy", "tracer_provider", "meter_provider", *HOOKS)
ARGUMENTS = ("config", "options", "policies", "listeners", *OBJECTS)
"""What ``instrument()`` takes. OpenTelemetry's loader gives none of them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Immutable, so thread- and task-safe."""

    config: Config
    source: str
    """Where the configuration came from, in words."""
    listeners: tuple[Listener, ...] = ()
    strategy: RetryStrategy | None = None
    tracer_provider: Any = None
    meter_provider: Any = None
    request_hook: Hook | None = None
    response_hook: Hook | None = None
    failed_hook: Hook | None = None

    def differences(self, given: Settings) -> list[str]:
        """Each value that ``given`` has and these settings have not, with both."""
        names = [each.name for each in fields(self.config)]
        places: list[tuple[str, Any, Any]] = [(name, self.config, given.config) for name in names]
        places += [(name, self, given) for name in ("listeners", *OBJECTS)]
        found = []
        for name, mine, theirs in places:
            one, other = getattr(mine, name), getattr(theirs, name)
            if one is not other and one != other:
                ours, others = _text(one), _text(other)
                others = "another one of the same kind" if ours == others else others
                found.append(f"{name}: {ours} is in force, {others} was given")
        return found


def source_of(loaded: Loaded) -> str:
    """For example ``variable PYMONGO_RESILIENCE_TIMEOUT_MS, file resilience.toml``."""
    places = sorted(set(loaded.sources.values()), key=lambda each: not each.startswith(PREFIX))
    named = [f"{'variable' if each.startswith(PREFIX) else 'file'} {each}" for each in places]
    return ", ".join(named) or "defaults"


def _text(value: object) -> str:
    """Objects by their types alone: what else their text has may be confidential."""
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple) and not all(isinstance(each, str) for each in value):
        return f"[{', '.join(type(each).__name__ for each in value)}]"
    if isinstance(value, (str, int, float, tuple, dict)):
        return shown(value)
    return getattr(value, "__name__", None) or type(value).__name__
