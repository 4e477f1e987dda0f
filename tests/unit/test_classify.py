"""Each fact of a failed attempt, as pymongo's error shows it. Reasons by code: test_reasons.py."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import dns.resolver
import pymongo
import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ClientBulkWriteException,
    ConfigurationError,
    ExecutionTimeout,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
)
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.classify import StoppedBulk
from pymongo_resilience_instrumentation.failures.error_texts import Origin
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptTimeoutError,
    LostConnectionError,
    mark_unsent,
)
from pymongo_resilience_instrumentation.selection.client_limits import breaker_error
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out
from support.engine.fake_clock import FakeClock

from pymongo_resilience.breakers import CircuitBreaker
from pymongo_resilience.config import Config
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    RETRYABLE_WRITE,
    SYSTEM_OVERLOADED,
    TRANSIENT_TRANSACTION,
    RetryReason,
    Stage,
)

pytestmark = pytest.mark.oldest

SENT = AttemptFacts(
    reached_connection=True, carried_txn_number=True, server="db1:27017", min_rtt=0.25
)
NOT_SENT = SENT._replace(reached_connection=False)
BOTH = [SYSTEM_OVERLOADED, RETRYABLE]
Facts = dict[str, Any]


def replied(code: int = 1, **document: Any) -> OperationFailure:
    return OperationFailure("", code, {"ok": 0, "code": code} | document)


def caused_by(cause: Exception, error: Exception | None = None) -> Exception:
    error = AutoReconnect("of this cause") if error is None else error
    error.__cause__ = cause
    return error


def labelled(error: PyMongoError, *labels: str) -> PyMongoError:
    """As pymongo labels errors itself."""
    for label in labels:
        error._add_error_label(label)
    return error


def unlabelled(error: PyMongoError, label: str) -> PyMongoError:
    error._remove_error_label(label)
    return error


def bulk(*concerns: Any) -> BulkWriteError:
    return BulkWriteError({"writeErrors": [], "writeConcernErrors": list(concerns)})


def refused(*, elsewhere: bool) -> Exception:
    breaker = CircuitBreaker(Config(), FakeClock())
    return breaker_error(("db1", 27017), breaker, next_probe_in=5.0, elsewhere=elsewhere, labels=[])


STATEMENT = {"code": 112, "errmsg": "conflict"}
REPLIES: dict[str, tuple[Exception, Facts]] = {
    "a server's reply": (
        replied(91, codeName="ShutdownInProgress"),
        {"code": 91, "code_name": "ShutdownInProgress", "stage": Stage.ANSWERED,
         "labels": frozenset(), "base_backoff": None, "selection": False, "terminal": False,
         "transaction_over": False, "executed": False, "timed_out": False, "pool_paused": False,
         "next_probe_in": None, "elsewhere": False},
    ),
    "a name that is no text": (replied(91, codeName=91), {"code_name": None}),
    "a code outside of the document": (OperationFailure("", 13, {"ok": 0}), {"code": 13}),
    "the document's code counts": (OperationFailure("", 1, {"ok": 0, "code": 13}), {"code": 13}),
    "not primary": (
        NotPrimaryError("", {"ok": 0, "code": 10107}),
        {"code": 10107, "stage": Stage.ANSWERED},
    ),
    "a network error has no document": (
        AutoReconnect("", {"code": 91, "errorLabels": [RETRYABLE_WRITE]}),
        {"code": None, "stage": Stage.IN_FLIGHT, "labels": {RETRYABLE_WRITE}},
    ),
    "no error of pymongo's": (ValueError("no"), {"code": None, "labels": frozenset()}),
    "labels that are no list": (
        replied(6, errorLabels=dict.fromkeys(BOTH, 1)),
        {"labels": frozenset(), "reason": RetryReason.TEMPORARILY_UNAVAILABLE},
    ),
    "overloaded": (
        replied(errorLabels=BOTH, baseBackoffMS=20),
        {"labels": {*BOTH}, "reason": RetryReason.OVERLOADED, "base_backoff": 0.02},
    ),
    "a base of one millisecond": (replied(errorLabels=BOTH, baseBackoffMS=1),
                                  {"base_backoff": 0.001}),
    "labelled as overloaded, but it ran": (
        replied(errorLabels=BOTH, ok=1),
        {"reason": RetryReason.TEMPORARILY_UNAVAILABLE, "executed": True,
         "retryable_overload": False},
    ),
    "a write concern error": (
        WriteConcernError("", 64, {"ok": 0, "code": 64}), {"executed": True},
    ),
    "a write error": (WriteError("", 11000, {"ok": 0, "code": 11000}), {"executed": True}),
    "the command ran": (replied(ok=1), {"executed": True}),
    "the command ran, with a write concern error": (
        replied(ok=0, writeConcernError={"code": 64}), {"executed": True},
    ),
    "the server has aborted the transaction": (
        replied(112, errorLabels=[TRANSIENT_TRANSACTION]), {"transaction_over": True},
    ),
    "pymongo alone says so": (
        labelled(replied(112), TRANSIENT_TRANSACTION),
        {"transaction_over": False, "labels": {TRANSIENT_TRANSACTION}},
    ),
    "pymongo has removed the label": (
        unlabelled(replied(112, errorLabels=[TRANSIENT_TRANSACTION]), TRANSIENT_TRANSACTION),
        {"transaction_over": False},
    ),
    "the last write concern error of a bulk": (
        bulk({"code": 64}, {"code": 6}, {"code": 91}), {"code": 91, "executed": True},
    ),
    "a bulk without one": (bulk(), {"code": 65, "executed": True}),
    "a bulk whose errors are no documents": (bulk("91", "91"), {"code": 65}),
    "a bulk whose list is none": (
        BulkWriteError({"writeErrors": [], "writeConcernErrors": {"a": {"code": 91}}}),
        {"code": 65},
    ),
    "a bulk that stopped at a statement": (
        bulk({"code": 64}, StoppedBulk(STATEMENT, None, [])),
        {"code": 112, "reason": RetryReason.WRITE_CONFLICT},
    ),
    "a client's bulk write": (
        ClientBulkWriteException({"error": replied(91), "writeErrors": []}, True),
        {"code": 91, "reason": RetryReason.NOT_PRIMARY, "executed": False},
    ),
    "the time of the command is up": (
        ExecutionTimeout("", 50, {"ok": 0, "code": 50}),
        {"timed_out": True, "stage": Stage.ANSWERED, "stopped_by_server": True},
    ),
    "no reply": (NetworkTimeout(""), {"timed_out": True, "stage": Stage.IN_FLIGHT}),
    "the attempt's own time is up": (
        caused_by(AttemptTimeoutError(1.5), NetworkTimeout("")),
        {"timed_out": False, "reason": RetryReason.ATTEMPT_TIMEOUT},
    ),
    "a full pool": (WaitQueueTimeoutError(""), {"reason": RetryReason.POOL_EXHAUSTED}),
    "a code of a refused login, from a command": (
        replied(8000), {"reason": RetryReason.UNKNOWN, "listed_retryable": True},
    ),
    "a command that its user may not run": (
        replied(13), {"reason": RetryReason.ACCESS_ERROR, "listed_retryable": False},
    ),
    "the same, labelled for writes": (
        replied(13, errorLabels=[RETRYABLE_WRITE]), {"listed_retryable": True},
    ),
    "the same, labelled as overloaded": (
        replied(13, errorLabels=BOTH), {"listed_retryable": True},
    ),
    "the same, with one label of two": (
        replied(13, errorLabels=[SYSTEM_OVERLOADED]), {"listed_retryable": False},
    ),
    "a code that is not in the table": (replied(9), {"listed_retryable": True}),
    "a pool that was paused, but this attempt had its connection": (
        caused_by(AutoReconnect("paused")), {"pool_paused": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", REPLIES)
def test_the_facts_of_an_attempt_that_was_sent(row: str) -> None:
    error, facts = REPLIES[row]
    failure = classify.failure_of(error, SENT)
    assert {name: getattr(failure, name) for name in facts} == facts


UNTRUSTED = ssl.SSLCertVerificationError("certificate verify failed")
NO_ANSWER = dns.resolver.LifetimeTimeout(timeout=1, errors=[])
UNSENT: dict[str, tuple[Exception, Facts]] = {
    "a breaker is open": (
        refused(elsewhere=False),
        {"reason": RetryReason.CIRCUIT_BREAKER_OPEN, "next_probe_in": 5.0, "elsewhere": False,
         "listed_retryable": False},
    ),
    "a breaker is open, and another server is there": (
        refused(elsewhere=True), {"elsewhere": True},
    ),
    "a paused pool": (
        caused_by(AutoReconnect("paused")),
        {"pool_paused": True, "reason": RetryReason.SOCKET_NOT_AVAILABLE},
    ),
    "a connection that is refused": (caused_by(ConnectionRefusedError()), {"pool_paused": False}),
    "a connection that is lost": (caused_by(NetworkTimeout("")), {"pool_paused": False}),
    "a selection that fails because of a pool": (
        caused_by(AutoReconnect("paused"), ServerSelectionTimeoutError("")),
        {"pool_paused": False, "selection": True},
    ),
    "a refused login": (
        replied(18), {"reason": RetryReason.AUTHENTICATION_ERROR, "listed_retryable": False},
    ),
    "a refused login, of Atlas": (
        replied(8000), {"reason": RetryReason.AUTHENTICATION_ERROR, "listed_retryable": False},
    ),
    "an error of a login that may pass": (
        replied(91), {"reason": RetryReason.NOT_PRIMARY, "listed_retryable": True},
    ),
    "an untrusted certificate": (caused_by(UNTRUSTED), {"reason": RetryReason.TLS_ERROR}),
    "a slow handshake": (
        caused_by(UNTRUSTED, NetworkTimeout("")), {"reason": RetryReason.SOCKET_NOT_AVAILABLE},
    ),
    "name servers that fail": (
        caused_by(dns.resolver.NoNameservers(), ConfigurationError("")),
        {"reason": RetryReason.SOCKET_NOT_AVAILABLE, "listed_retryable": False},
    ),
    "name servers that do not answer": (
        caused_by(NO_ANSWER, ConfigurationError("")),
        {"reason": RetryReason.UNKNOWN, "listed_retryable": True},
    ),
    "a host name that does not exist": (
        caused_by(dns.resolver.NXDOMAIN(), ConfigurationError("")),
        {"reason": RetryReason.UNKNOWN},
    ),
    "not primary, in a handshake": (
        NotPrimaryError("", {"ok": 0, "code": 10107}), {"reason": RetryReason.NOT_PRIMARY},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", UNSENT)
def test_the_facts_of_an_attempt_that_was_not_sent(row: str) -> None:
    error, facts = UNSENT[row]
    failure = classify.failure_of(error, NOT_SENT)
    assert {name: getattr(failure, name) for name in facts} == facts
    assert failure.stage is Stage.NOT_SENT


def test_a_lookup_without_an_answer_may_succeed_later_within_a_deadline() -> None:
    error = caused_by(NO_ANSWER, ConfigurationError(""))
    with pymongo.timeout(60):
        failure = classify.failure_of(error, NOT_SENT)
    assert failure.reason is RetryReason.SOCKET_NOT_AVAILABLE


def test_a_lookup_that_fails_within_an_attempt_is_another_clients() -> None:
    error = caused_by(dns.resolver.NoNameservers(), ConfigurationError(""))
    assert classify.failure_of(error, SENT).reason is RetryReason.UNKNOWN


@pytest.mark.parametrize("attempt", [SENT, NOT_SENT])
def test_what_the_attempt_knows_is_kept(attempt: AttemptFacts) -> None:
    error = replied(91)
    failure = classify.failure_of(error, attempt)
    assert failure.error is error
    assert failure.carried_txn_number
    assert (failure.server, failure.min_rtt) == ("db1:27017", 0.25)


class UnreadableError(OperationFailure):
    def has_error_label(self, label: str) -> bool:
        raise ZeroDivisionError(label)


@pytest.mark.parametrize(
    ("attempt", "stage"), [(SENT, Stage.IN_FLIGHT), (NOT_SENT, Stage.NOT_SENT)]
)
def test_of_an_error_that_cannot_be_read_nothing_is_known(
    attempt: AttemptFacts, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    error = UnreadableError("", 91, {"ok": 0, "code": 91})
    with caplog.at_level(logging.DEBUG, "pymongo_resilience"):
        failure = classify.failure_of(error, attempt)
    assert (failure.error, failure.stage) == (error, stage)
    assert (failure.reason, failure.code) == (RetryReason.UNKNOWN, None)
    assert (failure.carried_txn_number, failure.server, failure.min_rtt) == attempt[1:]
    (record,) = caplog.records
    assert "UnreadableError" in record.getMessage()
    assert record.exc_info is not None


def test_a_stopped_bulk_ends_the_command_and_keeps_its_statement() -> None:
    class Bulk:
        idx_offset, ops = 3, ["a statement"]

    stop = StoppedBulk(STATEMENT, Bulk(), ["a result"])
    assert (stop["code"], stop.statement, stop.results) == (10107, STATEMENT, ["a result"])
    assert (stop.offset, stop.operations) == (3, ["a statement"])
    assert stop.copy() is stop


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (caused_by(LostConnectionError(RetryReason.INTERRUPTED, "")), True),
        (caused_by(OSError("refused")), False),
        (NetworkTimeout(""), False),
    ],
)
def test_the_library_ends_a_connection_with_an_error_of_its_own(
    error: Exception, ended: bool
) -> None:
    assert classify.ended_by_client(error) is ended


def test_the_deadline_ends_a_connection_once_it_is_over() -> None:
    with pymongo.timeout(60):
        assert not classify.ended_by_client(NetworkTimeout(""))
    with pymongo.timeout(1e-9):
        assert classify.ended_by_client(NetworkTimeout(""))
        assert not classify.ended_by_client(AutoReconnect(""))


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (ServerSelectionTimeoutError(""), Stage.NOT_SENT),
        (WaitQueueTimeoutError(""), Stage.NOT_SENT),
        (mark_unsent(ExecutionTimeout("", 50)), Stage.NOT_SENT),
        (ExecutionTimeout("", 50), Stage.ANSWERED),
        (NetworkTimeout(""), Stage.IN_FLIGHT),
        (
            ClientBulkWriteException({"error": NetworkTimeout(""), "writeErrors": []}, True),
            Stage.IN_FLIGHT,
        ),
        (
            timed_out(
                NetworkTimeout(""), Origin(None, Stage.ANSWERED, 1), timeout_s=1, elapsed_s=1
            ),
            Stage.ANSWERED,
        ),
    ],
)
def test_the_stage_of_an_error_outside_of_the_loop(error: Exception, stage: Stage) -> None:
    assert classify.stage_of(error) is stage


@pytest.mark.parametrize("attempt", [SENT, NOT_SENT])
def test_what_pymongo_refused_to_send_was_not_sent(attempt: AttemptFacts) -> None:
    error = mark_unsent(ExecutionTimeout("", 50, {"ok": 0, "code": 50}))
    failure = classify.failure_of(error, attempt)
    assert failure.stage is Stage.NOT_SENT
    assert failure.timed_out


def test_the_error_of_an_attempt_is_a_network_timeout_for_pymongo() -> None:
    error = AttemptTimeoutError(1.5)
    assert isinstance(error, TimeoutError)
    assert (error.reason, error.errno) == (RetryReason.ATTEMPT_TIMEOUT, None)
    assert "1500 ms" in str(error)
    assert str(LostConnectionError(RetryReason.DEAD_PEER, "gone")) == "gone"
