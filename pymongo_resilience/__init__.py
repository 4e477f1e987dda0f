"""pymongo-resilience: safe retries, deadlines and telemetry for pymongo.

The engine lives here and decides; it needs neither pymongo nor OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

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
    """Make every MongoClient and AsyncMongoClient of the process resilient and visible.

    The configuration is ``config``; without one it is :meth:`Config.from_env` but for ``options``,
    by the names of its fields. A ``strategy`` that is an object replaces the one named there.
    ``policies`` are rules for namespaces, by patterns such as ``"shop.*"``; they replace those of
    the configuration. What an :class:`override` around the operation says wins over them.
    ``listeners`` get every retry decision, and every circuit breaker that opens or closes. The
    providers default to OpenTelemetry's global ones, so that the SDK may be set up before or
    after: while there is none, it is looked for every 50 ms.

    The hooks are called with each command's span and pymongo's event of it: when it starts, once it
    has succeeded, once it has failed. What one raises is logged once.

    Clients that exist already get retries and operation spans; one warning says what needs a new
    client. Where OpenTelemetry's loader has switched the library on, this call reconfigures it. A
    second call of the application's changes nothing where its arguments are the same, and raises
    where they are not, unless ``replace`` is true. Raises :class:`ConfigurationError`, and
    TypeError where an argument is not what it should be.
    Thread-safe; meant to be called at start-up: an operation in progress while the configuration
    changes ends as it would with pymongo alone.
    """
    if config is not None and not isinstance(config, Config):
        expected = "a Config, as in Config(timeout_ms=20_000)"
        raise TypeError(wrong_type("instrument(): config", config, expected))
    check_keywords("instrument()", options, {**BY_NAME, **(instrument.__kwdefaults__ or {})})
    by_keyword: dict[str, Any] = {**options}
    if isinstance(strategy, str):
        by_keyword["strategy"], strategy = strategy, None
    if by_keyword and config is not None:
        given = ", ".join(by_keyword)
        raise TypeError(f"instrument() takes a Config or options by keyword, not both: {given}")
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
    """Take every patch off again; what others wrapped over ours stays and passes through."""
    _instrumentor().uninstrument()


def bind(target: T, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> T:
    """Return ``target`` with a policy, or with the fields of one: ``bind(orders, timeout_ms=500)``.

    ``target`` is a collection or a database of pymongo, sync or async. The original is left as it
    is. What is made from the result inherits the policy: its ``with_options``, its collections and
    sub-collections. If it is bound again, the fields that the newer policy sets win.

    Raises TypeError for anything else, and what :class:`Policy` raises. Thread- and task-safe, as
    the original is.
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
    """What a MongoClient or AsyncMongoClient knows of its servers at this moment.

    Sends nothing and awaits nothing, for both kinds of client. For one that was made before
    ``instrument()``, or without it, too; a client that has not begun to look for its servers knows
    nothing but their addresses. Raises TypeError for what is no client. Thread- and task-safe.
    """
    return _instrumentor().status(client)


def readiness(
    client: MongoClient[Any] | AsyncMongoClient[Any],
    read_preference: ReadPreference | None = None,
    *,
    grace_ms: int = 15_000,
) -> Readiness:
    """Return whether a client is ready to write and to read, why not, and since when.

    For readiness probes and health checks: it sends nothing and waits for nothing, for both kinds
    of client. It goes by what the client's monitors have found, and by the circuit breakers.

    Args:
        client: A MongoClient or an AsyncMongoClient.
        read_preference: One of pymongo's; the client's own by default.
        grace_ms: Milliseconds for which a client that was ready counts as ready after it has lost
            its servers, as in an election. It does not count if waiting cannot help, for example
            after a certificate has expired. A client that was never ready has no such period.

    Raises:
        TypeError: ``client`` is no client, or ``read_preference`` no read preference.
        ConfigurationError: ``grace_ms`` is not legal.

    Thread- and task-safe, as far as the application's own ``server_selector``, which is called.
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
    """Every server that the client knows, and why an operation may go to it at this moment or not.

    ``read_preference`` is one of pymongo's, the client's own by default; a write ignores it. The
    client's own ``server_selector`` is called. Sends nothing and awaits nothing, for both kinds of
    client. Raises TypeError for what is no client or no read preference, and pymongo's
    ConfigurationError for a maximum staleness that is too small and for a server that is too old.
    Thread- and task-safe as far as that selector is.
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
    """Makes a function a transaction that is repeated as with_transaction repeats one.

    ::

        @retry_transaction(client)
        def place(session, order):
            orders.insert_one(order, session=session)

        place({"n": 1})

    The function gets the session as its first argument, and the others as they are given; with an
    AsyncMongoClient it is a coroutine function. ``retry_transaction(client)(function)`` is the
    same for one that is defined already, a bound method say. The transaction is committed where
    the function returns, and aborted where it raises; after an error labelled
    TransientTransactionError the function is called again, after one labelled
    UnknownTransactionCommitResult the commit is sent again, all with one session. All of it has one
    timeout, of ``override`` or the client; without one nothing is repeated after 120 s. The
    keywords are those of ``start_transaction``.
    Raises TypeError for what is no client or no such function, and for a keyword that
    ``start_transaction`` refuses its error; a call raises OperationTimeoutError where the timeout
    is over, else the last error. Thread- and task-safe.
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
