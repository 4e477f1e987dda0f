"""Nothing lost, nothing applied twice: the database equals the ledger of what was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import pytest
from pymongo_resilience_instrumentation.tools.testbed import backend, wire
from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import (
    FAILOVER,
    NETWORK,
    SERVER,
    WITHIN,
    WRITES,
)
from support.alone import STANDALONE, STANDALONE_SERVER
from support.chaos import report, workload
from support.chaos.ledger import ATOMIC, Balance, Kind, Ledger, Operation
from support.chaos.ledger_run import OPEN_SPANS, Api, Result, Side, Topology, run
from support.chaos.lengths import EVERY, GAP, PAUSE, SECONDS, SEED
from support.chaos.residue import no_residue
from support.gathered import gather

from pymongo_resilience import override
from pymongo_resilience.testbed import (
    BlackHole,
    CutAfter,
    CutAtHandshake,
    Election,
    FailWriteConcern,
    Overload,
    Reset,
    Restart,
    RollingRestart,
    Scenario,
    SilentPrimary,
)

RUNS: Final = {
    "1: network, failover": (*NETWORK, *FAILOVER),
    "2: and overload, errors": (*NETWORK, *FAILOVER, *SERVER),
}
ALONE: Final = {
    "3: standalone, network": STANDALONE,
    "4: and overload, errors": (*STANDALONE, *STANDALONE_SERVER),
}
MIN_HEARTBEAT_INTERVAL: Final = 0.5
FAR_APART: Final = 12.0
"""Seconds between two faults of a real set: on a busy machine, a deadline of 20 s spans one."""
GIVEN_UP: Final = ("attempts_exhausted", "budget", "deadline", "overloaded")


pytestmark = pytest.mark.usefixtures("quick_census", "loaded")


@pytest.fixture(scope="module")
def loaded() -> None:
    """What is loaded when it is first needed is no residue."""
    kinds = (*Topology.REPLICA_SET.kinds, *ATOMIC)
    run("", Side.OURS, Api.THREADS, Scenario(), seconds=0.2, seed=SEED, kinds=kinds)
    # An attempt that found no server has imported it.
    import_module("pymongo_resilience_instrumentation.selection.selection_explained")


@pytest.fixture(autouse=True)
def real_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver has them; other tests shorten this."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", MIN_HEARTBEAT_INTERVAL)


def lost_replies() -> Scenario:
    """Each write is executed once and its reply lost: a repeat must be told from a new write."""
    scenario = Scenario()
    for command in WRITES:
        scenario = scenario.after(PAUSE, CutAfter, command, on="primary", within=WITHIN)
    return scenario


def server_errors() -> Scenario:
    """Writes that are shed, and writes that are executed and answered with an error."""
    executed = {"code": 91, "name": "ShutdownInProgress", "labels": ["RetryableWriteError"]}
    return (
        Scenario()
        .after(PAUSE, Overload, "insert", times=3, on="primary", within=WITHIN)
        .after(PAUSE, FailWriteConcern, "update", on="primary", within=WITHIN, **executed)
    )


def chaos(title: str) -> Scenario:
    """What every run of this title must meet, and after it what the seed throws."""
    scenario = lost_replies()
    if title.startswith("2"):
        scenario = scenario.then(server_errors())
    rest = SECONDS - sum(pause for pause, _ in scenario.steps)
    return scenario.then(Scenario.random(SEED, rest, RUNS[title], every=EVERY))


@pytest.fixture(autouse=True)
def reported(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    for row in report.RESULTS:
        gather(pytestconfig, "chaos", row)
    report.RESULTS.clear()


def played(
    title: str,
    side: Side,
    api: Api,
    scenario: Scenario,
    seconds: float,
    topology: Topology = Topology.REPLICA_SET,
    kinds: Sequence[Kind] | None = None,
    **client_options: Any,
) -> Result:
    with no_residue(spans=OPEN_SPANS):
        result = run(
            *(title, side, api, scenario),
            seconds=seconds,
            seed=SEED,
            topology=topology,
            kinds=kinds,
            client_options=client_options,
        )
    report.RESULTS.append(report.row(result))
    assert len(result.journal.ledger) > 0
    assert sum(result.faults.values()) > 0
    return result


def assert_exact(result: Result, topology: Topology = Topology.REPLICA_SET) -> None:
    assert result.balance.is_exact, result.balance
    assert not result.journal.wrong, result.journal.wrong
    kinds = {operation.kind for operation in result.journal.ledger.acknowledged}
    assert kinds == set(topology.kinds)


def assert_no_error(result: Result) -> None:
    assert not result.journal.errors, (dict(result.journal.errors), result.journal.samples)


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("title", RUNS)
def test_ledger(title: str, api: Api) -> None:
    result = played(title, Side.OURS, api, chaos(title), SECONDS)
    assert_exact(result)
    assert result.repeats >= len(WRITES) - 1
    if title.startswith("1"):
        assert_no_error(result)
    else:
        assert result.faults["Overload"] >= 3
        assert result.faults["FailWriteConcern"] >= 1
    assert all(error.startswith(GIVEN_UP) for error in result.journal.errors), (
        dict(result.journal.errors),
        result.journal.samples,
    )


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("title", RUNS)
def test_ledger_of_plain_pymongo(title: str, api: Api) -> None:
    """Printed beside ours. It may lose and it may raise; what it repeats is never doubled."""
    result = played(title, Side.PLAIN, api, chaos(title), SECONDS)
    assert not result.balance.doubled


def chaos_of_atomic_writes() -> Scenario:
    """A lost reply of each command, an election, and what the seed throws."""
    scenario = Scenario()
    for command in ("update", "insert", "commitTransaction"):
        scenario = scenario.after(PAUSE, CutAfter, command, on="primary", within=WITHIN)
    scenario = scenario.after(PAUSE, Election, gap=0.5)
    rest = SECONDS - sum(pause for pause, _ in scenario.steps)
    return scenario.then(Scenario.random(SEED, rest, RUNS["1: network, failover"], every=EVERY))


@pytest.mark.parametrize("api", Api)
def test_ledger_of_atomic_writes(api: Api) -> None:
    """Writes to many documents are applied once: all of each, and as often as they are counted."""
    result = played(*("5: atomic", Side.OURS, api, chaos_of_atomic_writes(), SECONDS), kinds=ATOMIC)
    assert result.balance.is_exact, result.balance
    assert not result.journal.wrong, result.journal.wrong
    assert_no_error(result)
    assert {each.kind for each in result.journal.ledger.acknowledged} == set(ATOMIC)


def test_atomic_writes_that_are_no_transactions_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same run by an application that declares them idempotent: they are doubled."""
    monkeypatch.setattr(workload, "override", lambda *, atomic: override(idempotent=atomic))
    scenario = chaos_of_atomic_writes()
    result = run("", Side.OURS, Api.THREADS, scenario, seconds=SECONDS, seed=SEED, kinds=ATOMIC)
    assert result.balance.doubled
    assert not result.balance.is_exact


