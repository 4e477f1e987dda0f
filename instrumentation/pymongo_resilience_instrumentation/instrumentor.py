"""``instrument()`` and ``uninstrument()``, from code or from OpenTelemetry's loader."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pymongo
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # not in __all__

from pymongo_resilience import enabled_flag
from pymongo_resilience._version import __version__
from pymongo_resilience.config import BY_NAME, apply_switches, load, without_switched
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation.patches import CLIENTS, Patches
from pymongo_resilience_instrumentation.public_api import client_setup
from pymongo_resilience_instrumentation.runtime import Runtime, meter_of
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.settings import ARGUMENTS, OBJECTS, Settings, source_of
from pymongo_resilience_instrumentation.telemetry import client_tracing
from pymongo_resilience_instrumentation.telemetry.server_gauges import (
    OF_POOLS,
    ServerGauges,
    server_gauges,
)
from pymongo_resilience_instrumentation.transactions.repeated_transactions import RetryTransaction

from . import deferred, driver, forks, self_check

if TYPE_CHECKING:
    from pymongo_resilience.client_status import ClientStatus, ServerVerdict


SUPPORTED = ("pymongo >= 4.19, < 5",)
CHECKS = ("skip_dep_check", "raise_exception_on_conflict")
"""What OpenTelemetry's own ``instrument()`` takes."""
IN_FORCE = (
    "instrument() was called before, with other arguments, and those stay in force; "
    "instrument(..., replace=True) puts these in their place"
)
_LOCK = threading.RLock()
"""Held while the library is switched on or off."""


class PymongoResilienceInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """One for the process. Thread-safe: switched on and off by one at a time."""

    _runtime: Runtime | None = None
    _patches: Patches | None = None
    _gauges: ServerGauges | None = None
    _settings: Settings | None = None
    """Those in force; None while the library is off."""
    _explicit = False
    """Whether they are the application's own."""
    _state = State.OFF
    """What the installed pymongo allows."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return SUPPORTED

    def instrument(self, **kwargs: Any) -> None:
        """Do what :func:`pymongo_resilience.instrument` says. A call without any argument, as by
        OpenTelemetry's loader, is the implicit one that an explicit one wins over."""
        explicit = kwargs.pop("explicit", False) or any(
            kwargs.get(name) is not None for name in ARGUMENTS
        )
        replaces = kwargs.pop("replace", False)
        with _LOCK:
            if self._settings is None:
                self._start(kwargs, explicit=explicit)
            elif explicit:
                self._start_again(kwargs, replaces=replaces or not self._explicit)
            else:
                logger.info("pymongo-resilience is on already: the loader's call changes nothing")

    def uninstrument(self, **kwargs: Any) -> None:
        with _LOCK:
            super().uninstrument(**kwargs)

    def _start(self, kwargs: dict[str, Any], *, explicit: bool) -> None:
        settings = _settings(kwargs, explicit=explicit)
        if settings is None:
            return
        if not settings.config.enabled:
            _log_off(settings)
            return
        refusal = self_check.refusal()
        if refusal is None:
            self._state = self_check.check(driver.private_names.parts())
            if self._state is State.OFF:
                return
            # OpenTelemetry's check reads what is installed, for 5 ms: left to it is the refusal.
            checks = {"skip_dep_check": (4, 19) <= pymongo.version_tuple[:2] < (5, 0)}
            checks |= {name: kwargs[name] for name in CHECKS if name in kwargs}
            super().instrument(settings=settings, **checks)
            self._explicit = explicit
        elif explicit:
            raise ConfigurationError([refusal])
        else:
            _stay_off(ConfigurationError([refusal]))

    def _start_again(self, kwargs: dict[str, Any], *, replaces: bool) -> None:
        settings = _settings(kwargs, explicit=True)
        if settings is None or self._settings is None:
            return
        differences = self._settings.differences(settings)
        if differences and not replaces:
            raise ConfigurationError([IN_FORCE, *differences])
        self._explicit = True
        if not settings.config.enabled:
            _log_off(settings)
            super().uninstrument()
        elif differences:
            refusal = self_check.refusal()
            if refusal is not None:
                raise ConfigurationError([refusal])
            self._put_on(settings, self._runtime)

    def _instrument(self, **kwargs: Any) -> None:
        self._put_on(kwargs["settings"], None)

    def _put_on(self, settings: Settings, earlier: Runtime | None) -> None:
        """``earlier`` is taken off once its replacement can no longer be refused."""
        runtime = Runtime(settings, earlier, self._state)
        if earlier is not None:
            self._uninstrument()
        try:
            self._act(settings, runtime)
        except BaseException:
            # Off as a whole: neither the one nor the other, and the next call begins anew.
            self._uninstrument()
            self._is_instrumented_by_opentelemetry = False
            raise

    def _act(self, settings: Settings, runtime: Runtime) -> None:
        config = settings.config
        self._runtime, self._settings = runtime, settings
        self._patches = Patches()
        self._patches.apply(runtime)
        if config.metrics:
            provider = settings.meter_provider
            self._gauges = server_gauges(meter_of(provider), provider)
            left_out = () if runtime.state is State.ALL else OF_POOLS
            self._gauges.show(runtime.clients, runtime.breakers, left_out)
        forks.watch(runtime)
        enabled_flag.current = runtime.enabled_flag
        runtime.enabled_flag.turn(on=True)
        _log_on(settings)
        if runtime.state is State.ALL:
            _reach_existing_clients(runtime)

    def status(self, client: object) -> ClientStatus:
        from pymongo_resilience_instrumentation.public_api import statuses  # noqa: PLC0415 - for who asks

        _check_client(client, "status")
        return statuses.status(client, self._runtime)

    def explain_selection(
        self, client: object, read_preference: object, *, writes: bool
    ) -> tuple[ServerVerdict, ...]:
        from pymongo_resilience_instrumentation.selection import selection_explained  # noqa: PLC0415 - for who asks

        _check_client(client, "explain_selection")
        breakers = {} if self._runtime is None else self._runtime.breakers_of(client)
        return selection_explained.explain_selection(
            client, read_preference, breakers, writes=writes
        )

    def retry_transaction(self, client: object, options: dict[str, Any]) -> RetryTransaction:
        from pymongo_resilience_instrumentation.transactions import repeated_transactions  # noqa: PLC0415 - for who asks

        _check_client(client, "retry_transaction")

        def in_force() -> Runtime | None:
            runtime = self._runtime
            return runtime if runtime is not None and runtime.enabled_flag.on else None

        return repeated_transactions.RetryTransaction(client, options, in_force)

    def _uninstrument(self, **_: Any) -> None:
        enabled_flag.current.turn(on=False)
        forks.watch(None)
        deferred.run_deferred()
        deferred.run_at_exit(False)
        self._runtime = self._settings = None
        if self._gauges is not None:
            self._gauges.show(None)
            self._gauges = None
        if self._patches is not None:
            self._patches.remove()
            self._patches = None


