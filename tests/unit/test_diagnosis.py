"""The likely cause of a failed selection, by what was found on each server."""

from __future__ import annotations

import pytest
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation.failures.causes import (
    ObservedServer,
    diagnose,
    hangs_up,
    is_rejection,
    symptom_at,
    symptom_of,
)
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize(
    ("text", "symptom"),
    [
        ("Connection refused", Symptom.REFUSED),
        ("Name or service not known", Symptom.UNKNOWN_HOST),
        ("[Errno 8] nodename nor servname provided, or not known", Symptom.UNKNOWN_HOST),
        ("Temporary failure in name resolution", Symptom.UNKNOWN_HOST),
        ("Network is unreachable", Symptom.BLACK_HOLE),
        ("No route to host", Symptom.BLACK_HOLE),
        ("SSL handshake failed: h:1: The handshake operation timed out", Symptom.NO_TLS_ANSWER),
        ("timed out", Symptom.NO_ANSWER),
        ("Connection reset by peer", Symptom.HANGS_UP),
        ("connection closed", Symptom.HANGS_UP),
        ("connection is already closed", Symptom.HANGS_UP),
        ("[SSL: PROTOCOL_IS_SHUTDOWN] protocol is shutdown (_ssl.c:1)", Symptom.HANGS_UP),
        ("EOF occurred in violation of protocol", Symptom.HANGS_UP),
        (
            "certificate verify failed: certificate has expired (_ssl.c:1)",
            Symptom.EXPIRED,
        ),
        (
            "certificate verify failed: certificate is not yet valid",
            Symptom.NOT_YET_VALID,
        ),
        ("certificate verify failed: Hostname mismatch", Symptom.WRONG_HOST_NAME),
        ("certificate verify failed: IP address mismatch", Symptom.WRONG_HOST_NAME),
        ("certificate verify failed: self-signed certificate", Symptom.UNKNOWN_AUTHORITY),
        ("certificate verify failed: unable to get local issuer", Symptom.UNKNOWN_AUTHORITY),
        ('("VerificationError(errors=[...])",)', Symptom.WRONG_HOST_NAME),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", Symptom.PLAIN_PORT),
        ("[SSL: TLSV1_ALERT_PROTOCOL_VERSION] alert", Symptom.TLS_VERSION),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]", Symptom.CLIENT_CERTIFICATE),
        (
            "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1)",
            Symptom.HANGS_UP,
        ),
        (
            "[SSL: UNEXPECTED_EOF_WHILE_READING] unexpected eof while reading (_ssl.c:1)",
            Symptom.HANGS_UP,
        ),
        ("[('SSL routines', '', 'unexpected eof while reading')]", Symptom.HANGS_UP),
        ("[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert internal error", Symptom.ACCESS_LIST),
        ("[SSL: TLSV1_ALERT_ACCESS_DENIED] tlsv1 alert access denied", Symptom.ACCESS_LIST),
        ("[SSL: TLSV1_UNRECOGNIZED_NAME] tlsv1 unrecognized name", Symptom.WRONG_SNI),
        ("[('SSL routines', '', 'tlsv1 alert internal error')]", Symptom.ACCESS_LIST),
        ("ProtocolError", Symptom.NOT_MONGODB),
        ("OperationFailure, code 1", Symptom.OTHER),
    ],
)
def test_what_an_error_says(text: str, symptom: Symptom) -> None:
    assert symptom_of(text) is symptom


def down(address: str, symptom: Symptom | None = Symptom.REFUSED) -> ObservedServer:
    return ObservedServer(address, symptom)


def member(address: str, *, is_primary: bool = False) -> ObservedServer:
    return ObservedServer(address, None, is_primary, is_member=True)


