"""The OperationTimeoutError of every class of the driver: caught both ways, and carried anywhere.

What it is made from and when is in test_timeout_errors.py of the integration tests.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import gridfs.errors
import pymongo.errors
import pytest
from bson import ObjectId
from pymongo.errors import NetworkTimeout, PyMongoError
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.error_texts import Origin
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out
from support.engine.driver_exceptions import made_of_itself

from pymongo_resilience import OperationTimeoutError
from pymongo_resilience.errors import Stage

pytestmark = pytest.mark.oldest

LABEL = "TransientTransactionError"
REPLY = {"ok": 0.0, "errmsg": "no", "code": 50, "errorLabels": [LABEL]}
BULK = {
    "writeErrors": [{"index": 0, "code": 50, "errmsg": "time", "op": {"_id": ObjectId("0" * 24)}}],
    "writeConcernErrors": [{"code": 91, "errmsg": "shutting down"}],
    "nInserted": 1,
}
REPLIED = ("no", 50, REPLY, 25)
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "PyMongoError": ("no", [LABEL]),
    "ProtocolError": ("no",),
    "ConnectionFailure": ("lost", [LABEL]),
    "WaitQueueTimeoutError": ("full",),
    "AutoReconnect": ("lost", ["db:27017: lost"]),
    "NetworkTimeout": ("late", {"errorLabels": [LABEL]}),
    "NotPrimaryError": ("not primary", {"ok": 0.0, "code": 10107, "errorLabels": [LABEL]}),
    "ServerSelectionTimeoutError": ("no server", [NetworkTimeout("late")]),
    "_OperationCancelled": ("cancelled",),
    "ConfigurationError": ("no",),
    "InvalidURI": ("no",),
    "InvalidOperation": ("no",),
    "InvalidName": ("no",),
    "CollectionInvalid": ("no",),
    "OperationFailure": REPLIED,
    "CursorNotFound": REPLIED,
    "ExecutionTimeout": REPLIED,
    "WriteConcernError": REPLIED,
    "WTimeoutError": REPLIED,
    "WriteError": REPLIED,
    "DuplicateKeyError": REPLIED,
    "BulkWriteError": (BULK,),
    "ClientBulkWriteException": (BULK | {"error": NetworkTimeout("late")}, True),
    "EncryptionError": (NetworkTimeout("late"),),
    "EncryptedCollectionError": (NetworkTimeout("late"), {"fields": []}),
    "GridFSError": ("no",),
    "CorruptGridFile": ("no",),
    "NoFile": ("no",),
    "FileExists": ("no",),
}
CLASSES = [
    cls
    for module in (pymongo.errors, gridfs.errors)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, PyMongoError)
]
NAMES = sorted({cls.__name__ for cls in CLASSES})
CLASS = {cls.__name__: cls for cls in CLASSES}


def underlying(name: str) -> PyMongoError:
    error: PyMongoError = CLASS[name](*EXAMPLES[name])
    return error


def expired(name: str) -> PyMongoError:
    return timed_out(
        underlying(name),
        Origin("db:27017", Stage.IN_FLIGHT, 3),
        timeout_s=0.5,
        elapsed_s=0.51,
    )


def raise_expired(name: str) -> None:
    raise expired(name)


def check(error: Any, name: str) -> None:
    """It is all that ``expired(name)`` is, wherever it has been since."""
    before = underlying(name)
    for each in (OperationTimeoutError, type(before), PyMongoError):
        with pytest.raises(each):
            raise error
    assert error.timeout is True
    for fact in ("0.5 s", "0.510 s", "3 attempts", "db:27017", "in flight", str(before)):
        assert fact in str(error)
    assert (error.timeout_s, error.elapsed_s, error.attempts) == (0.5, 0.51, 3)
    assert (error.server, error.stage) == ("db:27017", Stage.IN_FLIGHT)
    for wanted in (error, error.__cause__):
        for fact in ("code", "details", "errors", "cause", "encrypted_fields", "verbose", "error"):
            assert repr(getattr(wanted, fact, None)) == repr(getattr(before, fact, None)), fact
        assert wanted.has_error_label(LABEL) == before.has_error_label(LABEL)
    assert type(error.__cause__) is type(before)
    assert str(error.__cause__) == str(before)


def _pickled(protocol: int) -> Callable[[PyMongoError], Any]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - made here


CARRIERS: dict[str, Callable[[PyMongoError], Any]] = {
    "none": lambda error: error,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {each}": _pickled(each) for each in range(pickle.HIGHEST_PROTOCOL + 1)},
    "a copy of a copy": lambda error: copy.copy(copy.deepcopy(error)),
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_drivers_class_as_well_wherever_it_goes(name: str, carrier: str) -> None:
    check(CARRIERS[carrier](expired(name)), name)


def test_it_keeps_what_was_added_to_it_later() -> None:
    """A bulk write's own pickle keeps its details alone (pymongo 4.20, ``__reduce__``)."""
    error = expired("BulkWriteError")
    error._add_error_label("UnknownTransactionCommitResult")
    error.add_note("of the application")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made above
    assert again.has_error_label("UnknownTransactionCommitResult")
    assert again.__notes__ == ["of the application"]


