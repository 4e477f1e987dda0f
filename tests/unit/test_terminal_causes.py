"""Which errors are terminal, by texts that were seen; and when a selection has seen enough."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
)
from pymongo.hello import Hello
from pymongo.server_description import ServerDescription
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts
from pymongo_resilience_instrumentation.failures import causes, classify
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.selection.fast_fail import UNCHANGED_S, TerminalDetector

from pymongo_resilience.rules.failure import RetryReason

pytestmark = pytest.mark.oldest

A, B = ("a", 1), ("b", 2)
NOT_SENT = AttemptFacts(
    reached_connection=False, carried_txn_number=False, server=None, min_rtt=0.0
)
SECONDS = "(configured timeouts: socketTimeoutMS: 20000.0ms, connectTimeoutMS: 20000.0ms)"
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
REFUSED = AutoReconnect(f"a:1: [Errno 111] Connection refused {SECONDS}")
UNTRUSTED = AutoReconnect(f"a:1: {VERIFY}self-signed certificate (_ssl.c:1006) {SECONDS}")
NO_TLS = AutoReconnect(
    "SSL handshake failed: a:1: [SSL: WRONG_VERSION_NUMBER] wrong version number"
)
WRONG = OperationFailure("no", 18, {"ok": 0.0, "errmsg": "authentication failed", "code": 18})
SELECTIONS = [each for each in causes.TERMINAL if each not in causes.LOGINS]
OTHER_SET = "client is configured to connect to a replica set named 'x' but this node belongs to "


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (UNTRUSTED, Symptom.UNKNOWN_AUTHORITY),
        (AutoReconnect(f"{VERIFY}certificate has expired"), Symptom.EXPIRED),
        (AutoReconnect(f"{VERIFY}Hostname mismatch, not valid for 'a'"), Symptom.WRONG_HOST_NAME),
        # PyOpenSSL 26.4 with service-identity 26.1.
        (AutoReconnect("('', 'certificate verify failed')"), Symptom.UNKNOWN_AUTHORITY),
        (AutoReconnect("VerificationError(errors=[IPAddressMismatch])"), Symptom.WRONG_HOST_NAME),
        (NO_TLS, Symptom.PLAIN_PORT),
        (AutoReconnect("[('SSL routines', '', 'wrong version number')]"), Symptom.PLAIN_PORT),
        (ConfigurationError(f"{OTHER_SET}a set named 'rs0'"), Symptom.SET_NAME),
        (WRONG, Symptom.PASSWORD),
        (OperationFailure("no user", 11, {"ok": 0.0, "code": 11}), Symptom.USER),
        (OperationFailure("not enabled", 334, {"ok": 0.0, "code": 334}), Symptom.MECHANISM),
        (OperationFailure("not enabled", 2, {"ok": 0.0, "code": 2}), Symptom.MECHANISM),
        (OperationFailure("bad auth", 8000, {"ok": 0.0, "code": 8000}), Symptom.PASSWORD),
        (AutoReconnect("SSL handshake failed: a:1: [SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert "
                       "protocol version (_ssl.c:1006)"), Symptom.TLS_VERSION),
    ],
)  # fmt: skip
def test_terminal(error: Exception, cause: Symptom) -> None:
    assert causes.cause_of(error) is cause


@pytest.mark.parametrize(
    "error",
    [
        None,
        REFUSED,
        AutoReconnect("a:1: [Errno -2] Name or service not known"),
        AutoReconnect("SSL handshake failed: a:1: [Errno 104] Connection reset by peer"),
        AutoReconnect("SSL handshake failed: a:1: EOF occurred in violation of protocol"),
        AutoReconnect("SSL handshake failed: a:1: (-1, 'Unexpected EOF')"),
        AutoReconnect(
            "SSL handshake failed: a:1: [SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert "
            "internal error (_ssl.c:1006)"
        ),
        AutoReconnect(
            "SSL handshake failed: a:1: [SSL: TLSV1_UNRECOGNIZED_NAME] tlsv1 "
            "unrecognized name (_ssl.c:1006)"
        ),
        NetworkTimeout("SSL handshake failed: a:1: _ssl.c:989: The handshake operation timed out"),
        AutoReconnect("SSL handshake failed: a:1: [SSL] sslv3 alert handshake failure (_ssl.c:1)"),
        ConnectionFailure("connection pool paused"),
        # A clock that goes wrong, or a certificate that was rolled out early.
        AutoReconnect(f"{VERIFY}certificate is not yet valid (_ssl.c:1006)"),
        # A server that is down, where the client is connected to it directly (pymongo 4.20).
        ConfigurationError(f"{OTHER_SET}a set named 'None'"),
        OperationFailure("not authorized", 13, {"ok": 0.0, "code": 13}),
        # The text of a server, whatever it says.
        OperationFailure("certificate verify failed", 8001, {"ok": 0.0}),
        NotPrimaryError("wrong version number", {"ok": 0.0}),
    ],
)
def test_not_terminal(error: Exception | None) -> None:
    assert causes.cause_of(error) is None


@pytest.mark.parametrize("cause", SELECTIONS)
def test_the_error_is_pymongos_with_the_cause_the_servers_and_what_to_check(
    cause: Symptom,
) -> None:
    found = {A: UNTRUSTED, B: "primary"}
    error = causes.selection_error(cause, found, "orders")
    assert type(error) is ServerSelectionTimeoutError
    for said in (cause.says, cause.check, "a:1 (a:1: [SSL", "; b:2 (primary). "):
        assert said in str(error)
    assert ('replicaSet="orders"' in str(error)) == (cause is Symptom.SET_NAME)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - what was pickled here
    assert (again.terminal_cause, str(again)) == (cause.value, str(error))


@pytest.mark.parametrize("cause", SELECTIONS)
def test_the_error_is_classified_as_the_table_has_it(cause: Symptom) -> None:
    error = causes.selection_error(cause, {A: UNTRUSTED}, None)
    failure = classify.failure_of(error, NOT_SENT)
    assert failure.reason is causes.TERMINAL[cause]
    assert (failure.selection, failure.terminal, failure.timed_out) == (True, True, False)
    assert not classify.expired(error)


@pytest.mark.parametrize("said", ["nothing of ours", None, ["certificate"], 1])
def test_an_attribute_of_somebody_elses_says_nothing(said: Any) -> None:
    error = ServerSelectionTimeoutError("none")
    error.terminal_cause = said
    failure = classify.failure_of(error, NOT_SENT)
    assert (failure.reason, failure.terminal) == (RetryReason.NODE_NOT_AVAILABLE, False)


def test_a_refusal_that_is_told_again_is_another_error_of_the_same_type() -> None:
    again = causes.refused_again(WRONG, A, 0.25)
    assert type(again) is OperationFailure
    assert again is not WRONG
    assert (again.code, again.details) == (18, WRONG.details)
    assert "authentication failed (reported by a:1 0.2 s ago" in str(again)
    assert Symptom.PASSWORD.check in str(again)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (None, Symptom.PASSWORD.says),
        ({"ok": 0.0, "code": 18}, Symptom.PASSWORD.says),
        ({"ok": 0.0, "code": 18, "errmsg": "no such user"}, "no such user"),
    ],
)
def test_a_refusal_that_is_told_again_has_the_servers_words(
    details: dict[str, Any] | None, said: str
) -> None:
    again = causes.refused_again(OperationFailure("no", 18, details), A, 0.0)
    assert str(again).startswith(f"{said} (reported by a:1")
    assert again.details == details
    assert details is None or again.details is not details, "it is raised to somebody else"


def test_a_refusal_that_is_told_again_says_what_to_check() -> None:
    user = OperationFailure("no", 11, {"ok": 0.0, "code": 11})
    assert Symptom.USER.check in str(causes.refused_again(user, A, 0.0))
    unknown = OperationFailure("no", 13, {"ok": 0.0, "code": 13})
    assert Symptom.PASSWORD.check in str(causes.refused_again(unknown, A, 0.0))


def test_a_server_without_a_state_is_named_alone() -> None:
    error = causes.selection_error(Symptom.EXPIRED, {A: None, B: "primary"}, None)
    assert "Servers: a:1; b:2 (primary). Check" in str(error)


def down(address: tuple[str, int], error: Exception | None) -> ServerDescription:
    return ServerDescription(address, error=error)


def up(address: tuple[str, int]) -> ServerDescription:
    said = {"ok": 1, "setName": "x", "hosts": ["a:1", "b:2"], "secondary": True}
    return ServerDescription(address, Hello(said | {"maxWireVersion": 21}), 0.001)


SETTINGS: Any = SimpleNamespace(_topology_id="one", seeds=[A])


def topology(*servers: ServerDescription, of: str = "Unknown") -> TopologyDescription:
    known = {server.address: server for server in servers}
    kind = getattr(TOPOLOGY_TYPE, of)
    return TopologyDescription(kind, known, "x", None, None, SETTINGS)


def looks(*topologies: TopologyDescription, refusals: int = 0) -> list[Symptom | None]:
    terminal_detector = TerminalDetector()
    return [terminal_detector.look(each, 0.0, lambda _: refusals) for each in topologies]


def test_two_checks_in_a_row() -> None:
    first, second = topology(down(A, UNTRUSTED)), topology(down(A, UNTRUSTED))
    assert looks(first, first, first, second) == [None, None, None, Symptom.UNKNOWN_AUTHORITY]


def test_a_check_in_between_that_found_something_else_begins_anew() -> None:
    found = [UNTRUSTED, REFUSED, UNTRUSTED, NO_TLS, UNTRUSTED, UNTRUSTED]
    seen = looks(*(topology(down(A, error)) for error in found))
    assert seen == [None] * 5 + [Symptom.UNKNOWN_AUTHORITY]


def test_a_server_that_was_known_in_between_begins_anew() -> None:
    terminal_one, known = down(A, UNTRUSTED), up(A)
    seen = looks(*map(topology, (terminal_one, known, down(A, UNTRUSTED))))
    assert seen == [None, None, None]


def test_every_server_and_for_the_same_cause() -> None:
    def twice(*errors: Exception) -> Symptom | None:
        pairs = list(zip((A, B), errors, strict=False))
        return looks(*(topology(*(down(*pair) for pair in pairs)) for _ in range(2)))[-1]

    assert twice(UNTRUSTED, UNTRUSTED) is Symptom.UNKNOWN_AUTHORITY
    assert twice(UNTRUSTED, NO_TLS) is None
    assert twice(UNTRUSTED, REFUSED) is None
    assert twice(REFUSED, UNTRUSTED) is None


def test_the_last_server_to_qualify_counts() -> None:
    late = [down(B, UNTRUSTED), down(B, UNTRUSTED)]
    early = down(A, UNTRUSTED), down(A, UNTRUSTED)
    assert looks(
        topology(early[0], down(B, None)),
        topology(early[1], down(B, None)),
        topology(early[1], late[0]),
        topology(early[1], late[1]),
    ) == [None, None, None, Symptom.UNKNOWN_AUTHORITY]


def test_a_password_that_two_logins_in_a_row_were_refused_for() -> None:
    assert looks(topology(down(A, WRONG)), refusals=2) == [Symptom.PASSWORD]
    assert looks(*[topology(down(A, WRONG))] * 3, refusals=1) == [None] * 3
    assert looks(topology(down(A, WRONG), down(B, None)), refusals=2) == [None]


def test_the_name_of_another_set_that_stands_while_no_check_comes_back() -> None:
    """As of a hello that is streamed."""

    def never(_: object) -> int:
        return 0

    terminal_detector = TerminalDetector()
    other = ConfigurationError(f"{OTHER_SET}a set named 'rs0'")
    first, second = (topology(down(A, other), of="Single") for _ in range(2))
    assert terminal_detector.look(first, 10.0, never) is None
    assert terminal_detector.look(first, 10.0 + 0.9 * UNCHANGED_S, never) is None
    assert terminal_detector.look(first, 10.0 + UNCHANGED_S, never) is Symptom.SET_NAME
    again = TerminalDetector()
    assert [again.look(each, 10.0, never) for each in (first, second)] == [None, Symptom.SET_NAME]
    certificate, terminal_detector = topology(down(A, UNTRUSTED)), TerminalDetector()
    assert {terminal_detector.look(certificate, now, never) for now in (0.0, 60.0)} == {None}


def test_a_set_without_a_server_is_another_set() -> None:
    assert looks(topology(of="ReplicaSetNoPrimary")) == [Symptom.SET_NAME]
    # An SRV record may bring servers here.
    assert looks(topology(of="Sharded")) == [None]
    assert looks(topology()) == [None]


@pytest.mark.parametrize(
    ("of", "hello", "cause"),
    [
        # The primary that they name has a terminal cause, or they know none.
        ("ReplicaSetNoPrimary", {"secondary": True, "primary": "a:1"}, Symptom.UNKNOWN_AUTHORITY),
        ("ReplicaSetNoPrimary", {"arbiterOnly": True, "primary": "a:1"}, Symptom.UNKNOWN_AUTHORITY),
        ("ReplicaSetNoPrimary", {"secondary": True}, None),
        ("ReplicaSetNoPrimary", {"secondary": True, "primary": "c:3"}, None),
        # A read from secondaries: the primary and an arbiter have their roles.
        ("ReplicaSetWithPrimary", {"isWritablePrimary": True}, Symptom.UNKNOWN_AUTHORITY),
        ("ReplicaSetWithPrimary", {"arbiterOnly": True}, Symptom.UNKNOWN_AUTHORITY),
        # It recovers, is too far behind, or does not suit the application's selector for now.
        ("ReplicaSetNoPrimary", {}, None),
        ("ReplicaSetWithPrimary", {}, None),
        ("ReplicaSetWithPrimary", {"secondary": True}, None),
        ("Sharded", {"msg": "isdbgrid"}, None),
    ],
)
def test_a_server_that_is_reached_and_may_come_to_serve_is_waited_for(
    of: str, hello: dict[str, Any], cause: Symptom | None
) -> None:
    said = {"ok": 1, "maxWireVersion": 21}
    if of != "Sharded":
        said |= {"setName": "x", "hosts": ["a:1", "b:2"]}
    reached = ServerDescription(B, Hello(said | hello), 0.001)
    seen = looks(*(topology(down(A, UNTRUSTED), reached, of=of) for _ in range(2)))
    assert seen == [None, cause]


def test_where_every_server_is_known_it_is_the_selector_that_waits() -> None:
    assert looks(topology(up(A), up(B), of="ReplicaSetWithPrimary")) == [None]
