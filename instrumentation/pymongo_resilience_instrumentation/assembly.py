"""What one ``instrument()`` was given, how that differs from what another one was given, and the
Runtime that its options ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from pymongo_resilience import enabled_flag
from pymongo_resilience._version import __version__
from pymongo_resilience.config import ALL, BY_DATABASE, OFF, PEAK_EWMA, TOKENS
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.option_types import PREFIX, shown
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.rules.events import Broadcast, EventLog
from pymongo_resilience.rules.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.retry_rules import RetryRules
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience_instrumentation.clients.by_client import Budgets, ByClient
from pymongo_resilience_instrumentation.clients.client_registry import Clients
from pymongo_resilience_instrumentation.clients.closings import ClientClock, Closings
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.telemetry.client_tracing import Warnings
from pymongo_resilience_instrumentation.telemetry.command_spans import CommandSpans
from pymongo_resilience_instrumentation.telemetry.decisions import CallLog, Reported
from pymongo_resilience_instrumentation.telemetry.metrics import DriverMetrics, OperationMetrics
from pymongo_resilience_instrumentation.telemetry.operation_spans import OperationSpans
from pymongo_resilience_instrumentation.telemetry.transaction_spans import TransactionSpans
from pymongo_resilience_instrumentation.timeouts.command_limits import DeprecatedOptions
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.config import Config, Loaded
    from pymongo_resilience.rules.events import Listener
    from pymongo_resilience.rules.strategy import RetryStrategy
    from pymongo_resilience_instrumentation.selection.refusals import ClientBreakers, ClientShedders
    from pymongo_resilience_instrumentation.selection.selector import Selectors
    from pymongo_resilience_instrumentation.telemetry.command_spans import Hook

SCOPE = "pymongo_resilience"
ANY_STRATEGY = NAMED["fast_fail"]
"""For ``"driver"``: the driver's own loop decides, and no strategy is ever asked."""


OBJECTS = (
    "strategy",
    "tracer_provider",
    "meter_provider",
    "request_hook",
    "response_hook",
    "failed_hook",
)
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


def meter_of(provider: Any) -> metrics.Meter:
    return metrics.get_meter(SCOPE, __version__, provider)


def assemble(settings: Settings, earlier: Runtime | None, state: State) -> Runtime:
    """What one ``instrument()`` needs; ``earlier`` leaves it the clients that exist."""
    drivers = settings.config.strategy == "driver" and settings.strategy is None
    owns_retries = state is State.ALL and not drivers
    config, ours = settings.config, enabled_flag.EnabledFlag()
    operation_spans = command_spans = transaction_spans = None
    operation_metrics = driver_metrics = None
    hearing: list[Listener] = [CallLog()]
    if config.traces:
        tracer = trace.get_tracer(SCOPE, __version__, settings.tracer_provider)
        operation_spans, command_spans = (
            OperationSpans(tracer),
            CommandSpans(
                tracer,
                config.command_spans,
                settings.request_hook,
                settings.response_hook,
                settings.failed_hook,
            ),
        )
        transaction_spans = TransactionSpans(tracer)
        hearing.append(operation_spans)
    if config.metrics:
        meter, everything = meter_of(settings.meter_provider), config.metrics == ALL
        operation_metrics = OperationMetrics(
            meter, by_collection=config.metrics != BY_DATABASE, everything=everything
        )
        driver_metrics = DriverMetrics(meter, everything=everything)
        hearing.append(operation_metrics)
    rules = _rules(config, settings.strategy)
    closings = Closings() if earlier is None else earlier.closings
    clock = ClientClock(closings)
    reported = Reported([EventLog(), *settings.listeners])
    listener = Broadcast([*hearing, reported], ours=True)
    parts = (
        RetryRules(
            max_retries=config.max_retries,
            base_backoff=config.base_backoff_ms / 1000,
            max_backoff=config.max_backoff_ms / 1000,
        ),
        clock,
        listener,
    )
    breakers = _breakers(config, clock, listener) if owns_retries else None
    shedding = _shedding(config, clock, rules) if owns_retries else None
    selectors = _selectors(config, breakers, ours, clock, counts_in_flight=owns_retries)
    return Runtime(
        config=config,
        rules=rules,
        timeouts=TimeoutRules(rules, config, csot_available=state is State.ALL),
        deprecated=DeprecatedOptions(config.timeout_ms),
        executor=Executor(*parts),
        async_executor=AsyncExecutor(*parts),
        clients=Clients() if earlier is None else earlier.clients,
        budgets=Budgets(
            config.retry_budget if owns_retries else OFF,
            clock,
            chosen=None if earlier is None else earlier.budgets.chosen,
        ),
        breakers=breakers,
        shedding=shedding,
        selectors=selectors,
        enabled_flag=ours,
        operation_spans=operation_spans,
        command_spans=command_spans,
        transaction_spans=transaction_spans,
        warnings=Warnings(),
        operation_metrics=operation_metrics,
        driver_metrics=driver_metrics,
        closings=closings,
        state=state,
        owns_retries=owns_retries,
        slow_seconds=None if config.slow_ms is None else config.slow_ms / 1000,
    )


