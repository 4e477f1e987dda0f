"""The arguments of one ``instrument()``, and how they differ from those of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pymongo_resilience.config import BY_NAME, Config, load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.events import Listener
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import PREFIX, shown
from pymongo_resilience.rules.strategy import RetryStrategy

Hook = Callable[[Any, Any], object]
"""Called with a span and an event of pymongo."""
HOOKS = ("request_hook", "response_hook", "failed_hook")
OBJECTS = ("strategy", "tracer_provider", "meter_provider", *HOOKS)
ARGUMENTS = ("config", "options", "policies", "listeners", *OBJECTS)
"""The arguments of ``instrument()``. OpenTelemetry's loader passes none of them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one ``instrument()``. Immutable, so thread- and task-safe."""

    config: Config
    source: str
    """Where the configuration came from, such as ``code, file resilience.toml``."""
    listeners: tuple[Listener, ...] = ()
    strategy: RetryStrategy | None = None
    tracer_provider: Any = None
    meter_provider: Any = None
    request_hook: Hook | None = None
    response_hook: Hook | None = None
    failed_hook: Hook | None = None

    def differences(self, args: Settings) -> list[str]:
        """Return a description of each value that differs between these settings and ``args``."""
        names = [each.name for each in fields(self.config)]
        places: list[tuple[str, Any, Any]] = [(name, self.config, args.config) for name in names]
        places += [(name, self, args) for name in ("listeners", *OBJECTS)]
        descriptions = []
        for name, mine, theirs in places:
            one, other = getattr(mine, name), getattr(theirs, name)
            if one is not other and one != other:
                ours, others = _text(one), _text(other)
                others = "another object of the same type" if ours == others else others
                descriptions.append(f"{name}: {ours} is active, but {others} was given")
        return descriptions


def settings_of(args: Mapping[str, Any], *, tolerant: bool) -> Settings:
    """Return the settings for the arguments of ``instrument()``.

    ``tolerant`` is explained at ``load``.

    Raises:
        ConfigurationError: If an option is invalid.
    """
    code = args.get("config") or args.get("options") or None
    loaded = load(code=code, tolerant=tolerant)
    if loaded.ignored:
        problems = ConfigurationError(loaded.ignored)
        logger.error("%s\n  the defaults of these options are used instead", problems)
    if loaded.overridden:
        logger.info(
            "arguments of instrument() take precedence over %s", ", ".join(loaded.overridden)
        )
    config, sources = loaded.config, set(loaded.sources.values())
    places = sorted(sources, key=lambda each: not each.startswith(PREFIX))
    named = [f"{'variable' if each.startswith(PREFIX) else 'file'} {each}" for each in places]
    source = ", ".join([*(["code"] if code else []), *named]) or "defaults"
    if args.get("policies") is not None:
        config = replace(config, policies=args["policies"])
    objects = {name: args.get(name) for name in OBJECTS}
    if loaded.sources.get("strategy") == BY_NAME["strategy"].variable:
        # The variable is the operators' emergency switch, so it also replaces an object.
        objects["strategy"] = None
    return Settings(config, source, tuple(args.get("listeners") or ()), **objects)


def _text(value: object) -> str:
    """Return a value as text. For objects, only their type, because their text may be
    confidential.
    """
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple) and not all(isinstance(each, str) for each in value):
        return f"[{', '.join(type(each).__name__ for each in value)}]"
    if isinstance(value, (str, int, float, tuple, dict)):
        return shown(value)
    return getattr(value, "__name__", None) or type(value).__name__
