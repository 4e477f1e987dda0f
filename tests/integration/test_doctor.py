"""``pymongo-resilience doctor``: names what is planted, in time, and nothing where all is well."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import json
import re
import socket
import threading
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.doctor import Level, examination
from pymongo_resilience_instrumentation.tools.doctor.compared_members import of_probe
from pymongo_resilience_instrumentation.tools.doctor.examination import (
    Examination,
    as_json,
    as_text,
    examine,
)
from pymongo_resilience_instrumentation.tools.doctor.login import Login
from pymongo_resilience_instrumentation.tools.doctor.probe import Probe
from pymongo_resilience_instrumentation.tools.doctor.uri import read
from pymongo_resilience_instrumentation.tools.testbed.fault import Amend, Answer
from support import fake_servers
from support.dns_server import resolving
from support.fake_servers import Peer
from support.misconfigurations import MISCONFIGURATIONS, PASSWORD, World, certificate, world
from support.wait_helpers import NOBODY

from pymongo_resilience.testbed import (
    Election,
    Interception,
    Latency,
    Overload,
    Refuse,
    ReplicaSet,
    ShardedCluster,
    Slow,
)

__all__ = ["world"]
pytestmark = pytest.mark.oldest

LIMIT = 5.0
"""Seconds, the start of Python included."""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the examination would wait to its end."""
    monkeypatch.setattr(examination, "TOTAL_S", 2.0)
    monkeypatch.setattr(examination, "NETWORK_S", 1.5)


def assert_well(found: Examination) -> None:
    """No advice but about round trips, which are slow where this machine is busy."""
    bad = [each for each in found.findings if each.level >= Level.WARNING]
    assert {each.check for each in bad} <= {"latency"}, found
    assert found.verdict.well


def levels(found: Examination, check: str) -> set[Level]:
    return {each.level for each in found.findings if each.check == check}


def texts(found: Examination, level: Level) -> str:
    return "\n".join(each.text for each in found.findings if each.level is level)


@pytest.mark.parametrize("name", MISCONFIGURATIONS)
def test_each_misconfiguration_is_named_in_time(name: str, world: World) -> None:
    symptom, planted = MISCONFIGURATIONS[name]
    with planted(world) as uri:
        found = examine(uri)
    assert found.verdict.symptom is symptom, found
    assert not found.verdict.well
    assert symptom.check in found.verdict.advice
    assert found.seconds < LIMIT
    for shown in (as_text(found), as_json(found), repr(found)):
        assert "c4n" not in shown