def chaos_alone(title: str) -> Scenario:
    """A cleared pool and cut handshakes under load, a reply that is lost, and what is thrown."""
    scenario = (
        Scenario()
        .after(PAUSE, Reset)
        .after(PAUSE, CutAfter, "update", within=WITHIN)
        .after(0.0, CutAtHandshake, times=3, within=WITHIN)
    )
    rest = SECONDS - sum(pause for pause, _ in scenario.steps)
    return scenario.then(Scenario.random(SEED, rest, ALONE[title], every=EVERY))


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("title", ALONE)
def test_ledger_of_a_standalone(title: str, api: Api) -> None:
    """It recognises no repetition: what was in flight raises, and what was not sent is sent."""
    topology = Topology.STANDALONE
    result = played(title, Side.OURS, api, chaos_alone(title), SECONDS, topology)
    assert_exact(result, topology)
    assert result.repeats == 0
    errors = result.journal.errors
    refused = [error for error in errors if error.endswith(": OperationFailure 20")]
    late = [error for error in errors if error.startswith("deadline")]
    assert not refused + late, (dict(errors), result.journal.samples)


@pytest.mark.parametrize("api", Api)
def test_failover(api: Api) -> None:
    """No primary for a while, under load: no error, and the new primary is used when it is elected,
    not when the next heartbeat finds it."""
    scenario, heartbeat = Scenario().after(1.0, Election, gap=GAP), 20.0
    result = played(
        *("failover", Side.OURS, api, scenario, GAP + 3.0),
        heartbeatFrequencyMS=int(heartbeat * 1000),
    )
    assert_exact(result)
    assert_no_error(result)
    assert result.recovery is not None
    assert result.recovery.last < heartbeat / 2


@pytest.mark.parametrize("api", Api)
def test_rolling_restart(api: Api) -> None:
    """All members, one after the other, under load: no error."""
    scenario = Scenario().after(0.5, RollingRestart, downtime=0.5, pause=0.5)
    result = played("rolling restart", Side.OURS, api, scenario, 5.0)
    assert_exact(result)
    assert_no_error(result)
    assert result.faults["RollingRestart"] == 3


