"""Whatever error pymongo's own loop survives, an operation with the library survives as well.

Each error is raised in place of an attempt, before it has a connection or after it was sent, with
pymongo alone and with the library: if pymongo's retries bring a result, so do the library's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import ssl
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo import errors
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.reasons import BY_CODE
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.each_setup

OVERLOADED = ("SystemOverloadedError", "RetryableError")
LABELS: tuple[tuple[str, ...], ...] = (
    (), ("RetryableWriteError",), OVERLOADED, ("SystemOverloadedError",),
)  # fmt: skip
CODES = (*sorted(BY_CODE), 2, 43, 50, 11000, None)
LABELLED_CODES = (2, 13, 18, 91, 112, 189)
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "find_one": lambda coll: coll.find_one({}),
    "insert_one": lambda coll: coll.insert_one({}),
    "update_many": lambda coll: coll.update_many({}, {"$set": {"a": 1}}),
    "command": lambda coll: coll.database.command("ping"),
}
Make = Callable[[], errors.PyMongoError]


def _caused(error: errors.PyMongoError, cause: Exception) -> errors.PyMongoError:
    error.__cause__ = cause
    return error


def _coded(cls: type[errors.OperationFailure], code: int | None, labels: tuple[str, ...]) -> Make:
    document = {"ok": 0, "code": code, "errmsg": "", "errorLabels": list(labels)}
    return lambda: cls("", code, {**document})


def _labelled(make: Make, labels: tuple[str, ...]) -> Make:
    def labelled() -> errors.PyMongoError:
        error = make()
        for label in labels:
            error._add_error_label(label)
        return error

    return labelled


UNTRUSTED = ssl.SSLCertVerificationError("certificate verify failed")
CONNECTION: dict[str, Make] = {
    "ConnectionFailure": lambda: errors.ConnectionFailure(""),
    "AutoReconnect": lambda: errors.AutoReconnect(""),
    "NetworkTimeout": lambda: errors.NetworkTimeout(""),
    "NotPrimaryError": lambda: errors.NotPrimaryError("", {"ok": 0, "code": 10107}),
    "ServerSelectionTimeoutError": lambda: errors.ServerSelectionTimeoutError(""),
    "WaitQueueTimeoutError": lambda: errors.WaitQueueTimeoutError(""),
    "TLS": lambda: _caused(errors.AutoReconnect(""), UNTRUSTED),
    "refused": lambda: _caused(errors.AutoReconnect(""), ConnectionRefusedError(111, "refused")),
    "ProtocolError": lambda: errors.ProtocolError(""),
    "ConfigurationError": lambda: errors.ConfigurationError(""),
    "InvalidOperation": lambda: errors.InvalidOperation(""),
    "EncryptionError": lambda: errors.EncryptionError(errors.AutoReconnect("")),
    "PyMongoError": lambda: errors.PyMongoError(""),
}
ERRORS: dict[str, Make] = {
    **{
        f"{name} {' '.join(labels)}": _labelled(make, labels)
        for name, make in CONNECTION.items()
        for labels in LABELS
        # pymongo gives it no label.
        if name != "WaitQueueTimeoutError" or not labels
    },
    **{
        f"code {code} {' '.join(labels)}": _coded(errors.OperationFailure, code, labels)
        for code in CODES
        for labels in (LABELS if code in LABELLED_CODES else [()])
    },
}


class Attempts:
    """Raises an error in place of the first attempts of each operation."""

    def __init__(self) -> None:
        self.make: Make | None = None
        self.left = self.made = 0
        self.sent = False

    def fails(self) -> None:
        self.made += 1
        if self.make is not None and self.left:
            self.left -= 1
            raise self.make()


@pytest.fixture
def attempts(side: Side, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Beneath the library: in what pymongo's loop calls, or where it checks a connection out."""
    attempts = Attempts()
    client = pymongo.MongoClient if side.runner is None else pymongo.AsyncMongoClient
    pool = driver.clients.classes("pool", "Pool")[side.runner is not None]
    retry, checkout = client._retry_internal, pool.checkout

    @functools.wraps(retry)
    def retry_internal(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        def sync_attempt(*given: Any) -> Any:
            if attempts.sent:
                attempts.fails()
            return func(*given)

        async def async_attempt(*given: Any) -> Any:
            if attempts.sent:
                attempts.fails()
            return await func(*given)

        wrapped = sync_attempt if side.runner is None else async_attempt
        return retry(self, wrapped, *args, **kwargs)

    @functools.wraps(checkout)
    def checked_out(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (attempts.sent or self.is_sdam):
            attempts.fails()
        return checkout(self, *args, **kwargs)

    monkeypatch.setattr(client, "_retry_internal", retry_internal)
    monkeypatch.setattr(pool, "checkout", checked_out)
    # No server becomes unknown, so nothing waits for a check.
    for cls in driver.clients.classes("topology", "Topology"):
        monkeypatch.setattr(cls, "_handle_error", _ignored(cls._handle_error))
    # pymongo's back-off is a random part of a time that grows.
    monkeypatch.setattr("random.random", lambda: 0.0)
    return attempts


def _ignored(method: Any) -> Any:
    def ignored(*_: Any) -> Any:
        return None

    async def ignored_async(*_: Any) -> Any:
        return None

    return functools.wraps(method)(
        ignored_async if inspect.iscoroutinefunction(method) else ignored
    )


def _survived(
    side: Side, coll: Any, attempts: Attempts, call: Callable[[Any], Any]
) -> set[tuple[str, bool]]:
    """The errors after which the operation has a result, and whether it was sent before."""
    found = set()
    for name, make in ERRORS.items():
        for sent in (False, True):
            attempts.sent, attempts.make = sent, make
            # After a rejection, pymongo retries twice.
            attempts.left = 2 if name.endswith(" ".join(OVERLOADED)) else 1
            with contextlib.suppress(errors.PyMongoError):
                side.do(call, coll)
                found.add((name, sent))
            attempts.make = None
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_pymongo_survives_the_library_survives(
    name: str, side: Side, replica_set: ReplicaSet, database: str, attempts: Attempts,
    instrument: Instrument,
) -> None:  # fmt: skip
    plain = _survived(side, side.client(replica_set.uri)[database].coll, attempts, OPERATIONS[name])
    assert plain or name == "command"
    # A budget would take the many failures for an overload that lasts.
    instrument(base_backoff_ms=1, retry_budget="off")
    ours = _survived(side, side.client(replica_set.uri)[database].coll, attempts, OPERATIONS[name])
    assert plain - ours == set()
