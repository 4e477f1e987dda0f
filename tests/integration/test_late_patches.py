"""What healthy operations do without is wrapped once an operation needs it, and unwrapped again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.patches import Patches
from support.clients import Side, fail_command
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import override
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest
Place = tuple[Any, str]
LIMITED: list[Place] = [
    *((owner, "apply_timeout") for owner in driver.commands.connections_with("apply_timeout")),
    *((o, "get_server_selection_timeout") for o in driver.waits.selection_timeout_owners()),
]
AVOIDING: list[Place] = [(driver.clients.topology_description(), "apply_selector")]
LISTS: list[Place] = [
    (next(each for each in cls.__mro__ if "to_list" in vars(each)), "to_list")
    for cls in driver.cursors.cursor_classes()
]
ENDING: list[Place] = [(cls, "_end_session") for cls, _ in driver.sessions.session_classes()]


def of(places: list[Place]) -> list[Any]:
    return [vars(owner)[name] for owner, name in places]


def patches() -> Patches:
    found = PymongoResilienceInstrumentor()._patches
    assert found is not None
    return found


def in_a_block(side: Side, client: Any, control: Any) -> None:
    def sync() -> None:
        with override(timeout_ms=20_000):
            client.test.coll.find_one()

    async def asynchronous() -> None:
        async with override(timeout_ms=20_000):
            await client.test.coll.find_one()

    side.do(sync if side.runner is None else asynchronous)


def in_a_block_of_pymongo(side: Side, client: Any, control: Any) -> None:
    def sync() -> None:
        with pymongo.timeout(20):
            client.test.coll.find_one()

    async def asynchronous() -> None:
        with pymongo.timeout(20):
            await client.test.coll.find_one()

    side.do(sync if side.runner is None else asynchronous)


def of_a_client(side: Side, client: Any, control: Any) -> None:
    side.do(side.client(client.uri, timeoutMS=20_000).test.coll.find_one)


def overloaded(side: Side, client: Any, control: Any) -> None:
    labels = ["RetryableError", "SystemOverloadedError"]
    with fail_command(control, "find", errorCode=462, errorLabels=labels, times=1):
        side.do(client.test.coll.find_one)


def transaction(side: Side, client: Any, control: Any) -> None:
    session = side.do(client.start_session)
    side.do(session.start_transaction)
    side.do(session.end_session)


@pytest.mark.parametrize(
    ("act", "places"),
    [
        (in_a_block, LIMITED),
        (in_a_block_of_pymongo, LIMITED),
        (of_a_client, LIMITED),
        (in_a_block, LISTS),
        (of_a_client, LISTS),
        (overloaded, AVOIDING),
        (transaction, ENDING),
    ],
)
def test_the_first_operation_that_needs_them_puts_them_on(
    act: Callable[[Side, Any, Any], None], places: list[Place], side: Side, proxy: ReplicaSet,
    control: Any, instrument: Instrument,
) -> None:  # fmt: skip
    before = of(places)
    instrument()
    client = side.client(proxy.uri)
    client.uri = proxy.uri
    side.do(client.test.coll.find_one)
    assert of(places) == before
    act(side, client, control)
    assert not set(of(places)) & set(before)
    pymongo_resilience.uninstrument()
    assert of(places) == before


@pytest.mark.parametrize("places", [LIMITED, LISTS])
def test_a_configured_timeout_puts_them_on_at_once(
    places: list[Place], instrument: Instrument
) -> None:
    before = of(places)
    instrument(timeout_ms=20_000)
    assert not set(of(places)) & set(before)


def test_threads_that_need_them_at_once_put_one_layer_on(instrument: Instrument) -> None:
    before = of(LIMITED)
    instrument()
    barrier = threading.Barrier(8)

    def need() -> None:
        barrier.wait()
        patches().need("timeout")

    threads = [threading.Thread(target=need) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.__wrapped__ for each in of(LIMITED)] == before
    pymongo_resilience.uninstrument()
    assert of(LIMITED) == before


def test_ours_goes_around_what_others_have_wrapped_meanwhile(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    instrument()
    (owner, name), *_ = ENDING
    original = vars(owner)[name]

    def theirs(self: Any, lock: Any) -> None:
        original(self, lock)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, theirs)
        patches().need("transaction")
        assert vars(owner)[name].__wrapped__ is theirs
        pymongo_resilience.uninstrument()
        assert vars(owner)[name] is theirs


def test_what_is_off_puts_nothing_on(instrument: Instrument) -> None:
    before = of(LIMITED)
    instrument()
    late = patches()
    pymongo_resilience.uninstrument()
    late.need("timeout")
    assert of(LIMITED) == before