def test_it_comes_through_a_process_pool() -> None:
    """A fresh child knows no class of ours until it has unpickled or made one."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as executor:
        raised = {name: executor.submit(raise_expired, name).exception(60) for name in NAMES}
        echoed = {name: executor.submit(copy.copy, expired(name)).result(60) for name in NAMES}
    for name in NAMES:
        check_unchained(raised[name], name)
        check(echoed[name], name)


def check_unchained(error: Any, name: str) -> None:
    """The pool puts the child's traceback, as text, in the place of ``__cause__``."""
    assert "raise_expired" in str(error.__cause__)
    error.__cause__ = underlying(name)
    check(error, name)


def test_where_no_server_was_selected() -> None:
    error: Any = timed_out(
        underlying("ServerSelectionTimeoutError"),
        Origin(None, Stage.NOT_SENT, 1),
        timeout_s=2,
        elapsed_s=2.0004,
    )
    assert (error.server, error.stage) == (None, Stage.NOT_SENT)
    for fact in ("2 s", "2.000 s", "1 attempt,", "without a server", "not sent"):
        assert fact in str(error)


def bulk(**lists: list[Any]) -> pymongo.errors.BulkWriteError:
    return pymongo.errors.BulkWriteError({"writeErrors": [], "writeConcernErrors": []} | lists)


def client_bulk(**details: Any) -> pymongo.errors.ClientBulkWriteException:
    return pymongo.errors.ClientBulkWriteException(
        {"error": None, "writeErrors": []} | details, True
    )


BY_CODE_ALONE = {"code": 50, "codeName": "Whatever", "errmsg": "as you like"}
BY_NAME_ALONE = {
    "code": 8,
    "codeName": "MaxTimeMSExpired",
    "errmsg": "operation exceeded time limit",
    "errInfo": {"wtimeout": True},
}
failure = pymongo.errors.OperationFailure
EXPIRIES = [
    NetworkTimeout("late"),
    pymongo.errors.ServerSelectionTimeoutError("none"),
    pymongo.errors.WaitQueueTimeoutError("full"),
    pymongo.errors.EncryptionError(NetworkTimeout("late")),
    pymongo.errors.EncryptionError(failure("x", 50, BY_CODE_ALONE)),
    failure("x", 50, BY_CODE_ALONE),
    failure("x", 50),
    failure("x", 8, {"code": 8, "writeConcernError": BY_CODE_ALONE}),
    pymongo.errors.WriteError("x", 50, BY_CODE_ALONE),
    pymongo.errors.WriteConcernError("x", 50, BY_CODE_ALONE),
    bulk(writeErrors=[BY_CODE_ALONE, BY_NAME_ALONE]),
    bulk(writeConcernErrors=[BY_CODE_ALONE, BY_NAME_ALONE]),
    client_bulk(error=NetworkTimeout("late")),
    client_bulk(error=failure("x", 50, BY_CODE_ALONE)),
    client_bulk(error=BY_CODE_ALONE),
    client_bulk(writeErrors=[BY_CODE_ALONE]),
    client_bulk(writeConcernErrors=[BY_CODE_ALONE]),
]
NO_EXPIRIES = [
    pymongo.errors.AutoReconnect("timed out"),
    failure("operation exceeded time limit", 8, BY_NAME_ALONE),
    failure("x", 262, {"code": 262, "codeName": "ExceededTimeLimit"}),
    pymongo.errors.ExecutionTimeout("x", 8, BY_NAME_ALONE),
    pymongo.errors.WTimeoutError("waiting timed out", 64, BY_NAME_ALONE | {"code": 64}),
    bulk(writeErrors=[BY_NAME_ALONE], writeConcernErrors=[BY_NAME_ALONE, "50"]),
    client_bulk(error=failure("x", 8, BY_NAME_ALONE), writeConcernErrors=[BY_NAME_ALONE]),
    pymongo.errors.EncryptionError(ValueError("timed out")),
    made_of_itself(),
    TimeoutError("of the application"),
]


@pytest.mark.parametrize("error", EXPIRIES, ids=lambda each: repr(each)[:55])
def test_what_is_an_expiry(error: Exception) -> None:
    assert classify.expired(error)


@pytest.mark.parametrize("error", NO_EXPIRIES, ids=lambda each: repr(each)[:55])
def test_no_name_and_no_text_makes_an_expiry(error: Exception) -> None:
    """Nor does a ``wtimeout`` that the server has by default: "check that the code is 50"."""
    assert not classify.expired(error)