@pytest.mark.parametrize(
    ("servers", "facts", "symptom"),
    [
        ([down("a:1")], {}, Symptom.REFUSED),
        # The most frequent one; of as many, the one that explains the other.
        ([down("a:1"), down("b:1"), down("c:1", Symptom.EXPIRED)], {}, Symptom.REFUSED),
        ([down("a:1"), down("c:1", Symptom.EXPIRED)], {}, Symptom.EXPIRED),
        ([down("a:1"), down("b:1", None)], {}, Symptom.REFUSED),
        ([down("a:1", None)], {}, None),
        ([], {}, None),
        ([member("a:1"), down("b:1")], {}, Symptom.NO_MAJORITY),
        ([down("a:1", None)], {"wants_primary": False}, None),
        ([], {"replica_set": True}, Symptom.SET_NAME),
        ([member("a:1"), member("b:1"), down("c:1")], {}, Symptom.ELECTION),
        ([member("a:1"), down("b:1"), down("c:1")], {}, Symptom.NO_MAJORITY),
        ([member("a:1"), down("b:1")], {"wants_primary": False}, Symptom.NO_MATCH),
        ([member("a:1", is_primary=True), down("b:1")], {}, Symptom.NO_MATCH),
        # The seed has led to members that are found under other names.
        ([down("in:1", Symptom.UNKNOWN_HOST)], {"seeds": ["out:1"]}, Symptom.MEMBER_NAMES),
        ([down("in:1", Symptom.BLACK_HOLE)], {"seeds": ["out:1"]}, Symptom.MEMBER_NAMES),
        ([down("in:1", Symptom.NO_ANSWER)], {"seeds": ["out:1"]}, Symptom.MEMBER_NAMES),
        ([down("in:1", Symptom.EXPIRED)], {"seeds": ["out:1"]}, Symptom.EXPIRED),
        ([down("out:1")], {"seeds": ["out:1"]}, Symptom.REFUSED),
    ],
)
def test_the_cause(
    servers: list[ObservedServer], facts: dict[str, object], symptom: Symptom | None
) -> None:
    diagnosis = diagnose(servers, **facts)  # type: ignore[arg-type]
    assert (diagnosis and diagnosis.symptom) is symptom


@pytest.mark.parametrize(
    ("servers", "facts", "named"),
    [
        ([down("a:1"), down("b:1", Symptom.EXPIRED), down("c:1")], {}, ("a:1", "c:1")),
        ([member("a:1"), down("b:1"), down("c:1")], {}, ("b:1", "c:1")),
        ([member("a:1"), member("b:1"), down("c:1")], {}, ("c:1",)),
        ([], {"replica_set": True, "seeds": ["a:1", "b:1"]}, ("a:1", "b:1")),
        ([down("in:1"), down("in:2")], {"seeds": ["out:1"]}, ("in:1", "in:2")),
        ([member("a:1", is_primary=True), down("b:1")], {}, ()),
    ],
)
def test_the_cause_names_the_servers_that_show_it(
    servers: list[ObservedServer], facts: dict[str, object], named: tuple[str, ...]
) -> None:
    diagnosis = diagnose(servers, **facts)  # type: ignore[arg-type]
    assert diagnosis is not None
    assert diagnosis.servers == named
    assert str(diagnosis) == (
        f"Likely cause: {diagnosis.symptom.says}. Check {diagnosis.symptom.check}"
    )


HOST, SOCKET_FILE = ("a", 1), ("/tmp/mongodb-27017.sock", None)  # noqa: S108 - only a name
RESET, REFUSED = "Connection reset by peer", "Connection refused"


@pytest.mark.parametrize(
    ("text", "address", "facts", "symptom"),
    [
        (REFUSED, HOST, {}, Symptom.REFUSED),
        (REFUSED, SOCKET_FILE, {}, Symptom.UNIX_SOCKET),
        ("No such file or directory", SOCKET_FILE, {}, Symptom.UNIX_SOCKET),
        ("timed out", SOCKET_FILE, {}, Symptom.NO_ANSWER),
        (RESET, HOST, {}, Symptom.HANGS_UP),
        (RESET, HOST, {"handshake": True}, Symptom.HANGS_UP),
        (RESET, HOST, {"tls": True, "handshake": True}, Symptom.HANGS_UP),
        (RESET, HOST, {"tls": True}, Symptom.CLOSES_AFTER_TLS),
        (REFUSED, HOST, {"tls": True}, Symptom.REFUSED),
    ],
)
def test_what_an_error_says_of_an_address(
    text: str, address: tuple[str, int | None], facts: dict[str, bool], symptom: Symptom
) -> None:
    assert symptom_at(text, address, **facts) is symptom


def test_a_connection_that_the_server_closed() -> None:
    assert hangs_up(AutoReconnect(RESET))
    assert not hangs_up(AutoReconnect(REFUSED))
    assert not hangs_up(OperationFailure(RESET))
    assert not hangs_up(None)


def test_only_a_server_rejects_a_command() -> None:
    labels = {"errorLabels": ["SystemOverloadedError"]}
    assert is_rejection(OperationFailure("busy", 462, labels))
    assert not is_rejection(OperationFailure("no", 462, {}))
    assert not is_rejection(AutoReconnect("could not connect", labels))
    assert not is_rejection(None)


def test_every_symptom_has_words() -> None:
    assert all(each.says and each.check for each in Symptom)
    assert len({each.says for each in Symptom}) == len(Symptom)
