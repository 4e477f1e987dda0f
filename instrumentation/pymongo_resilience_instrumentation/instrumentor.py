"""``instrument()`` and ``uninstrument()``, called from code or by OpenTelemetry's loader."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import pymongo
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # not in __all__

from pymongo_resilience import enabled_flag, events
from pymongo_resilience._version import __version__
from pymongo_resilience.client_status import ClientStatus, Readiness, ServerVerdict
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation.patches import CLIENTS, Patches
from pymongo_resilience_instrumentation.public_api import client_setup, readiness, statuses
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection import selection_explained
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.settings import ARGUMENTS, Settings, settings_of
from pymongo_resilience_instrumentation.telemetry import client_tracing, transaction_spans
from pymongo_resilience_instrumentation.timeouts.command_limits import warn_of_ignored_options
from pymongo_resilience_instrumentation.transactions.retry_transaction import retry_transaction

from . import deferred, driver, forks, self_check

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient
    from pymongo_resilience_instrumentation.driver.protocols import ReadPreference

SUPPORTED = ("pymongo >= 4.19, < 5",)
NEWEST_TESTED = (4, 20)
"""The newest minor version of pymongo that all tests were run with."""
ACTIVE_PATCHES = (
    "instrument() was called before with other arguments, which stay active. To replace them, call "
    "instrument(..., replace=True)"
)


class PymongoResilienceInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # untyped upstream
    """The instrumentor of this process. Thread-safe: a lock serializes turning on and off."""

    _runtime: Runtime | None = None
    """None while the library is off."""
    _patches: Patches | None = None
    _explicit = False
    """True if the application itself called ``instrument()``."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return SUPPORTED

    def instrument(self, **kwargs: Any) -> None:
        """Implementation of ``pymongo_resilience.instrument``.

        A call without arguments, as by OpenTelemetry's loader, is implicit: an explicit call takes
        precedence over it, and errors are logged instead of raised, so that the application starts.
        """
        explicit = kwargs.pop("explicit", False) or any(
            kwargs.get(name) is not None for name in ARGUMENTS
        )
        with forks.switching:
            if self._runtime is not None and not explicit:
                logger.info(
                    "pymongo-resilience is on already, so the call by OpenTelemetry's loader has "
                    "no effect"
                )
                return
            try:
                self._switch(settings_of(kwargs, tolerant=not explicit), kwargs)
            except ConfigurationError as error:
                if explicit:
                    raise
                # OpenTelemetry's loader made the call. A wrong setting must not keep the
                # application from starting.
                logger.error(  # noqa: TRY400 - no traceback
                    "%s\n  pymongo-resilience stays off: correct the values above and restart",
                    error,
                )
            else:
                self._explicit = explicit

    def uninstrument(self, **kwargs: Any) -> None:
        with forks.switching:
            super().uninstrument(**kwargs)

    def _switch(self, settings: Settings, kwargs: dict[str, Any]) -> None:
        """Turn the library on or off, or replace the active settings."""
        earlier = self._runtime
        if earlier is not None:
            differences = earlier.settings.differences(settings)
            # Modules of one application may each call instrument() with the same arguments.
            if not differences:
                return
            if self._explicit and not kwargs.get("replace"):
                raise ConfigurationError([ACTIVE_PATCHES, *differences])
        if not settings.config.enabled:
            logger.info(
                "pymongo-resilience %s stays off, because enabled=False (configuration from %s)",
                __version__,
                settings.source,
            )
            if earlier is not None:
                super().uninstrument()
            return
        refusal = self_check.refusal()
        if refusal is not None:
            raise ConfigurationError([refusal])
        state = self_check.check(driver.private_names.parts())
        if state is State.OFF:
            return
        if state is State.ALL and pymongo.version_tuple[:2] > NEWEST_TESTED:
            logger.warning(
                "pymongo %s is newer than the versions that pymongo-resilience %s was tested with. "
                "It has every name that the library needs, so everything is on, but its behavior "
                "may differ. Upgrade pymongo-resilience, or pin pymongo<%d.%d",
                pymongo.version,
                __version__,
                NEWEST_TESTED[0],
                NEWEST_TESTED[1] + 1,
            )
        self_check.report_missing(
            driver.private_names.parts_of_inserts(),
            "inserts without a transaction number",
            "a retried insert_one may raise DuplicateKeyError for its own document",
        )
        runtime = Runtime(settings, earlier, state)
        if earlier is not None:
            # Only now, because nothing can refuse the replacement any more.
            super().uninstrument()
        # OpenTelemetry's check of dependencies takes 5 ms. Skip it if the version is supported;
        # otherwise it reports the problem.
        supported = (4, 19) <= pymongo.version_tuple[:2] < (5, 0)
        super().instrument(**{"skip_dep_check": supported, **kwargs, "runtime": runtime})

    def _instrument(self, **kwargs: Any) -> None:
        """Apply all patches, or none, so that the next call starts from scratch."""
        runtime: Runtime = kwargs["runtime"]
        try:
            self._apply_patches(runtime)
        except BaseException:
            # Remove what was already applied: half of the patches were never tested.
            self._uninstrument()
            raise

    def _apply_patches(self, runtime: Runtime) -> None:
        config, strategy = runtime.config, runtime.settings.strategy
        self._runtime = runtime
        self._patches = Patches()
        self._patches.apply(runtime)
        if runtime.telemetry.gauges is not None:
            runtime.telemetry.gauges.show(runtime.clients, pools=runtime.state is State.ALL)
        forks.watch(runtime)
        enabled_flag.current = runtime.enabled_flag
        events.outlet.connect(runtime.telemetry)
        # Only now that every patch is in place, so that no operation sees only some of them.
        runtime.enabled_flag.turn(on=True)
        logger.info(
            "pymongo-resilience %s is on: pymongo %s, strategy %s, timeout %s, "
            "configuration from %s",
            __version__,
            pymongo.version,
            config.strategy if strategy is None else type(strategy).__name__,
            "none" if config.timeout_ms is None else f"{config.timeout_ms} ms",
            runtime.settings.source,
        )
        if runtime.state is State.ALL:
            _reach_existing_clients(runtime)

    def status(self, client: AnyClient) -> ClientStatus:
        _check_client(client, "status")
        return statuses.status(client, self._runtime)

    def readiness(
        self, client: AnyClient, read_preference: ReadPreference | None, grace: float
    ) -> Readiness:
        _check_client(client, "readiness")
        return readiness.readiness(client, read_preference, grace, self._runtime)

    def explain_selection(
        self, client: AnyClient, read_preference: ReadPreference | None, *, writes: bool
    ) -> tuple[ServerVerdict, ...]:
        _check_client(client, "explain_selection")
        breakers = {} if self._runtime is None else self._runtime.breakers_of(client)
        return selection_explained.explain_selection(
            client, read_preference, breakers, writes=writes
        )

    def retry_transaction(self, client: AnyClient, options: dict[str, Any]) -> Callable[..., Any]:
        _check_client(client, "retry_transaction")
        return retry_transaction(client, options)

    def _uninstrument(self, **_: Any) -> None:
        # First of all: from here on, the wrappers pass calls through, even if their removal is
        # interrupted.
        enabled_flag.current.turn(on=False)
        events.outlet.connect(None)
        forks.watch(None)
        transaction_spans.end_all()
        deferred.run_deferred()
        deferred.do_not_run_at_exit()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            for client in runtime.clients.living():
                driver.clients.publish_commands(client, publish=False)
            if runtime.telemetry.gauges is not None:
                runtime.telemetry.gauges.show(None)
        if self._patches is not None:
            self._patches.remove()
            self._patches = None
            # Monitors of existing clients must not keep the library's shorter intervals.
            driver.monitors.restore_check_frequency()


def _check_client(client: object, function: str) -> None:
    if not isinstance(client, CLIENTS):
        raise TypeError(
            f"{function}() takes a MongoClient or an AsyncMongoClient, "
            f"not an object of type {type(client).__name__}"
        )


def _reach_existing_clients(runtime: Runtime) -> None:
    count = 0
    for client in driver.clients.existing_clients():
        warn_of_ignored_options(client)
        client_tracing.keep_for_existing(client)
        count += not client_setup.carry_over(runtime, client)
    if count:
        logger.warning(
            "%d client%s created before instrument(), and only %soperation spans and durations "
            "work for such clients. To get command spans, server states and pool metrics as well, "
            "call instrument() before creating clients",
            count,
            " was" if count == 1 else "s were",
            "retries, " if runtime.owns_retries else "",
        )


# Create the singleton under the import lock, because two threads may turn the library on at once.
PymongoResilienceInstrumentor()
