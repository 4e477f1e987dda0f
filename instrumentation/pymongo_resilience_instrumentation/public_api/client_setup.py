"""Wraps clients' constructors.

A new client gets the library's listeners, a retry budget and a selector, and the library's own
options are removed from its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import ConfigurationError

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.strategy import MongoDB
from pymongo_resilience_instrumentation import deferred, driver, self_check
from pymongo_resilience_instrumentation.clients import client_options
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor, Wrapper
from pymongo_resilience_instrumentation.limits import NO_DEADLINE
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection.client_limits import ServerSelector
from pymongo_resilience_instrumentation.telemetry import client_tracing
from pymongo_resilience_instrumentation.telemetry.client_tracing import Tracing
from pymongo_resilience_instrumentation.telemetry.listeners import Commands, Heartbeats
from pymongo_resilience_instrumentation.telemetry.pool_metrics import Pools
from pymongo_resilience_instrumentation.timeouts.command_limits import warn_of_ignored_options

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient

T = TypeVar("T")

FOLDER = str(Path(__file__).parents[1])
"""The folder of this package."""


class _Construction(Entered):
    """One call of a client's constructor."""

    __slots__ = ("arguments", "looks_up")

    def __init__(
        self, client: AnyClient, arguments: client_options.Arguments, *, looks_up: bool
    ) -> None:
        super().__init__(client)
        self.arguments = arguments
        self.looks_up = looks_up
        """True if the hosts come from SRV records, so that the lookup is retried if name servers
        fail.
        """


class Constructor(Interceptor):
    """Wraps a client's ``__init__``: adds listeners, and removes the library's own options."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_specification = isinstance(runtime.rules.strategy, MongoDB)

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:  # noqa: ARG002 - always active
        # Active even while the library is off, so that an application that passes the options can
        # start.
        return super().wrapper(EnabledFlag(on=True), asynchronous)

    def enter(self, all_args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Construction:
        runtime, client = self._runtime, all_args[0]
        (args, kwargs), adaptive = client_options.take(all_args[1:], kwargs)
        kwargs, tracing_option = client_tracing.take(kwargs)
        looks_up = False
        if runtime.enabled_flag.on:
            if runtime.owns_retries:
                client_options.refuse_negative_timeout(args, kwargs)
                looks_up = client_options.has_srv(args, kwargs) and not self._by_specification
            _configure(runtime, client, adaptive, tracing_option)
        return _Construction(client, (args, kwargs), looks_up=looks_up)

    def send(
        self, construction: _Construction, original: Function, *_given: Any, **_kwargs: Any
    ) -> None:
        args, kwargs = construction.arguments
        construct = partial(original, construction.instance, *args, **kwargs)
        if construction.looks_up:
            _look_up(self._runtime, construction.instance, construct)
        else:
            construct()

    def succeeded(self, construction: _Construction, result: T) -> T:
        if self._runtime.enabled_flag.on:
            driver.clients.hide_frames(construction.instance, FOLDER)
            warn_of_ignored_options(construction.instance)
        return result


def _look_up(runtime: Runtime, client: AnyClient, construct: Callable[[], None]) -> None:
    """Run the constructor for a mongodb+srv URI, and retry the DNS lookup.

    The lookup is retried until the configured timeout expires, or once without a timeout. An
    ``AsyncMongoClient`` does the lookup in its first operation, which is retried as a whole.
    """
    clock, timeout = runtime.executor.clock, (runtime.config.timeout_ms or 0) / 1000
    began, waited, attempts = clock.now(), 0.0, 0
    while True:
        # A clock that stands still, as in a test, must not keep this loop running.
        remaining = timeout - max(waited, clock.now() - began)
        try:
            with driver.csot.within(remaining) if timeout else NO_DEADLINE:
                # The lookup is the last step of the constructor of ``MongoClient``.
                construct()
        except ConfigurationError as error:
            # pymongo raises ConfigurationError if DNS does not answer the lookup for
            # ``mongodb+srv``.
            attempts += 1
            delay = backoff.controlled(attempts)
            end_of_wait = max(waited, clock.now() - began) + delay
            fits = end_of_wait < timeout if timeout else attempts == 1
            passes = driver.clients.lookup_may_succeed_later(error, has_deadline=bool(timeout))
            if not (fits and passes):
                raise
            clock.sleep(delay)
            waited += delay
            # The constructor has done everything except discovery, so only do that part again.
            construct = partial(driver.clients.begin_looking_for_servers, client)
        else:
            return


class FromOptions(Interceptor):
    """Wraps the method that uses a client's options: adds the library's listeners and selector.

    The client's options do not show them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        if driver.clients.listeners_of(args[0]):
            # Not with ``pymongo.monitoring.register()``, which cannot be undone.
            driver.clients.add_listeners(args[0])
            self._runtime.publish_commands(args[0])
        return Entered(args[0])

    def succeeded(self, entered: Entered, result: T) -> T:
        breakers = self._runtime.limits.of(entered.instance).breakers
        if breakers is not None:
            select = partial(ServerSelector, enabled_flag=self._runtime.enabled_flag)
            driver.clients.set_selector(entered.instance, partial(select, breakers=breakers))
        return result


