"""The error of a failed selection ends with the likely cause, by the doctor's classifier."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.failures.causes import Diagnosis
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from support.clients import Side, wait_until
from support.misconfigurations import MISCONFIGURATIONS, World, world
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.testbed import Election, Refuse, ReplicaSet, Reset

__all__ = ["world"]
pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

MONITOR_SEES = {
    # Without a second look.
    **dict.fromkeys(("TLS to plain", "black hole", "silent", "silent at TLS"), Symptom.NO_ANSWER),
    "refused ciphers": Symptom.CLIENT_CERTIFICATE,
}
NEVER = {"wrong password", "missing rights", "no user"}
"""Servers are selected, and commands fail."""


def unselected(side: Side, coll: Any) -> str:
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(coll.insert_one, {})
    text, _, origin = str(caught.value).rpartition(" (1 attempt; ")
    assert origin.endswith("not retried)")
    return text


@pytest.mark.parametrize("name", sorted(MISCONFIGURATIONS.keys() - NEVER))
def test_the_last_sentence_is_the_likely_cause(
    name: str, side: Side, world: World, instrument: Instrument
) -> None:
    instrument(config_strategy="best_effort")
    symptom, planted = MISCONFIGURATIONS[name]
    cause = Diagnosis(MONITOR_SEES.get(name, symptom))

    def told() -> bool:
        # A host that is looked up, or a check that has begun, takes its time on a busy machine.
        return unselected(side, client.db.coll).endswith(f"Timeout: 0.3s. {cause}")

    with planted(world) as uri:
        client = side.client(uri, serverSelectionTimeoutMS=300)
        wait_until(told)
        side.do(client.close)


def test_a_timeout_that_ends_a_selection_has_it_too(
    side: Side, world: World, instrument: Instrument
) -> None:
    instrument()
    _, planted = MISCONFIGURATIONS["refused"]
    with planted(world) as uri:
        client = side.client(uri)
        with pytest.raises(OperationTimeoutError) as caught, override(timeout_ms=300):
            side.do(client.db.coll.find_one)
    assert str(caught.value).endswith(str(Diagnosis(Symptom.REFUSED)))


def test_sets_without_a_primary(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    """An election, and one that cannot be."""
    instrument()
    client = side.client(replica_set.uri, serverSelectionTimeoutMS=300)
    wait_for_server(side, client)
    side.wait_for_members(client, 3)
    replica_set.inject(Election(gap=60))

    def told(symptom: Symptom) -> bool:
        try:
            return unselected(side, client.db.coll).endswith(str(Diagnosis(symptom)))
        except AutoReconnect:
            return False

    side.wait_until(lambda: told(Symptom.ELECTION))
    for index in (0, 1):
        replica_set.inject(Refuse(60), on=index)
        replica_set.inject(Reset(), on=index)
    side.wait_until(lambda: told(Symptom.NO_MAJORITY))
