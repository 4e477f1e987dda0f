"""Safe retries, deadlines and telemetry for pymongo.

This package is the engine and the public API. The engine makes every decision; it needs neither
pymongo nor OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

# No module of this package may have the name of a public function: if it were imported later, it
# would replace the function. So ``readiness`` uses ``ready_states``.
from pymongo_resilience._version import __version__
from pymongo_resilience.config import BY_NAME, Config, Options
from pymongo_resilience.errors import ConfigurationError, OperationTimeoutError, retry_info
from pymongo_resilience.option_types import TIMEOUT_MS, check_keywords, wrong_type
from pymongo_resilience.policies.blocks import override
from pymongo_resilience.policies.policy import Policy, PolicyFields, policy_from_keywords
from pymongo_resilience.rules.strategy import check_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from pymongo import AsyncMongoClient, MongoClient, WriteConcern
    from pymongo.read_concern import ReadConcern
    from pymongo.read_preferences import _ServerMode as ReadPreference  # pyright: ignore[reportPrivateUsage]  # pymongo's own annotations name no other class
    from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor

    from pymongo_resilience.client_status import ClientStatus, Readiness, ServerVerdict
    from pymongo_resilience.events import Listener
    from pymongo_resilience.strategies import RetryStrategy

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "Config",
    "ConfigurationError",
    "OperationTimeoutError",
    "Policy",
    "__version__",
    "bind",
    "explain_selection",
    "instrument",
    "override",
    "readiness",
    "retry_info",
    "retry_transaction",
    "status",
    "uninstrument",
]


def instrument(
    config: Config | None = None,
    *,
    policies: Mapping[str, Policy] | None = None,
    strategy: RetryStrategy | str | None = None,
    listeners: Sequence[Listener] = (),
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    request_hook: Callable[[Any, Any], object] | None = None,
    response_hook: Callable[[Any, Any], object] | None = None,
    failed_hook: Callable[[Any, Any], object] | None = None,
    replace: bool = False,
    **options: Unpack[Options],
) -> None:
    """Add retries, deadlines and telemetry to every MongoClient and AsyncMongoClient of the
    process.

    Clients that exist already get retries and operation spans; one warning names what only new
    clients get. If OpenTelemetry's loader has already turned the library on, this call reconfigures
    it. Calling it again with the same arguments has no effect.

    Thread-safe, but meant to be called at startup: an operation that is in progress while the
    configuration changes ends as it would with pymongo alone.

    Args:
        config: The configuration. Without one, ``Config.from_env`` is used.
        policies: Policies for namespaces, by patterns such as ``"shop.*"``. They replace those of
            the configuration. An ``override`` around an operation takes precedence over them.
        strategy: A retry strategy, or the name of one. It replaces the configuration's.
        listeners: Receive every retry decision, and every circuit breaker that opens or closes.
        tracer_provider: Defaults to OpenTelemetry's global one. Until the application sets one up,
            the library looks for it every 50 ms, so the SDK may be set up before or after this
            call.
        meter_provider: As ``tracer_provider``.
        request_hook: Called with a command's span and pymongo's event when the command starts. The
            first error that a hook raises is logged; it never reaches the operation.
        response_hook: As ``request_hook``, when the command has succeeded.
        failed_hook: As ``request_hook``, when the command has failed.
        replace: Replace the arguments of an earlier call.
        **options: Fields of ``Config`` by name, instead of ``config``.

    Raises:
        ConfigurationError: If an option or a policy is invalid, or if an earlier call had other
            arguments and ``replace`` is false.
        TypeError: If an argument has the wrong type or is unknown.
    """
    if config is not None and not isinstance(config, Config):
        expected = "a Config, as in Config(timeout_ms=20_000)"
        raise TypeError(wrong_type("instrument(): config", config, expected))
    check_keywords("instrument()", options, {**BY_NAME, **(instrument.__kwdefaults__ or {})})
    by_keyword: dict[str, Any] = {**options}
    if isinstance(strategy, str):
        by_keyword["strategy"], strategy = strategy, None
    if by_keyword and config is not None:
        names = ", ".join(by_keyword)
        raise TypeError(f"instrument() takes a Config or options by keyword, not both: {names}")
    if strategy is not None:
        check_strategy(strategy)
    for listener in listeners:
        if not callable(getattr(listener, "on_event", None)):
            raise TypeError(
                wrong_type("instrument(): a listener", listener, "an object with on_event(event)")
            )
    for name, provider, method in (
        ("tracer_provider", tracer_provider, "get_tracer"),
        ("meter_provider", meter_provider, "get_meter"),
    ):
        if provider is not None and not callable(getattr(provider, method, None)):
            raise TypeError(
                wrong_type(f"instrument(): {name}", provider, f"an object with {method}()")
            )
    hooks = {"request_hook": request_hook, "response_hook": response_hook}
    hooks["failed_hook"] = failed_hook
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise TypeError(wrong_type(f"instrument(): {name}", hook, "a function"))
    _instrumentor().instrument(
        explicit=True,
        replace=replace,
        config=config,
        options=by_keyword or None,
        policies=policies,
        strategy=strategy,
        listeners=listeners,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        **hooks,
    )


def uninstrument() -> None:
    """Remove every patch from pymongo. Wrappers that others put around ours stay and pass calls
    through.
    """
    _instrumentor().uninstrument()


def bind(target: T, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> T:
    """Return ``target`` with a policy: ``bind(orders, timeout_ms=500)``.

    Everything made from the result inherits the policy: ``with_options``, collections and
    sub-collections. If the result is bound again, the fields that the newer policy sets take
    precedence. The original is not changed.

    Thread- and task-safe, as the original is.

    Args:
        target: A collection or a database of pymongo, sync or async.
        policy: The policy.
        **fields: Fields of a ``Policy``, instead of ``policy``.

    Raises:
        TypeError: If ``target`` is neither a collection nor a database, or if both a policy and
            fields are given.
        ConfigurationError: If a field has an invalid value.
    """
    from pymongo_resilience_instrumentation import bound_policies  # noqa: PLC0415 - only public functions need the other half

    if policy is None:
        policy = policy_from_keywords("bind()", fields)
    elif not isinstance(policy, Policy):
        raise TypeError(wrong_type("bind(): policy", policy, "a Policy"))
    elif fields:
        raise TypeError(f"bind() takes a Policy or its fields, not both: {', '.join(fields)}")
    if not bound_policies.can_be_bound(target):
        raise TypeError(
            "bind() takes a collection or a database, "
            f"not an object of type {type(target).__name__}"
        )
    return bound_policies.carrying(target, policy)


def status(client: MongoClient[Any] | AsyncMongoClient[Any]) -> ClientStatus:
    """Return the current state of a MongoClient or AsyncMongoClient and its servers.

    Sends nothing and awaits nothing, for both kinds of client. Works for clients made before
    ``instrument()`` or without it, too. A client that has not connected yet reports only the
    addresses of its servers.

    Thread- and task-safe.

    Raises:
        TypeError: If ``client`` is not a client.
    """
    return _instrumentor().status(client)


def readiness(
    client: MongoClient[Any] | AsyncMongoClient[Any],
    read_preference: ReadPreference | None = None,
    *,
    grace_ms: int = 15_000,
) -> Readiness:
    """Return whether a client is ready to write and to read, why not, and since when.

    For readiness probes and health checks, with clients of both APIs. It sends nothing and does not
    wait: it uses what the client's monitors have found, and the circuit breakers. Thread- and
    task-safe if the application's own ``server_selector``, which it calls, is.

    Args:
        client: A MongoClient or an AsyncMongoClient.
        read_preference: A read preference of pymongo; by default that of the client.
        grace_ms: For how many milliseconds a client that was ready still counts as ready after it
            has lost its servers, for example during an election. The period does not apply if
            waiting cannot help, for example if a certificate has expired, or to a client that was
            never ready.

    Raises:
        TypeError: ``client`` is not a client, or ``read_preference`` is not a read preference.
        ConfigurationError: ``grace_ms`` is invalid.
    """
    if not TIMEOUT_MS.legal(grace_ms):
        raise ConfigurationError([TIMEOUT_MS.problem("grace_ms", grace_ms)])
    return _instrumentor().readiness(client, read_preference, grace_ms / 1000)


def explain_selection(
    client: MongoClient[Any] | AsyncMongoClient[Any],
    read_preference: ReadPreference | None = None,
    *,
    writes: bool = False,
) -> tuple[ServerVerdict, ...]:
    """Return a verdict for every server of a client: whether an operation could be sent to it now,
    and why.

    Sends nothing and awaits nothing, for both kinds of client. Calls the client's own
    ``server_selector``; thread- and task-safe if that selector is.

    Args:
        client: A MongoClient or an AsyncMongoClient.
        read_preference: One of pymongo's read preferences; by default the client's.
        writes: Explain the selection for a write, which ignores the read preference.

    Raises:
        TypeError: If ``client`` is not a client, or ``read_preference`` is not a read preference.
        pymongo.errors.ConfigurationError: If the maximum staleness is too small, or a server is too
            old.

    Source: Server Selection, "Server Selection Algorithm".
    """
    return _instrumentor().explain_selection(client, read_preference, writes=writes)


def retry_transaction(
    client: MongoClient[Any] | AsyncMongoClient[Any],
    *,
    read_concern: ReadConcern | None = None,
    write_concern: WriteConcern | None = None,
    read_preference: ReadPreference | None = None,
    max_commit_time_ms: int | None = None,
) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[P, T]]:
    """Return a decorator that runs a function in a transaction and retries it as with_transaction
    does.

    For example:

        @retry_transaction(client)
        def place(session, order):
            orders.insert_one(order, session=session)

        place({"n": 1})

    The function gets the session as its first argument, followed by the arguments of the call. With
    an AsyncMongoClient it must be a coroutine function. For a function that is already defined,
    such as a bound method, use ``retry_transaction(client)(function)``.

    The transaction is committed when the function returns, and aborted when it raises. After an
    error labeled TransientTransactionError the function is called again; after one labeled
    UnknownTransactionCommitResult the commit is sent again. All of this uses one session and one
    timeout, which comes from ``override`` or the client. Without a timeout, retries end after 120
    seconds.

    Thread- and task-safe.

    Args:
        client: A MongoClient or an AsyncMongoClient.
        read_concern: As for pymongo's ``start_transaction``, like the other options.
        write_concern: See ``read_concern``.
        read_preference: See ``read_concern``.
        max_commit_time_ms: See ``read_concern``.

    Raises:
        TypeError: If ``client`` is not a client, or the function does not fit it.
            ``start_transaction`` raises its own errors for invalid options. A call raises
            OperationTimeoutError if the timeout expires, and otherwise the last error.

    Source: Convenient API for Transactions.
    """
    options = {
        "read_concern": read_concern,
        "write_concern": write_concern,
        "read_preference": read_preference,
        "max_commit_time_ms": max_commit_time_ms,
    }
    return _instrumentor().retry_transaction(client, options)


def _instrumentor() -> PymongoResilienceInstrumentor:
    from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor  # noqa: PLC0415 - only public functions need the other half

    return PymongoResilienceInstrumentor()