def _breakers(config: Config, clock: Clock, listener: Listener) -> ByClient[ClientBreakers] | None:
    if config.circuit_breaker == "off":
        return None
    from pymongo_resilience.breakers import BreakerSettings  # noqa: PLC0415 - off by default
    from pymongo_resilience_instrumentation.selection.refusals import ClientBreakers  # noqa: PLC0415 - the same

    settings = BreakerSettings(
        failure_rate=config.circuit_breaker_failure_rate,
        window=config.circuit_breaker_window_s,
        minimum_calls=config.circuit_breaker_minimum_calls,
        open_for=config.circuit_breaker_open_s,
    )
    always = config.circuit_breaker == "always"
    return ByClient(lambda client: ClientBreakers(client, settings, clock, listener, always=always))


def _shedding(
    config: Config, clock: Clock, rules: NamespaceRules
) -> ByClient[ClientShedders] | None:
    if not config.load_shedding:
        return None
    from pymongo_resilience_instrumentation.selection.refusals import ClientShedders  # noqa: PLC0415 - off by default

    return ByClient(lambda _: ClientShedders(clock, rules))


def _selectors(
    config: Config,
    breakers: ByClient[ClientBreakers] | None,
    ours: enabled_flag.EnabledFlag,
    clock: Clock,
    *,
    counts_in_flight: bool,
) -> Selectors | None:
    counting = counts_in_flight and config.server_selection != "driver"
    if not counting and breakers is None:
        return None
    from pymongo_resilience_instrumentation.selection.selector import Selectors  # noqa: PLC0415 - pymongo mostly selects

    latencies = None
    if counting and config.server_selection == PEAK_EWMA:
        from pymongo_resilience.server_choice.server_load import PeakEwma  # noqa: PLC0415 - as the selector

        latencies = partial(PeakEwma, clock)
    return Selectors(ours, breakers, latencies, counting=counting)


def _rules(config: Config, strategy: RetryStrategy | None) -> NamespaceRules:
    if strategy is not None:
        return NamespaceRules(strategy, config.policies)
    if config.strategy in NAMED:
        return NamespaceRules(NAMED[config.strategy], config.policies)
    for said, what in (
        (config.policies, "the policies have"),
        (config.retry_budget == TOKENS, "adaptive retries have"),
        (config.circuit_breaker != "off", "circuit breakers have"),
        (config.load_shedding, "load shedding has"),
        (config.server_selection != "driver", "server_selection has"),
    ):
        if said:
            logger.warning("strategy=driver: pymongo retries by itself, %s no effect", what)
    return NamespaceRules(ANY_STRATEGY, {})
