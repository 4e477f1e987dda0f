"""Why no server was selected: said of each one, by the error and by ``explain_selection``."""

from __future__ import annotations

import errno
import pickle
import re
import socket
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.errors import (
    AutoReconnect,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from pymongo.read_preferences import Secondary
from pymongo_resilience_instrumentation.failures.causes import Diagnosis
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.selection import selection_explained
from pymongo_resilience_instrumentation.tools.testbed import Refuse
from support.clients import Side, wait_until
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, wait_for_server

from pymongo_resilience import OperationTimeoutError, explain_selection, override
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import is_active

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

SOON = {"serverSelectionTimeoutMS": 50}
NOWHERE = Secondary(tag_sets=[{"dc": "north"}])
CANARY = "c4nary@example.org"
CONNECTION = ("db1", 27017)


def names(bed: Any) -> list[str]:
    return [member.host_and_port for member in bed.members]


def by_address(text: str) -> dict[str, str]:
    """What is said of each server."""
    said = dict(each.split(" ", 1) for each in text.split("; "))
    assert list(said) == sorted(said)
    return said


def known(side: Side, bed: Any, **options: Any) -> Any:
    uri = "mongodb://" + ",".join(names(bed)) + "/"
    client = side.client(uri, **options)
    wait_for_server(side, client)
    side.wait_for_members(client, len(bed.members))
    return client


def unselected(side: Side, function: Any, *args: Any) -> Any:
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(function, *args)
    return caught.value


def why(error: Exception) -> str:
    """What is ours in the text."""
    return str(error).partition("), Timeout: ")[0].rpartition(" (")[2]


def test_the_error_says_of_each_server_why_not(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Also of a client that was made before, and behind the words that pymongo alone has."""
    client = known(side, replica_set, **SOON)
    coll = client.get_database(database, read_preference=NOWHERE).coll
    plain = unselected(side, coll.find_one)
    telemetry = instrument()
    ours = unselected(side, coll.find_one)
    one, two, three = names(replica_set)
    assert by_address(why(ours)) == {
        one: "primary, excluded: mode secondary",
        two: "secondary, excluded: tags {member: 1}, wanted {dc: north}",
        three: "secondary, excluded: tags {member: 2}, wanted {dc: north}",
    }
    words, _, _ = str(plain).partition(", Timeout: ")
    before, _, after = str(ours).partition(", Timeout: ")
    assert before == f"{words} ({why(ours)})"
    # How long it waited; if pymongo waits until a deadline, this is what was left of it.
    waited, _, after = after.partition("s. ")
    assert 0 < float(waited) <= 0.05
    assert after.startswith(f"{Diagnosis(Symptom.NO_MATCH)} (1 attempt; find_one")
    assert type(ours) is type(plain)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.SELECTION]
    assert str(pickle.loads(pickle.dumps(ours))) == str(ours)  # noqa: S301 - made a line above
    (span,) = telemetry.operations()
    assert span.attributes["exception.message"] == "ServerSelectionTimeoutError"


def test_servers_that_cannot_be_reached_are_named_with_the_cause_and_its_age(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = known(side, replica_set, **SOON)
    replica_set.inject(Refuse(60))

    def all_refused() -> bool:
        with pytest.raises(AutoReconnect) as caught:
            side.do(client[database].coll.insert_one, {})
        return why(caught.value).count("unknown: Connection refused") == 3

    wait_until(all_refused)
    error = unselected(side, client[database].coll.insert_one, {})
    said = by_address(why(error))
    assert said.keys() == set(names(replica_set))
    for each in said.values():
        assert re.fullmatch(r"unknown: Connection refused \d\.\d s ago", each)
    text = str(error)
    assert text.startswith("No server can be reached (")
    assert [text.count(name) for name in names(replica_set)] == [1, 1, 1]
    assert text.count("Connection refused") == 3
    with pytest.raises(AutoReconnect) as caught, override(timeout_ms=50):
        side.do(client[database].coll.insert_one, {})
    assert [str(caught.value).count(name) for name in names(replica_set)] == [1, 1, 1]
    replica_set.clear()


def test_an_operation_that_is_bound_to_a_server_says_so(
    side: Side, replica_set: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    control[database].coll.insert_many([{} for _ in range(4)])
    instrument()
    client = known(side, replica_set, **SOON)
    secondary = client.get_database(database, read_preference=ReadPreference.SECONDARY).coll
    cursor = secondary.find(batch_size=2)
    side.do(cursor.next)
    side.do(cursor.next)
    gone = names(replica_set).index("{}:{}".format(*cursor.address))
    replica_set.inject(Refuse(60), on=gone)

    def refused() -> bool:
        # At first, perhaps, a connection was reset, or closed.
        side.turn()
        servers = client.topology_description.server_descriptions()
        return f"[Errno {errno.ECONNREFUSED}]" in str(servers[cursor.address].error)

    wait_until(refused)
    said = by_address(why(unselected(side, cursor.next)))
    assert "Connection refused" in said.pop(names(replica_set)[gone])
    bound = "excluded: the operation is bound to another server"
    assert sorted(said.values()) == [f"primary, {bound}", f"secondary, {bound}"]
    replica_set.clear()


def test_the_application_s_own_selector_is_not_asked_once_more(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    asked: list[int] = []
    open_: list[int] = [1]

    def own(servers: list[Any]) -> list[Any]:
        asked.append(len(servers))
        return servers if open_ else []

    instrument()
    client = side.client(replica_set.uri, server_selector=own, serverSelectionTimeoutMS=0)
    wait_for_server(side, client)
    side.wait_for_members(client, 3)
    coll = client.get_database(database, read_preference=ReadPreference.SECONDARY).coll
    asked.clear()
    open_.clear()
    said = by_address(why(unselected(side, coll.find_one)))
    assert asked == [2]
    one, two, three = names(replica_set)
    refused = "secondary, excluded: removed by the application's server selector"
    assert said == {one: "primary, excluded: mode secondary", two: refused, three: refused}
    open_.append(1)


def test_a_fault_of_ours_leaves_the_driver_s_words(
    side: Side,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = side.client(NOBODY, serverSelectionTimeoutMS=1000)
    plain = str(unselected(side, client["db"].coll.find_one)).partition(", Timeout")[0]
    instrument()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(selection_explained, "_verdicts", broken)
    error = unselected(side, client["db"].coll.find_one)
    assert str(error).startswith(f"{plain}, Timeout: ")
    assert any("internal error in pymongo-resilience" in each for each in caplog.messages)


def test_explain_selection_answers_for_every_server(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    client = known(side, replica_set, localThresholdMS=60_000)

    def said(*args: Any, **options: Any) -> list[str]:
        verdicts = {each.address: each for each in explain_selection(client, *args, **options)}
        assert list(verdicts) == sorted(names(replica_set))
        assert all(str(each).startswith(f"{address} ") for address, each in verdicts.items())
        return [str(verdicts[each]).partition(" ")[2] for each in names(replica_set)]

    for _ in range(2):  # the second time instrumented
        assert said(ReadPreference.NEAREST) == [
            "primary, eligible", "secondary, eligible", "secondary, eligible",
        ]  # fmt: skip
        assert said() == ["primary, eligible", *["secondary, excluded: mode primary"] * 2]
        assert said(writes=True)[1] == "secondary, excluded: writes go to the primary"
        assert said(Secondary(tag_sets=[{"member": "2"}, {}])) == [
            "primary, excluded: mode secondary",
            "secondary, excluded: tags {member: 1}, wanted {member: 2}, else {}",
            "secondary, eligible",
        ]
        rules = sorted(each.excluded_by.value for each in explain_selection(client, NOWHERE))
        assert rules == ["mode", "tags", "tags"]
        if not is_active():
            instrument()


def test_a_client_that_has_not_looked_for_its_servers_yet(side: Side) -> None:
    client = side.client("mongodb://db1,db2/", connect=False)
    said = sorted(str(each) for each in explain_selection(client))
    assert said == [f"db{n}:27017 unknown: not checked yet" for n in (1, 2)]


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that accepts connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


UNANSWERED = r"unknown: no answer to any check so far, for \d+\.\d s \(firewall,"


@pytest.mark.parametrize("options", [{}, {"tls": True, "tlsAllowInvalidCertificates": True}])
def test_a_server_that_never_answered_says_so(
    options: dict[str, Any], side: Side, silent: socket.socket, instrument: Instrument
) -> None:
    instrument(timeout_ms=300)
    host, port = silent.getsockname()
    client = side.client(f"mongodb://{host}:{port}/", **options)
    with pytest.raises(OperationTimeoutError, match=f"{host}:{port} {UNANSWERED}") as caught:
        side.do(client.db.coll.find_one)
    assert str(Diagnosis(Symptom.NO_ANSWER)) in str(caught.value)
    assert re.search(UNANSWERED, str(explain_selection(client)[0]))


def test_what_it_does_not_take(side: Side) -> None:
    client = side.client("mongodb://db1,db2/", connect=False)
    with pytest.raises(TypeError, match=r"^explain_selection\(\) takes a MongoClient or .* str$"):
        explain_selection("mongodb://user:secret@db1/")
    with pytest.raises(TypeError, match=r"^explain_selection\(\) takes .* (Async)?Database$"):
        explain_selection(client["db"])
    with pytest.raises(TypeError, match="of type str is not a read preference"):
        explain_selection(client, "nearest")


class UnsafeText(Exception):  # noqa: N818 - an error of somebody else's
    def __str__(self) -> str:
        raise TypeError("of the test")


ELSEWHERE = "203.0.113.9"
LOCAL = "the sandbox forbids connections"


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up one host fails with a local error that is no OSError."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == ELSEWHERE:
            raise RuntimeError(LOCAL)
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.usefixtures("sandbox")
def test_a_local_error_is_quoted_and_reachable(side: Side, instrument: Instrument) -> None:
    coll = side.client(f"mongodb://{ELSEWHERE}/", serverSelectionTimeoutMS=300)["db"].coll
    assert LOCAL in str(unselected(side, coll.find_one))
    instrument()
    error = unselected(side, coll.find_one)
    assert f"RuntimeError: {LOCAL}" in str(error)
    assert type(error.__cause__) is RuntimeError
    with pytest.raises(OperationTimeoutError, match=LOCAL) as caught, override(timeout_ms=300):
        side.do(coll.find_one)
    assert type(caught.value.__cause__.__cause__) is RuntimeError
    for each in (error, caught.value):
        assert str(pickle.loads(pickle.dumps(each))) == str(each)  # noqa: S301 - made here


@pytest.mark.usefixtures("sandbox")
def test_the_errors_of_several_servers_are_reachable(side: Side, instrument: Instrument) -> None:
    instrument()
    two = f"mongodb://{ELSEWHERE},{NOBODY.removeprefix('mongodb://')}"
    error = unselected(side, side.client(two, serverSelectionTimeoutMS=300)["db"].coll.find_one)
    assert LOCAL in str(error)
    assert {type(each) for each in error.__cause__.exceptions} == {RuntimeError, AutoReconnect}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AutoReconnect("db1:27017: [Errno 111] Connection refused"), "Connection refused"),
        (
            AutoReconnect("db1:27017: timed out (configured timeouts: connectTimeoutMS: 20.0ms)"),
            "timed out",
        ),
        (
            AutoReconnect(
                "db1:27017: connection closed (configured timeouts: connectTimeoutMS: 20.0ms) "
                "(db1:27017, 2 attempts)"
            ),
            "connection closed",
        ),
        (
            AutoReconnect(
                "db1:27017: connection closed (db1:27017, 1 attempt; find/getMore is never "
                "retried once it was sent: the server may have advanced the cursor)"
            ),
            "connection closed",
        ),
        (AutoReconnect("db1:27017: [Errno 111] Connect call failed ('::1', 27017)"),
         "Connection refused"),
        (AutoReconnect("db1:27017: [Errno -2] Name or service not known"),
         "Name or service not known"),
        (AutoReconnect("connection pool paused (db1:27017, 1 attempt)"), "connection pool paused"),
        (AutoReconnect("db1:27017: SSL handshake failed: [SSL] a\n  b"),
         "SSL handshake failed: [SSL] a b"),
        (AutoReconnect("x" * 1000), "x" * 200),
        (AutoReconnect(), "AutoReconnect"),
        (
            OperationFailure(CANARY, 18, {"errmsg": CANARY, "codeName": "AuthenticationFailed"}),
            "OperationFailure, code 18 (AuthenticationFailed)",
        ),
        (NotPrimaryError(CANARY, {"errmsg": CANARY, "code": 10107}), "NotPrimaryError"),
        (AutoReconnect(CANARY, {"errmsg": CANARY}), "AutoReconnect"),
        (pymongo.errors.ProtocolError(CANARY), "ProtocolError"),
        (RuntimeError(OperationFailure(CANARY)), "RuntimeError"),
        (UnsafeText(), "UnsafeText"),
        (RuntimeError("the sandbox forbids connections"),
         "RuntimeError: the sandbox forbids connections"),
        (LookupError("unknown encoding: idna"), "LookupError: unknown encoding: idna"),
        (OSError(f"cannot reach socks5://me:{CANARY}/x@proxy:1080?password={CANARY}&timeout=3"),
         "OSError: cannot reach socks5://***@proxy:1080?password=***&timeout=3"),
        (AutoReconnect(f"db1:27017: cannot reach http://me:{CANARY}@proxy:1080"),
         "cannot reach http://***@proxy:1080"),
    ],
)  # fmt: skip
def test_what_is_shown_of_an_error(error: Exception, text: str) -> None:
    """What this machine reports about a connection; of what a server wrote, only the code."""
    assert selection_explained.error_text(error, CONNECTION) == text


@pytest.mark.parametrize("timeout_ms", [None, 0, 20_000])
def test_a_selection_that_may_not_wait_shows_no_negative_timeout(
    timeout_ms: int | None, side: Side, silent: socket.socket, instrument: Instrument
) -> None:
    """Nor does it state more of a first check that has just begun than that it has no answer."""
    instrument(timeout_ms=timeout_ms)
    host, port = silent.getsockname()
    client = side.client(f"mongodb://{host}:{port}/", serverSelectionTimeoutMS=0)
    with pytest.raises(ServerSelectionTimeoutError, match=r", Timeout: 0s\. Likely") as caught:
        side.do(client.db.coll.find_one)
    assert "so far" in str(caught.value)