def real_elections() -> Scenario:
    """A step-down, a killed primary, a stopped one, all in turn, and lost replies before each."""
    scenario, pause = Scenario(), PAUSE
    for kind, seconds, on in (
        (Election, 1.0, "all"),
        (Restart, 1.0, "primary"),
        (SilentPrimary, 5.0, "all"),
        (BlackHole, 5.0, "primary"),
        (RollingRestart, 0.5, "all"),
    ):
        scenario = scenario.after(pause, CutAfter, "update", on="primary", within=WITHIN)
        scenario, pause = scenario.after(0.5, kind, seconds, on=on), FAR_APART
    return scenario


@pytest.mark.needs_mongod("elections")
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("api", Api)
def test_ledger_of_a_real_set(api: Api, side: Side) -> None:
    """Acknowledged by a majority, nothing is lost; plain pymongo is printed beside ours."""
    result = played(
        *("6: real elections", side, api, real_elections(), 75.0, Topology.REAL_SET), w="majority"
    )
    if side is Side.PLAIN:
        assert not result.balance.doubled
        return
    assert_exact(result, Topology.REAL_SET)
    assert_no_error(result)


@pytest.mark.needs_secantus("it forgets what the proxy hides from it")
def test_a_server_that_forgets_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run, where the server takes every repeated write for a new one: it is doubled."""

    exchange = backend.Upstream._exchange

    async def forgetful(self: Any, request: wire.Message) -> Any:
        if "autocommit" not in request.body:
            body = {name: value for name, value in request.body.items() if name != "txnNumber"}
            request = request.with_body(body)
        return await exchange(self, request)

    monkeypatch.setattr(backend.Upstream, "_exchange", forgetful)
    result = run("", Side.OURS, Api.THREADS, lost_replies(), seconds=3.0, seed=SEED)
    assert result.balance.doubled
    assert not result.balance.is_exact


def test_repeating_what_was_in_flight_on_a_standalone_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same run by an application that declares such writes idempotent: they are doubled."""
    write = workload.write

    def declared(client: Any, operation: Operation) -> None:
        with override(idempotent=True):
            write(client, operation)

    monkeypatch.setattr(workload, "write", declared)
    scenario = Scenario()
    for command in ("insert", "update", "findAndModify"):
        scenario = scenario.after(PAUSE, CutAfter, command, within=WITHIN)
    alone = Topology.STANDALONE
    result = run("", Side.OURS, Api.THREADS, scenario, seconds=3.0, seed=SEED, topology=alone)
    assert result.balance.doubled
    assert not result.balance.is_exact


class TestTheLedgerItself:
    """A check that cannot fail proves nothing."""

    @pytest.fixture
    def ledger(self) -> Ledger:
        ledger = Ledger()
        for kind in Kind:
            ledger.acknowledged.append(Operation(kind, f"done {kind}", "account"))
            ledger.raised.append(Operation(kind, f"raised {kind}", "account"))
        return ledger

    @pytest.fixture
    def found(self, ledger: Ledger) -> Counter[str]:
        return Counter(effect for each in ledger.acknowledged for effect in each.effects)

    def test_is_exact_without_what_raised(self, ledger: Ledger, found: Counter[str]) -> None:
        assert ledger.balance(found) == Balance()

    def test_is_exact_with_what_raised(self, ledger: Ledger, found: Counter[str]) -> None:
        found.update(effect for each in ledger.raised for effect in each.effects)
        assert ledger.balance(found) == Balance(applied_though_raised=len(Kind) - 1)

    def test_knows_what_is_lost(self, ledger: Ledger, found: Counter[str]) -> None:
        del found["done bulk write/second"]
        assert ledger.balance(found) == Balance(lost=["done bulk write/second"])

    @pytest.mark.parametrize("effect", ["done update/updated", "raised update/updated"])
    def test_knows_what_is_doubled(self, ledger: Ledger, found: Counter[str], effect: str) -> None:
        found[effect] = 2
        assert ledger.balance(found).doubled == [effect]

    def test_knows_a_torn_transaction(self, ledger: Ledger, found: Counter[str]) -> None:
        found["raised transaction/inserted"] = 1
        balance = ledger.balance(found)
        assert (balance.torn, balance.is_exact) == (["raised transaction"], False)

    def test_knows_a_bulk_write_out_of_order(self, ledger: Ledger, found: Counter[str]) -> None:
        found["raised bulk write/second"] = 1
        assert ledger.balance(found).torn == ["raised bulk write"]

    def test_knows_what_nobody_asked_for(self, ledger: Ledger, found: Counter[str]) -> None:
        found["count of account"] = 1
        balance = ledger.balance(found)
        assert (balance.unknown, balance.is_exact) == (["count of account"], False)
