"""The HTTP control of a test bed, and drills: by the command, and by the deployment."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo_resilience_instrumentation.tools.testbed.control import KINDS, Control
from pymongo_resilience_instrumentation.tools.testbed.drills import DRILLS, drill
from support.clients import wait_until
from test_cli_testbed import running

from pymongo_resilience import testbed
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, ShardedCluster, Standalone


@pytest.fixture
def control(replica_set: ReplicaSet) -> Iterator[Control]:
    with Control(replica_set) as running:
        yield running


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and document; names of headers with an underscore for a hyphen."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        given = {"Content-Type": "application/json"} | given
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, given)
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_a_fault_is_posted_strikes_and_is_cleared(
    control: Control, replica_set: ReplicaSet
) -> None:
    status, about = ask(control.url, "GET", "/")
    assert (status, about["uri"]) == (200, replica_set.uri)
    cut = {"fault": "CutBefore", "command": "insert", "times": 2, "on": "primary"}
    shown = {"fault": "CutBefore(command='insert', times=2)", "on": "primary", "struck": 0}
    assert ask(control.url, "POST", "/faults", cut) == (201, shown)
    assert ask(control.url, "GET", "/faults") == (200, [shown])
    with MongoClient[dict[str, Any]](replica_set.uri) as client:
        with pytest.raises(AutoReconnect):
            client.shop.orders.insert_one({})
        assert ask(control.url, "GET", "/faults") == (200, [shown | {"struck": 2}])
        assert ask(control.url, "DELETE", "/faults?strict=true") == (200, {})
        ask(control.url, "POST", "/faults", cut)
        status, answer = ask(control.url, "DELETE", "/faults?strict=true")
        assert status == 409
        assert answer["error"].startswith(f"these faults never acted: {shown['fault']} ")
        client.shop.orders.insert_one({})
    assert ask(control.url, "GET", "/faults") == (200, [])


def test_every_fault_that_json_can_describe_is_there(control: Control) -> None:
    _, about = ask(control.url, "GET", "/")
    assert set(about["faults"]) == set(KINDS)
    public = {name: getattr(testbed, name) for name in testbed.__all__}
    assert set(KINDS) | {"Corrupt", "Fault", "Interception"} == {
        name for name, kind in public.items() if issubclass(kind, testbed.Fault)
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/faults", {"fault": "Cut"}, 400, "fault is 'Cut', but must be one of"),
        (
            "POST",
            "/faults",
            {"fault": "CutAfter", "command": "insert_one"},
            400,
            "name of a command",
        ),
        ("POST", "/faults", {"fault": "CutAfter", "time": 2}, 400, "unexpected keyword"),
        ("POST", "/faults", {"fault": "Refuse"}, 400, "missing a required argument: 'seconds'"),
        ("POST", "/faults", {"fault": "Reset", "on": "moon"}, 400, "on is 'moon'"),
        ("POST", "/faults", ["CutAfter"], 400, "must be a JSON object"),
        ("POST", "/drills", {"drill": "fire"}, 400, "one of rolling-maintenance"),
        ("GET", "/fault", None, 404, "no GET /fault"),
        ("DELETE", "/", None, 404, "no DELETE /"),
    ],
)
def test_what_cannot_be_is_an_error(
    control: Control, method: str, path: str, body: Any, status: int, said: str
) -> None:
    found, answer = ask(control.url, method, path, body)
    assert found == status
    assert said in answer["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_web_pages_cannot_reach_it(
    control: Control, replica_set: ReplicaSet, headers: dict[str, str], status: int
) -> None:
    found, _ = ask(control.url, "POST", "/faults", {"fault": "Reset"}, **headers)
    assert found == status
    assert not replica_set.injected()


@pytest.mark.parametrize("name", DRILLS)
@pytest.mark.parametrize("kind", [ReplicaSet, ShardedCluster, Standalone])
def test_drills_fit_every_deployment(server: EmbeddedServer, name: str, kind: Any) -> None:
    with kind(server.address) as deployment:
        scenario = drill(name, deployment)
        assert scenario.steps
        for _, strike in scenario.steps:
            deployment.inject(strike.fault(), strike.on)
            deployment.clear()
        assert sum(pause for pause, _ in scenario.steps) < 10


def test_the_command_serves_the_control_and_plays_a_drill() -> None:
    with running("--control", "0", "--drill", "flapping-member") as testbed:
        url = testbed.wait_for("control: ")[0].split()[1]
        assert url.startswith("http://127.0.0.1:")
        assert "Restart(" in testbed.wait_for("Restart(")[0]
        assert ask(url, "GET", "/")[1]["uri"] == testbed.uri
        assert ask(url, "POST", "/drills", {"drill": "regional-black-hole"})[0] == 201


def test_a_posted_drill_is_played(control: Control, replica_set: ReplicaSet) -> None:
    assert ask(control.url, "POST", "/drills", {"drill": "rolling-maintenance"})[0] == 201
    wait_until(lambda: replica_set.injected()["RollingRestart"] > 0)
    assert ask(control.url, "DELETE", "/faults")[0] == 200