def test_a_healthy_set_gets_no_advice_and_nothing_is_waited_for(
    replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "NETWORK_S", 60.0)
    monkeypatch.setattr(examination, "TOTAL_S", 60.0)
    found = examine(replica_set.uri)
    assert_well(found)
    assert found.seconds < 30
    shown = texts(found, Level.OK)
    assert re.search(r"primary of the set 'rs0', version \d+\.\d+\S*, wire version \d+", shown)
    reached = {each.server for each in found.findings if each.check == "hello"}
    assert reached == {member.host_and_port for member in replica_set.members}


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("pymongo.errors:PyMongoError._remove_error_label", State.TELEMETRY),
        # The login asks for it.
        ("pymongo:MongoClient.topology_description", State.OFF),
    ],
)
def test_a_pymongo_that_lacks_names_is_the_verdict(
    name: str, left: State, replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    monkeypatch.delattr(name.replace(":", "."))
    found = examine(replica_set.uri)
    assert f"lacks {name}: {left.value}" in found.verdict.text
    assert found.verdict.well
    assert "3 of 3 members are reachable" in texts(found, Level.OK)


def test_other_deployments_and_tls_get_no_advice(world: World, cluster: ShardedCluster) -> None:
    assert_well(examine(cluster.uri))
    with Peer(world.behind(world.authority.issue_cert("127.0.0.1"))) as peer:
        found = examine(world.tls(peer.uri))
    assert_well(found)
    assert levels(found, "tls") == {Level.OK}


STRUCK: dict[str, tuple[list[tuple[Any, Any]], bool, Symptom | None, str]] = {
    "an election": ([(Election(gap=60), "all")], True, Symptom.ELECTION, ""),
    "too few members for one": (
        [(Election(gap=60), "all"), (Refuse(60), 0), (Refuse(60), 1)],
        False, Symptom.NO_MAJORITY, "",
    ),
    "one member is down": (
        [(Refuse(60), 2)], True, Symptom.REFUSED, "2 of 3 members are reachable",
    ),
    "far": ([(Latency(0.1), "all")], True, None, ""),
    "slow": ([(Slow(2.0), "all")], True, None, ""),
    "slower than the check": ([(Latency(10), "all")], False, Symptom.SILENT, "no answer within"),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCK)
def test_what_passes_by_itself_is_told_from_what_does_not(
    name: str, replica_set: ReplicaSet, hasty: None
) -> None:
    faults, well, symptom, said = STRUCK[name]
    for fault, on in faults:
        replica_set.inject(copy.deepcopy(fault), on=on)
    found = examine(replica_set.uri)
    assert (found.verdict.well, found.verdict.symptom) == (well, symptom)
    assert said in as_text(found)
    assert found.seconds < LIMIT


def with_another_name(replica_set: ReplicaSet) -> str:
    """A URI that names the first member by another name than the set has for it."""
    _, port = replica_set.members[0].address
    return f"mongodb://localhost:{port}"


def test_a_member_with_two_names_counts_once(replica_set: ReplicaSet) -> None:
    found = examine(with_another_name(replica_set))
    assert_well(found)
    assert "3 of 3 members are reachable" in texts(found, Level.OK)


def test_a_load_balancer_s_option_for_a_replica_set_is_the_cause(replica_set: ReplicaSet) -> None:
    found = examine(with_another_name(replica_set) + "/?loadBalanced=true")
    assert not found.verdict.well
    assert "loadBalanced" in found.verdict.text


@pytest.mark.parametrize(
    ("command", "times", "check", "level"),
    [
        ("hello", 2, "hello", Level.WARNING),
        ("ping", 100, "login", Level.WRONG),
        ("serverStatus", 100, "limits", Level.WRONG),
    ],
)
def test_an_overloaded_server_is_told_from_one_that_is_down(
    world: World, command: str, times: int, check: str, level: Level
) -> None:
    with ReplicaSet(world.locked.address, members=1) as running:
        running.inject(Overload(command, times=times))
        uri = running.uri.replace("://", "://root:root@") + "&authSource=admin"
        found = examine(uri)
    rejected = {each.check for each in found.findings if each.symptom is Symptom.OVERLOADED}
    assert rejected == {check}
    assert level in levels(found, check)
    assert found.verdict.symptom is Symptom.OVERLOADED


def test_idle_connections_that_die_are_named(replica_set: ReplicaSet) -> None:
    found = examine(replica_set.uri, idle_seconds=0.05)
    assert_well(found)
    assert levels(found, "idle") == {Level.OK}
    with Peer(forgetting(replica_set.address)) as peer:
        dead = examine(peer.uri, idle_seconds=0.3)
    assert levels(dead, "idle") == {Level.WARNING}


def forgetting(server: tuple[str, int]) -> fake_servers.Behaviour:
    """In front of a server: closes what was idle for a tenth of a second."""

    def meet(peer: Peer, connection: socket.socket) -> None:
        behind = peer.keep(socket.create_connection(server))
        connection.settimeout(0.1)
        with contextlib.suppress(TimeoutError):
            while data := connection.recv(65536):
                behind.sendall(data)
                connection.sendall(behind.recv(65536))
        connection.close()

    return meet


@pytest.mark.parametrize(
    ("database", "roles", "well", "said"),
    [
        ("shop", [{"role": "readWrite", "db": "shop"}], True, "read and write the database shop"),
        ("shop", [{"role": "read", "db": "shop"}], True, "can read the database shop but not"),
        ("", [], False, "neither read nor write any database"),
    ],
)
def test_rights(world: World, database: str, roles: list[Any], well: bool, said: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](world.locked.uri) as root:
        root.admin.command("createUser", "app", pwd=PASSWORD, roles=roles)
        try:
            found = examine(world.as_user("app", PASSWORD, database))
        finally:
            root.admin.command("dropUser", "app")
    assert found.verdict.well == well
    assert said in "\n".join(each.text for each in found.findings if each.check == "rights")


def test_srv_records_are_checked_one_by_one(world: World) -> None:
    _, port = world.server
    records = {
        ("_mongodb._tcp.db.example.org", "SRV"): [
            f"0 0 {port} one.example.org.", f"0 0 {port} other.net.",
        ],
        ("db.example.org", "TXT"): ['"replicaSet=rs0&tls=false"'],
    }  # fmt: skip
    with resolving(records):
        found = examine("mongodb+srv://db.example.org/?tls=false")
    assert not found.verdict.well
    wrong = texts(found, Level.WRONG)
    assert f"SRV record for other.net:{port}" in wrong
    assert "the TXT record has options" in wrong
    with resolving({}):
        found = examine("mongodb+srv://db.example.org/")
    assert found.verdict.symptom is Symptom.UNKNOWN_HOST
    with resolving({}, silent=True):
        found = examine("mongodb+srv://db.example.org/")
    assert "DNS does not answer" in found.verdict.text
    assert found.seconds < LIMIT


@pytest.mark.parametrize(
    ("query", "level", "said"),
    [
        ("retryWrite=true", Level.WARNING, "does not know the option retryWrite"),
        ("ssl_ca_certs=ca.pem", Level.WARNING, "ssl_ca_certs is deprecated"),
        ("maxPoolSize=many", Level.WARNING, "ignores maxPoolSize because its value"),
        ("ssl=true&tls=false", Level.WRONG, "pymongo refuses this combination"),
        ("tlsCAFile=/no/such/file", Level.WRONG, "the file in tlsCAFile does not exist"),
        ("minPoolSize=9&maxPoolSize=3", Level.WRONG, "pymongo refuses this combination"),
        ("timeoutMS=900&socketTimeoutMS=5000", Level.WARNING, "socketTimeoutMS has no effect"),
        ("timeoutMS=900&serverSelectionTimeoutMS=5000", Level.NOTE, "is longer than timeoutMS"),
        ("serverSelectionTimeoutMS=500", Level.WARNING, "=500 is shorter than most elections"),
        ("connectTimeoutMS=9000&serverSelectionTimeoutMS=5000", Level.WARNING, "expires first"),
        ("heartbeatFrequencyMS=9000&serverSelectionTimeoutMS=5000", Level.WARNING, "heartbeatFreq"),
        ("connectTimeoutMS=0", Level.WARNING, "never ends"),
        ("maxPoolSize=0", Level.WARNING, "connections is unlimited"),
        ("retryWrites=false", Level.WARNING, "retryWrites=false"),
        ("w=0", Level.WARNING, "w=0"),
        ("tls=true&tlsInsecure=true", Level.WARNING, "tlsInsecure=true"),
        ("directConnection=true", Level.NOTE, "there is no failover"),
        (
            "loadBalanced=true&replicaSet=rs0",
            Level.WRONG,
            "loadBalanced=true does not work with several hosts",
        ),
        ("authSource=admin", Level.NOTE, "authSource without a user"),
        ("retryWrites=true&w=majority&appName=shop", None, ""),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else None,
)
def test_options_are_checked_against_each_other(query: str, level: Any, said: str) -> None:
    _, findings = read(f"mongodb://db.example.org/shop?{query}")
    assert [each.level for each in findings][:1] == ([] if level is None else [level])
    assert said in "".join(each.text for each in findings)


@pytest.mark.parametrize(
    "userinfo", ["app:p@ss", "app:p:ss", "app:p%ss", "a@b:pass", "app:100%"], ids=str
)
def test_a_password_that_is_not_escaped_is_the_cause(userinfo: str) -> None:
    target, (finding,) = read(f"mongodb://{userinfo}@db.example.org/shop")
    assert (target, finding.level) == (None, Level.WRONG)
    assert "password" in finding.text
    assert "options" not in finding.text + finding.advice


URIS = {
    "unescaped slash": "mongodb://c4nary:c4n/ary@{host}/",
    "unescaped question mark": "mongodb://c4nary:c4n?ary=x@{host}/",
    "a password like a port": "mongodb://c4nary:123/c4nary?c4nary=c4nary@{host}",
    "unescaped at": "mongodb://c4nary:c4n@ry@{host}/",
    "unescaped colon": "mongodb://c4nary:c4n:ary@{host}/",
    "unescaped percent": "mongodb://c4nary:c4n%ary@{host}/",
    "scheme": "mongo://c4nary:c4nary@{host}/",
    "bad port": "mongodb://c4nary:c4nary@{host}x/",
    "bad database": "mongodb://c4nary:c4nary@{host}/c4n ary$/",
    "bad option": "mongodb://c4nary:c4nary@{host}/?authMechanism=c4nary",
    "option without a value": "mongodb://c4nary:c4nary@{host}/?c4n.ary",
    "properties": "mongodb://c4nary:c4nary@{host}/?authMechanismProperties=c4nary:c4nary",
    "key password": "mongodb://{host}/?tls=true&tlsCertificateKeyFilePassword=c4nary",
    "key file": "mongodb://{host}/?tlsCertificateKeyFile=/no/such&"
    "tlsCertificateKeyFilePassword=c4nary",
    "no user, a password": "mongodb://:c4nary@{host}/",
    "server": "mongodb://c4nary:c4nary@{host}/",
}
"""Every place in which a credential may stand, or be misplaced."""


@pytest.mark.parametrize("name", URIS)
def test_no_credential_is_printed(
    name: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = URIS[name].format(host="{}:{}".format(*world.locked.address))
    assert cli.main(["doctor", uri]) == 1
    printed = capsys.readouterr()
    assert "Verdict" in printed.out
    assert "c4n" not in printed.out + printed.err


def test_the_uri_comes_from_the_environment(
    replica_set: ReplicaSet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MONGODB_URI", raising=False)
    assert cli.main(["doctor"]) == cli.USAGE
    assert "MONGODB_URI" in capsys.readouterr().err
    monkeypatch.setenv("MONGODB_URI", replica_set.uri)
    assert cli.main(["doctor", "--json", "--processes", "3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"].keys() == {"well", "text", "advice", "symptom"}
    assert {each["check"] for each in told["findings"]} >= {"tcp", "hello", "latency", "library"}
    monkeypatch.setenv("MONGODB_URI", NOBODY)
    assert cli.main(["doctor"]) == cli.FAILURE
    assert "\x1b" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=str(cli.USAGE)):
        cli.main(["doctor", "--processes", "0"])


@pytest.mark.parametrize("broken", ["Login.run", "Prober.run"])
def test_a_fault_of_the_doctor_prints_nothing(
    replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch, broken: str, hasty: None
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("c4nary")

    monkeypatch.setattr(f"{examination.__name__}.{broken}", fails)
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    found = examine(replica_set.uri)
    assert "c4nary" not in as_json(found)
    assert shown == []


def test_a_wrong_configuration_of_the_library_is_named(
    replica_set: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMONGO_RESILIENCE_MAX_RETRIES", "many")
    found = examine(replica_set.uri)
    assert not found.verdict.well
    assert "PYMONGO_RESILIENCE_MAX_RETRIES" in found.verdict.text
    assert levels(found, "hello") == {Level.OK}


def test_the_pools_of_all_processes_are_held_against_the_servers_limit(
    replica_set: ReplicaSet,
) -> None:
    class Limited(Interception):
        def on_request(self, request: Any, connection: Any) -> Answer | None:
            if request.command_name != "serverStatus":
                return None
            return Answer({"ok": 1.0, "connections": {"current": 20, "available": 300}})

    replica_set.inject(Limited())
    assert levels(examine(replica_set.uri, processes=3), "limits") == {Level.OK}
    found = examine(replica_set.uri, processes=4)
    assert levels(found, "limits") == {Level.WARNING}
    assert "may open 400" in found.verdict.text


def test_a_member_that_lags_and_a_clock_that_differs_are_warnings(replica_set: ReplicaSet) -> None:
    class Behind(Interception):
        def on_hello(self, reply: dict[str, Any]) -> None:
            hour = dt.timedelta(hours=1)
            reply["localTime"] -= hour
            reply["lastWrite"]["lastWriteDate"] -= 2 * hour

    replica_set.inject(Behind(), on=1)
    found = examine(replica_set.uri)
    assert levels(found, "clock") == {Level.WARNING}
    warnings = texts(found, Level.WARNING)
    assert "3600 s behind the primary" in warnings
    assert "clock differs from this machine's by -3600 s" in warnings


@pytest.mark.parametrize(
    ("renamed", "well"), [(0, False), (2, True)], ids=["the primary", "a secondary"]
)
def test_a_member_that_is_reached_by_another_name_alone(
    replica_set: ReplicaSet, renamed: int, well: bool
) -> None:
    class OtherName(Interception):
        def on_hello(self, reply: dict[str, Any]) -> None:
            before = reply["hosts"][renamed]
            for name in ("me", "primary"):
                reply[name] = reply[name].replace(before, "mongo.invalid:27017")
            reply["hosts"][renamed] = "mongo.invalid:27017"

    replica_set.inject(OtherName())
    found = examine(replica_set.uri)
    assert (found.verdict.well, found.verdict.symptom) == (well, Symptom.MEMBER_NAMES)
    assert "mongo.invalid:27017" in found.verdict.text


def test_a_selection_that_fails_after_the_probes_is_explained() -> None:
    target, _ = read("mongodb://db.invalid/?serverSelectionTimeoutMS=1")
    assert target is not None
    login = Login("mongodb://db.invalid/", target, 0.05, 1, has_version=True)
    assert login.run()
    (finding,) = login.findings
    assert (finding.level, finding.symptom) == (Level.WRONG, Symptom.UNKNOWN_HOST)


def test_versions_that_pymongo_does_not_support_are_wrong(replica_set: ReplicaSet) -> None:
    class Old(Interception):
        def on_hello(self, reply: dict[str, Any]) -> None:
            reply.update(minWireVersion=0, maxWireVersion=3)

    replica_set.inject(Old())
    found = examine(replica_set.uri)
    assert (found.verdict.well, found.verdict.symptom) == (False, Symptom.INCOMPATIBLE)
    assert "wire version 3" in found.verdict.text


@pytest.mark.parametrize(
    ("times", "level"),
    [([1.0, 2.0, 3.0], Level.OK), ([1.0, 2.0, 90.0], Level.NOTE), ([150.0] * 3, Level.WARNING)],
    ids=["near", "jitter", "far"],
)
def test_round_trips_that_are_long_or_vary_are_said_to_be_so(
    times: list[float], level: Level
) -> None:
    target, _ = read("mongodb://db.example.org/")
    assert target is not None
    probe = Probe(("db.example.org", 27017), hello={}, round_trips_ms=times)
    (latency,) = [each for each in of_probe(probe, target, Level.WRONG) if each.check == "latency"]
    assert latency.level is level
    assert f"{times[0]:.1f} to {times[-1]:.1f}" in latency.text


def test_a_certificate_that_ends_soon_is_a_warning(world: World) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    with certificate(not_after=soon)(world) as uri:
        found = examine(uri)
    assert found.verdict.well
    assert levels(found, "tls") == {Level.WARNING}
    assert found.verdict.advice.startswith("renew")


class OfAnEngine(Interception):
    """Answers with fields that only this engine has."""

    def __init__(self, hello: dict[str, Any], build_info: dict[str, Any]) -> None:
        super().__init__()
        self._hello, self._build_info = hello, build_info

    def on_request(self, request: Any, connection: Any) -> Any:
        return Amend(self._build_info) if request.command_name == "buildInfo" else None

    def on_hello(self, reply: Any) -> None:
        reply.update(self._hello)


@pytest.mark.parametrize(
    ("hello", "build_info", "name"),
    [
        ({}, {"ferretdb": {"version": "v2.7.0"}}, "FerretDB, not MongoDB"),
        ({"internal": {"documentdb_versions": ["0.117.0"]}}, {}, "DocumentDB (open source), not"),
        ({}, {}, None),
    ],
)
def test_a_compatible_engine_is_named(
    hello: dict[str, Any], build_info: dict[str, Any], name: str | None, proxy: ReplicaSet
) -> None:
    proxy.inject(OfAnEngine(hello, build_info))
    found = examine(proxy.uri)
    assert_well(found)
    named = [each.text for each in found.findings if each.check == "engine"]
    assert [each.startswith(str(name)) for each in named] == [True] * (name is not None)