def _renew_lock() -> None:
    """In a forked child: a thread that is no more may have held it."""
    global _LOCK  # noqa: PLW0603 - one for the process
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_renew_lock)


def _check_client(client: object, function: str) -> None:
    if not isinstance(client, CLIENTS):
        raise TypeError(
            f"{function}() takes a MongoClient or an AsyncMongoClient, "
            f"not an object of type {type(client).__name__}"
        )


def _settings(kwargs: Mapping[str, Any], *, explicit: bool) -> Settings | None:
    """None where OpenTelemetry's loader finds a wrong variable, which must not keep the
    application from starting; raises ConfigurationError where the application calls."""
    config, source = kwargs.get("config"), "code"
    overridden: list[str] = []
    if config is None:
        try:
            loaded = load(tolerant=not explicit)
        except ConfigurationError as error:
            if explicit:
                raise
            _stay_off(error)
            return None
        if loaded.ignored:
            problems = ConfigurationError(loaded.ignored)
            logger.error("%s\n  the defaults are used instead", problems)
        config, source = loaded.config, source_of(loaded)
        options = without_switched(kwargs.get("options") or {}, loaded)
        if options:
            config, source = replace(config, **options), f"code, {source}"
            overridden = sorted(loaded.sources[each] for each in options if each in loaded.sources)
    else:
        loaded = apply_switches(config)
        config = loaded.config
        if loaded.sources:
            source = f"code, {source_of(loaded)}"
        overridden = [*loaded.ignored]
    if overridden:
        logger.info("code overrides %s", ", ".join(overridden))
    switched = loaded.sources.get("strategy") == BY_NAME["strategy"].variable
    if switched and kwargs.get("strategy") is not None:
        # The emergency switch wins over an object as well.
        kwargs = {**kwargs, "strategy": None}
    policies = kwargs.get("policies")
    if policies is not None:
        config = replace(config, policies=policies)
    objects = {name: kwargs.get(name) for name in OBJECTS}
    return Settings(config, source, tuple(kwargs.get("listeners") or ()), **objects)


def _log_on(settings: Settings) -> None:
    config, strategy = settings.config, settings.strategy
    logger.info(
        "pymongo-resilience %s is on: pymongo %s, strategy %s, timeout %s, configuration from %s",
        __version__,
        pymongo.version,
        config.strategy if strategy is None else type(strategy).__name__,
        "none" if config.timeout_ms is None else f"{config.timeout_ms} ms",
        settings.source,
    )


def _log_off(settings: Settings) -> None:
    logger.info(
        "pymongo-resilience %s stays off: enabled=False, configuration from %s",
        __version__,
        settings.source,
    )


def _stay_off(error: ConfigurationError) -> None:
    logger.error("%s\n  pymongo-resilience stays switched off", error)


def _reach_existing_clients(runtime: Runtime) -> None:
    count = 0
    for client in driver.clients.existing_clients():
        runtime.deprecated.register(client)
        client_tracing.keep_for_existing(client)
        count += not client_setup.carry_over(runtime, client)
    if count:
        logger.warning(
            "%d client%s made before instrument(): covered by %soperation spans and durations; "
            "command spans, server states and pools need a new client",
            count,
            "" if count == 1 else "s",
            "retries, " if runtime.owns_retries else "",
        )


# Made under the import's lock: two threads may switch on at once.
PymongoResilienceInstrumentor()