def _configure(
    runtime: Runtime, client: AnyClient, adaptive: bool | None, tracing_option: Mapping[str, Any]
) -> None:
    """Store the client's options for the library, and the listeners that it gets."""
    refusal = self_check.refusal()
    if refusal is not None:
        # The process was monkey-patched after instrument(), which cannot be detected when it
        # happens.
        runtime.enabled_flag.turn(on=False)
        logger.error("%s. pymongo-resilience is off from now on", refusal)
        return
    # Spans may be open when the process exits.
    deferred.run_at_exit()
    if adaptive is not None:
        setattr(client, client_options.KEPT, adaptive)
    runtime.clients.of(client).limits = runtime.limits.of(client)
    tracing = client_tracing.settle(client, tracing_option, runtime.warn_once)
    driver.clients.keep_listeners(client, _listeners(runtime, client, tracing))


def carry_over(runtime: Runtime, client: AnyClient) -> bool:
    """Connect a client's listeners from an earlier ``instrument()`` to this one.

    Return False if a new client would get more than that.
    """
    state = runtime.clients.known(client)
    if state is None or state.limits is None:
        return False
    state.limits = runtime.limits.of(client)
    wanted = {
        type(each): each for each in _listeners(runtime, client, client_tracing.tracing_of(client))
    }
    for each in driver.clients.listeners_of(client):
        made = wanted.pop(type(each), None)
        if made is None:
            # The new configuration does not need this listener, so turn it off.
            each.enabled_flag = EnabledFlag()
        else:
            # Change the listener in place, because pymongo already references it.
            vars(each).update(vars(made))
    driver.clients.publish_commands(client, publish=False)
    runtime.publish_commands(client)
    return not wanted


def _listeners(runtime: Runtime, client: AnyClient, tracing: Tracing) -> list[Any]:
    """Return the listeners for a client: only those that are needed, because each one costs
    time.
    """
    spans = runtime.telemetry.command_spans if tracing.enabled else None
    metrics = runtime.telemetry.driver_metrics
    flag = runtime.enabled_flag
    chosen: list[Any] = []
    # If pymongo's own loop decides, only a command's event shows which server it was sent to.
    measures = metrics is not None and not runtime.owns_retries
    if spans is not None or measures or runtime.describes_slow_commands:
        contrib = spans is not None and client_tracing.contrib_is_active()
        if contrib:
            runtime.warn_once(client_tracing.CONTRIB_IS_ACTIVE)
        sanitizes = tracing.sanitizes(runtime.config.query_text)
        chosen.append(Commands(flag, spans, tracing, sanitizes, contrib))
    if metrics is not None:
        chosen.append(Heartbeats(flag, metrics))
        if metrics.wait_time is not None:
            chosen.append(Pools(flag, runtime.clients.of(client).attributes, metrics))
    # There are no server or topology listeners. With one, pymongo starts another thread for each
    # client: ``close()`` takes 0.497 s instead of 0.001 s, and an async client can no longer be
    # created outside of a running event loop. ``client.topology_description`` contains what these
    # listeners would report.
    return chosen
