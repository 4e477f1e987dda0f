"""Nothing lost, nothing applied twice: the database equals the ledger of what was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from support.chaos.ledger import ATOMIC, Balance, Kind, Ledger, Operation
from support.chaos.ledger_run import OPEN_SPANS, Api, Result, Topology, run
from support.chaos.lengths import EVERY, GAP, PAUSE, SECONDS, SEED
from support.chaos.residue import no_residue

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
    run(Api.THREADS, Scenario(), seconds=0.2, kinds=kinds)
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


Play = Callable[..., Result]


@pytest.fixture
def play(figure: Callable[[str], None], request: pytest.FixtureRequest) -> Play:
    """``play(api, scenario, seconds)``: one run, in which something was written and struck."""

    def played(api: Api, scenario: Scenario, seconds: float = SECONDS, **how: Any) -> Result:
        with no_residue(spans=OPEN_SPANS):
            result = run(api, scenario, seconds=seconds, **how)
        figure(f"seed {SEED}, {request.node.name}: {result}")
        assert len(result.journal.ledger) > 0
        assert sum(result.faults.values()) > 0
        return result

    return played


def assert_exact(result: Result, topology: Topology = Topology.REPLICA_SET) -> None:
    assert result.balance.is_exact, result.balance
    assert not result.journal.wrong, result.journal.wrong
    kinds = {operation.kind for operation in result.journal.ledger.acknowledged}
    assert kinds == set(topology.kinds)


def assert_no_error(result: Result) -> None:
    assert not result.journal.errors, (dict(result.journal.errors), result.journal.samples)


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("title", RUNS)
def test_ledger(title: str, api: Api, play: Play) -> None:
    result = play(api, chaos(title))
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


def chaos_of_atomic_writes() -> Scenario:
    """A lost reply of each command, an election, and what the seed throws."""
    scenario = Scenario()
    for command in ("update", "insert", "commitTransaction"):
        scenario = scenario.after(PAUSE, CutAfter, command, on="primary", within=WITHIN)
    scenario = scenario.after(PAUSE, Election, gap=0.5)
    rest = SECONDS - sum(pause for pause, _ in scenario.steps)
    return scenario.then(Scenario.random(SEED, rest, RUNS["1: network, failover"], every=EVERY))


@pytest.mark.parametrize("api", Api)
def test_ledger_of_atomic_writes(api: Api, play: Play) -> None:
    """Writes to many documents are applied once: all of each, and as often as they are counted."""
    result = play(api, chaos_of_atomic_writes(), kinds=ATOMIC)
    assert result.balance.is_exact, result.balance
    assert not result.journal.wrong, result.journal.wrong
    assert_no_error(result)
    assert {each.kind for each in result.journal.ledger.acknowledged} == set(ATOMIC)


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
def test_ledger_of_a_standalone(title: str, api: Api, play: Play) -> None:
    """It recognises no repetition: what was in flight raises, and what was not sent is sent."""
    topology = Topology.STANDALONE
    result = play(api, chaos_alone(title), topology=topology)
    assert_exact(result, topology)
    assert result.repeats == 0
    errors = result.journal.errors
    refused = [error for error in errors if error.endswith(": OperationFailure 20")]
    late = [error for error in errors if error.startswith("deadline")]
    assert not refused + late, (dict(errors), result.journal.samples)


@pytest.mark.parametrize("api", Api)
def test_failover(api: Api, play: Play) -> None:
    """No primary for a while, under load: no error, and the new primary is used when it is elected,
    not when the next heartbeat finds it."""
    scenario, heartbeat = Scenario().after(1.0, Election, gap=GAP), 20.0
    seldom = {"heartbeatFrequencyMS": int(heartbeat * 1000)}
    result = play(api, scenario, GAP + 3.0, client_options=seldom)
    assert_exact(result)
    assert_no_error(result)
    assert result.recovery is not None
    assert result.recovery < heartbeat / 2


@pytest.mark.parametrize("api", Api)
def test_rolling_restart(api: Api, play: Play) -> None:
    """All members, one after the other, under load: no error."""
    scenario = Scenario().after(0.5, RollingRestart, downtime=0.5, pause=0.5)
    result = play(api, scenario, 5.0)
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
@pytest.mark.parametrize("api", Api)
def test_ledger_of_a_real_set(api: Api, play: Play) -> None:
    """Acknowledged by a majority, nothing is lost."""
    majority, real_set = {"w": "majority"}, Topology.REAL_SET
    result = play(api, real_elections(), 75.0, topology=real_set, client_options=majority)
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
    result = run(Api.THREADS, lost_replies(), seconds=3.0)
    assert result.balance.doubled
    assert not result.balance.is_exact


DONE = [Operation(kind, f"done {kind}", "account") for kind in Kind]
RAISED = [Operation(kind, f"raised {kind}", "account") for kind in Kind]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Balance()),
        ({"done bulk write/second": -1}, Balance(lost=["done bulk write/second"])),
        ({"done update/updated": +1}, Balance(doubled=["done update/updated"])),
        (
            {"raised update/updated": +2},
            Balance(doubled=["raised update/updated"], applied_though_raised=1),
        ),
        (
            {"raised transaction/inserted": +1},
            Balance(torn=["raised transaction"], applied_though_raised=1),
        ),
        (
            {"raised bulk write/second": +1},
            Balance(torn=["raised bulk write"], applied_though_raised=1),
        ),
        ({"count of account": +1}, Balance(unknown=["count of account"])),
        (
            dict.fromkeys((effect for each in RAISED for effect in each.effects), +1),
            Balance(applied_though_raised=len(Kind) - 1),
        ),
    ],
    ids=["exact", "lost", "doubled", "doubled, raised", "torn", "order", "unknown", "all raised"],
)
def test_the_ledger_finds_what_differs(changed: dict[str, int], expected: Balance) -> None:
    """A check that cannot fail proves nothing."""
    ledger = Ledger()
    ledger.acknowledged += DONE
    ledger.raised += RAISED
    found = Counter(effect for each in DONE for effect in each.effects)
    found.update(changed)
    assert ledger.balance(+found) == expected
