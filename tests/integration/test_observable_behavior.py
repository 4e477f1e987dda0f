"""What an application observes of pymongo is the same with the library: over all public operations,
healthy and with one retry. Events, their order and operation ids, log lines, and errors."""

from __future__ import annotations

import re
from difflib import ndiff
from functools import partial
from typing import Any

import pytest
from support.clients import Side
from support.every_operation import BY_CLASS, Scene
from support.observed_behavior import Pool, Recorder, observed, recording
from support.telemetry import Instrument

from pymongo_resilience.testbed import Fail, ReplicaSet

CALLS = {
    f"{owner}.{each.name}": each
    for owner, operations in BY_CLASS.items()
    for each in operations
    # It closes a client of its own, which nobody listens to.
    if (owner, each.name) != ("MongoClient", "close")
}
SETUPS: dict[str, dict[str, Any]] = {
    "bare": {},
    "timed": {"timeout_ms": 20_000},
    "mongodb": {"config_strategy": "mongodb"},
    "driver": {"config_strategy": "driver"},
}
D20 = {"GridFSBucket.delete_by_name"}
"""A delete_many of one ``_id`` is sent as a delete_one, which is retried."""
D21 = {
    f"Database.cursor_command with {name}"
    for name in ("find", "aggregate", "listCollections", "listIndexes")
}
"""A cursor_command that only reads is retried."""
COMMIT = {"ClientSession.commit_transaction"}
"""A timeout of the configuration leaves the ``wtimeout`` that pymongo gives to a retried commit."""
DIFFER: dict[str, tuple[set[str], set[str]]] = {
    "bare": (D20, D21),
    "timed": (D20, D21 | COMMIT),
    "mongodb": (set(), D21),
    "driver": (set(), set()),
}
"""The operations that differ by a documented deviation: healthy ones, and those that fail once."""
CONNECTIONS = 4
"""More than are in use at once, those of background tasks included: no call has to make one."""
LIMIT = re.compile(r"(, )?'maxTimeMS': #")
"""What a command has under a timeout; the first one of a cursor has none by iteration."""


def behavior(
    side: Side, uri: str, name: str, bed: ReplicaSet | None, **options: Any
) -> dict[str, Any]:
    """By operation. With a bed, its command fails once."""
    recorder = Recorder()
    pool = Pool(recorder)
    options = {"minPoolSize": CONNECTIONS, **options}
    client = side.do(side.client, uri, event_listeners=[recorder, pool], **options)
    scene = Scene(side, uri, client, name)
    scene.prepare()
    side.wait_until(lambda: pool.connections >= CONNECTIONS)
    found = {}
    with recording(recorder):
        for label, operation in CALLS.items():
            if bed is not None:
                bed.inject(Fail(operation.strikes, code=6, labels=["RetryableWriteError"]))
            found[label] = observed(recorder, partial(operation.call, scene))
            if bed is not None:
                bed.clear()
    side.do(client.drop_database, name)
    side.do(client.close)
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, list[str]]:
    """By operation, the lines that only one of them has, with - and +."""
    found = {}
    for name, observation in one.items():
        both = [
            [LIMIT.sub("", line) for line in [*lines, str(error)]]
            for lines, error in (observation, other[name])
        ]
        changes = [line for line in ndiff(*both) if line[0] in "+-"]
        if changes:
            found[name] = changes
    return found


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("fails", [False, True], ids=["healthy", "one retry"])
def test_what_is_observed(
    fails: bool, setup: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    bed = proxy if fails else None
    options = {"timeoutMS": 20_000} if setup == "timed" else {}
    plain = behavior(side, proxy.uri, database, bed, **options)
    lines = "\n".join(line for lines, _ in plain.values() for line in lines)
    for part in ("CommandStartedEvent", "ConnectionCheckedOut", "Server selection started"):
        assert part in lines
    assert ("Retrying write attempt number 1" in lines) is fails
    instrument(**SETUPS[setup])
    found = behavior(side, proxy.uri, database, bed)
    expected: set[str] = set().union(*DIFFER[setup][: 1 + fails])
    different = differences(plain, found)
    assert {name: lines for name, lines in different.items() if name not in expected} == {}
    assert expected <= different.keys()
