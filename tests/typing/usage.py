"""The public face as users write it, for the type checker; nothing here ever runs.

A line that ends in ``type: ignore[code]`` is a wrong use: the checker must find exactly that error
there, and none anywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, assert_never, assert_type

from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.read_concern import ReadConcern

import pymongo_resilience
from pymongo_resilience import (
    Config,
    ConfigurationError,
    OperationTimeoutError,
    Policy,
    bind,
    explain_selection,
    instrument,
    override,
    readiness,
    retry_info,
    retry_transaction,
    status,
    uninstrument,
)
from pymongo_resilience.client_status import (
    ClientStatus,
    HedgeCounts,
    Readiness,
    SelectionRule,
    ServerStatus,
    ServerVerdict,
)
from pymongo_resilience.errors import CircuitBreakerOpenError, RetryInfo, RetryReason, Rule, Stage
from pymongo_resilience.events import (
    BreakerClosed,
    BreakerOpened,
    Event,
    Listener,
    ReadHedged,
    RequestExpired,
    RetryDeclined,
    RetryScheduled,
    StreamNotice,
    StreamStep,
)
from pymongo_resilience.strategies import (
    BestEffort,
    Failure,
    FastFail,
    MongoDB,
    RetryAction,
    RetryState,
    RetryStrategy,
)
from pymongo_resilience.testing import is_active

# Strategies: ours, one's own, and one that asks elsewhere first.


class NotForRobots:
    def retry_after(self, state: RetryState, failure: Failure, /) -> RetryAction | None:
        if state.data.get("robot") or failure.stage is not Stage.NOT_SENT:
            return None
        return RetryAction(delay=0.01 * state.attempts)


class AsksElsewhere:
    async def retry_after(self, state: RetryState, failure: Failure, /) -> RetryAction | None:
        await asyncio.sleep(0)
        return None if failure.reason is RetryReason.LOCK_TIMEOUT else RetryAction()


class Patient(BestEffort):
    def __init__(self) -> None:
        super().__init__(lambda attempt: attempt * 0.5)


class AnswersSeconds:
    def retry_after(self, state: RetryState, failure: Failure, /) -> float:
        return 0.5


class AsksForLess:
    def retry_after(self, state: RetryState) -> RetryAction | None:
        return None


strategies: list[RetryStrategy] = [
    NotForRobots(),
    AsksElsewhere(),
    Patient(),
    BestEffort(),
    BestEffort(lambda attempt: 0.1),
    FastFail(),
    MongoDB(),
]
seconds: RetryStrategy = AnswersSeconds()  # type: ignore[assignment]
less: RetryStrategy = AsksForLess()  # type: ignore[assignment]
BestEffort(0.1)  # type: ignore[arg-type]
RetryAction("1")  # type: ignore[arg-type]

# What a client knows of its servers, and which of them an operation may go to.


def shows(client: MongoClient[RawBSONDocument]) -> str:
    known = status(client)
    assert_type(known, ClientStatus)
    assert_type(known.hedges, HedgeCounts | None)
    assert_type(known.servers, tuple[ServerStatus, ...])
    assert_type(known.servers[0].round_trip_time, float | None)
    found = readiness(client, grace_ms=0)
    assert_type(found, Readiness)
    assert_type(found.since, float)
    readiness(client, None, 0)  # type: ignore[call-arg]
    verdicts = explain_selection(client, writes=True)
    assert_type(verdicts, tuple[ServerVerdict, ...])
    known.topology = "Sharded"  # type: ignore[misc]
    explain_selection(client, ReadPreference.NEAREST)
    explain_selection(client, client.read_preference)
    explain_selection(client, None, True)  # type: ignore[call-arg]
    explain_selection(client, "nearest")  # type: ignore[arg-type]
    status(client["shop"])  # type: ignore[arg-type]
    return "; ".join(
        str(each) for each in verdicts if each.excluded_by is not SelectionRule.LATENCY
    )


# Listeners.


class Counts:
    def __init__(self) -> None:
        self.waited = 0.0
        self.declined: list[str] = []

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, RetryScheduled):
            self.waited += event.delay
        elif isinstance(event, RetryDeclined):
            self.declined.append(event.rule)
        elif isinstance(event, BreakerOpened):
            assert_type(event.next_probe_in, float)
            return
        elif isinstance(event, BreakerClosed):
            assert_type(event.server, str)
            return
        elif isinstance(event, ReadHedged):
            assert_type(event.winner, str | None)
            return
        elif isinstance(event, RequestExpired):
            assert_type(event.received_by, str)
            return
        elif isinstance(event, StreamNotice):
            assert_type(event.step, StreamStep)
            return
        else:
            assert_never(event)
        assert_type(event.server, str | None)
        assert_type(event.reason, RetryReason)


class HearsText:
    def on_event(self, event: str, /) -> None: ...


def forgets_which_kind(event: Event) -> float:
    return event.delay  # type: ignore[union-attr]


listener: Listener = Counts()
deaf: Listener = HearsText()  # type: ignore[assignment]

# instrument().

instrument()
instrument(Config.from_env())
instrument(Config.from_env(), replace=True)
instrument(
    config=Config(
        enabled=True,
        strategy="best_effort",
        timeout_ms=20_000,
        max_retries=5,
        base_backoff_ms=100,
        max_backoff_ms=10_000,
        overload_retargeting=True,
        traces=True,
        metrics=False,
    ),
    strategy=NotForRobots(),
    listeners=[Counts()],
    tracer_provider=None,
    meter_provider=None,
)
instrument(strategy=AsksElsewhere(), listeners=(Counts(), Counts()))
assert_type(is_active(), bool)
uninstrument()

instrument(
    policies={
        "mart.*": Policy(strategy="best_effort"),
        "shop.*": Policy(strategy=AsksElsewhere(), data={"team": "shop"}),
        "*.audit": Policy(idempotent=True),
    },
    strategy=BestEffort(),
)
instrument(policies=Config.from_toml("resilience.toml").policies)
assert_type(Config.from_env().policies, Mapping[str, Policy])
assert_type(Config(policies={}).policies, Mapping[str, Policy])
instrument(policies={"shop.*": {"idempotent": True}})  # type: ignore[dict-item]
instrument(policies={"shop.*": BestEffort()})  # type: ignore[dict-item]
instrument(policies=[("shop.*", Policy())])  # type: ignore[arg-type]
instrument(policies={("shop", "*"): Policy()})  # type: ignore[dict-item]
Config(policies={"shop.*": "best_effort"})  # type: ignore[dict-item]

instrument(strategy="best_effort", timeout_ms=500, metrics="all", disabled_recovery=())
instrument(listeners=Counts())  # type: ignore[arg-type]
instrument(timeout_ms="500")  # type: ignore[arg-type]
instrument(timeout=500)  # type: ignore[call-arg]
instrument(tracer_provider="otlp")  # type: ignore[arg-type]
instrument(config={"timeout_ms": 500})  # type: ignore[arg-type]

# Config.

assert_type(Config.from_env({"PYMONGO_RESILIENCE_TIMEOUT_MS": "500"}), Config)
assert_type(Config.from_toml("resilience.toml").timeout_ms, int | None)
Config(timeout_ms="500")  # type: ignore[arg-type]
Config(timeout=500)  # type: ignore[call-arg]
Config().timeout_ms = 500  # type: ignore[misc]
try:
    Config(strategy="luck")
except ConfigurationError as wrong:
    assert_type(wrong.problems, tuple[str, ...])

# override(), three ways.

with override(idempotent=True, strategy=Patient(), data={"robot": True}) as policy:
    assert_type(policy, Policy)
    assert_type(policy.idempotent, bool | None)


async def asynchronously(client: object) -> None:
    async with override(strategy=AsksElsewhere()) as inside:
        assert_type(inside, Policy)


shop: MongoClient[dict[str, Any]] = MongoClient()
async_shop: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient()


@retry_transaction(shop, read_concern=ReadConcern("snapshot"), write_concern=WriteConcern(1))
def pays(session: object, order: int, *, by: str) -> bytes:
    return f"{order} {session} {by}".encode()


assert_type(pays(1, by="card"), bytes)
pays("1", by="card")  # type: ignore[arg-type]
retry_transaction(shop, read_concern="snapshot")  # type: ignore[arg-type]
retry_transaction(shop["orders"])  # type: ignore[arg-type]


@retry_transaction(async_shop)
async def pays_later(session: object, order: int) -> bytes:
    return f"{order} {session}".encode()


async def later() -> None:
    assert_type(await pays_later(1), bytes)


@override(idempotent=True)
def pay(order: int, *, by: str) -> bytes:
    return f"{order} {by}".encode()


assert_type(pay(1, by="card"), bytes)
pay("1", by="card")  # type: ignore[arg-type]
override(timeout_ms=200, timeout_mode="iteration")
override(timeout_mode="next")  # type: ignore[arg-type]
override(timeout_mode="iteration")
override(hedge=True)
Policy(hedge=20)
Policy(hedge="soon")  # type: ignore[arg-type]
override(atomic=True)
override(atomic="yes")  # type: ignore[arg-type]
Policy(timeout_mode="urgent")  # type: ignore[arg-type]
override(idempotent="yes")  # type: ignore[arg-type]
override(retry_writes=False)  # type: ignore[call-arg]
Policy(data=["robot"])  # type: ignore[arg-type]
Policy(strategy=AnswersSeconds())  # type: ignore[arg-type]
override(strategy=BestEffort)  # type: ignore[arg-type]
assert_type(Policy(idempotent=True).over(Policy()), Policy)

# Errors and facts.

try:
    pay(2, by="cash")
except OperationTimeoutError as late:
    assert_type(late.timeout_s, float)
    assert_type(late.elapsed_s, float)
    assert_type(late.attempts, int)
    assert_type(late.server, str | None)
    assert_type(late.stage, Stage)
    deadline: bool = late.retry_rule == "deadline"
    info = retry_info(late)
    assert_type(info, RetryInfo | None)
    if info is not None:
        assert_type(info.reasons, tuple[RetryReason, ...])
        assert_type(info.rule, Rule | None)
        assert_type(info.timeout_s, float | None)
        info.attempts = 1  # type: ignore[misc]
    retry_info("late")  # type: ignore[arg-type]
except CircuitBreakerOpenError as refused:
    assert_type(refused.server, str)
    assert_type(refused.next_probe_in, float)


def tell(failure: Failure) -> str:
    assert_type(failure.labels, frozenset[str])
    assert_type(failure.reason.always_retry, bool)
    failure.labels = frozenset()  # type: ignore[misc]
    return f"{failure.stage} {failure.code} {pymongo_resilience.__version__}"


# bind() gives back what it was given.
unbound: list[str] = ["stands in for a collection: the type goes through"]
assert_type(bind(unbound, Policy(timeout_ms=500)), list[str])
assert_type(bind(unbound, timeout_ms=500, hedge=20), list[str])
bind(unbound, timeout=500)  # type: ignore[call-arg]
bind(unbound, {"timeout_ms": 500})  # type: ignore[arg-type]
Policy(timeout_ms=0.5)  # type: ignore[arg-type]
