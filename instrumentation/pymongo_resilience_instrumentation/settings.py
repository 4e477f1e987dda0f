"""What one ``instrument()`` was given, and how that differs from what another one was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pymongo_resilience.config import Config, Loaded
from pymongo_resilience.events import Listener
from pymongo_resilience.option_types import PREFIX, shown
from pymongo_resilience.rules.strategy import RetryStrategy
from pymongo_resilience_instrumentation.telemetry.command_spans import Hook

HOOKS = ("request_hook", "response_hook", "failed_hook")
OBJECTS = ("strategy", "tracer_provider", "meter_provider", *HOOKS)
ARGUMENTS = ("config", "policies", "listeners", *OBJECTS)
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

    @classmethod
    def of(cls, config: Config, source: str, arguments: Mapping[str, Any]) -> Settings:
        return cls(
            config,
            source,
            tuple(arguments.get("listeners") or ()),
            **{name: arguments.get(name) for name in OBJECTS},
        )

    def differences(self, given: Settings) -> list[str]:
        """Each value that ``given`` has and these settings have not, with both."""
        return [
            f"{name}: {_pair(mine, theirs)}"
            for (name, mine), (_, theirs) in zip(self._values(), given._values(), strict=True)
            if mine is not theirs and mine != theirs
        ]

    def _values(self) -> Iterator[tuple[str, Any]]:
        for option in fields(self.config):
            yield option.name, getattr(self.config, option.name)
        yield "listeners", self.listeners
        for name in OBJECTS:
            yield name, getattr(self, name)


def source_of(loaded: Loaded) -> str:
    """For example ``variable PYMONGO_RESILIENCE_TIMEOUT_MS, file resilience.toml``."""
    places = sorted(set(loaded.sources.values()), key=lambda each: not each.startswith(PREFIX))
    named = [f"{'variable' if each.startswith(PREFIX) else 'file'} {each}" for each in places]
    return ", ".join(named) or "defaults"


def _pair(mine: object, theirs: object) -> str:
    mine, theirs = _text(mine), _text(theirs)
    if mine == theirs:
        return f"{mine} is in force, another one of the same kind was given"
    return f"{mine} is in force, {theirs} was given"


def _text(value: object) -> str:
    """Objects by their types alone: what else their text has may be confidential."""
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple) and not all(isinstance(each, str) for each in value):
        return f"[{', '.join(type(each).__name__ for each in value)}]"
    if isinstance(value, (str, int, float, tuple, dict)):
        return shown(value)
    return getattr(value, "__name__", None) or type(value).__name__
