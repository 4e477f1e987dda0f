"""A fault of ours in what keeps a timeout: the operation is done, and nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gridfs
import pytest
from pymongo import _csot
from pymongo.errors import ExecutionTimeout, OperationFailure
from pymongo_resilience_instrumentation import cursor_methods, driver, in_progress
from pymongo_resilience_instrumentation.features.gridfs import stream_deadlines
from pymongo_resilience_instrumentation.timeouts import command_limits
from pymongo_resilience_instrumentation.transactions import session_methods
from support.clients import Side
from support.telemetry import Instrument
from support.transactions import LONG, LOW, DriversTime, drivers_time, run, session_of

from pymongo_resilience import override
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest

Use = Callable[[Side, Any], Any]


def _list(side: Side, db: Any) -> None:
    assert len(side.documents(db.coll.find({}, batch_size=2))) == 3


def _list_under_a_policy(side: Side, db: Any) -> None:
    with override(timeout_ms=LONG):
        _list(side, db)


def _find_one(side: Side, db: Any) -> None:
    assert side.do(db.coll.find_one) is not None


def _copy(side: Side, db: Any) -> None:
    assert len(side.documents(db.coll.find({}).clone())) == 3


def _close(side: Side, db: Any) -> None:
    cursor = db.coll.find({}, batch_size=2)
    side.do(cursor.next)
    side.do(cursor.close)


def _without_end(side: Side, db: Any) -> None:
    with override(timeout_ms=0):
        assert side.do(db.coll.find_one, max_time_ms=LONG) is not None


def _watch(side: Side, db: Any) -> None:
    with override(timeout_ms=LONG):
        stream = side.do(db.coll.watch, max_await_time_ms=1)
        assert side.do(stream.try_next) is None
    side.do(stream.close)


def _transaction(side: Side, db: Any) -> None:
    with session_of(side, db.client, default_timeout_ms=LONG) as session:
        run(side, session, lambda s: db.coll.insert_one({}, session=s))
        side.do(session.start_transaction)
        side.do(db.coll.insert_one, {}, session=session)
        side.do(session.abort_transaction)
    assert side.do(db.coll.count_documents, {}) == 4


def _file(side: Side, db: Any) -> None:
    cls: Any = gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket
    bucket = cls(db)
    made = side.do(bucket.upload_from_stream, "name", b"content")
    assert side.do(side.do(bucket.open_download_stream, made).read) == b"content"


FAULTS: dict[str, tuple[Any, str, Use]] = {
    "a cursor is made": (cursor_methods, "policy_of", _list_under_a_policy),
    "a cursor is copied": (cursor_methods, "policy_of_cursor", _copy),
    "a batch": (cursor_methods, "_apply", _close),
    "a list": (cursor_methods, "_for_all", _list),
    "a cursor is closed": (driver.csot.Timeout, "from_now", _close),
    "a limit": (command_limits, "_adjust", _list),
    "a clock": (driver.csot, "now", _find_one),
    "a selection": (driver.csot, "within", _find_one),
    "no limit": (driver.connections, "lift_limits", _without_end),
    "a stream's next": (driver.cursors, "timeout_of_each_next", _watch),
    "a transaction is begun": (session_methods, "default_of", _transaction),
    "a transaction is ended": (driver.csot.Timeout, "from_now", _transaction),
    "a file": (stream_deadlines._Method, "_begin", _file),
    "a file is opened": (stream_deadlines, "_keep", _file),
}


BROKEN: dict[str, Any] = {}
# In a file of the library: what is raised elsewhere may be the application's.
source = "def fail(*_, **__):\n    raise LookupError('a fault of the test')\n"
exec(compile(source, str(Path(str(driver.__file__)).with_name("broken.py")), "exec"), BROKEN)  # noqa: S102 - this text
fail = BROKEN["fail"]


@pytest.mark.parametrize("where", FAULTS)
def test_the_operation_goes_on(
    where: str, side: Side, proxy: ReplicaSet, database: str, control: Any,
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    instrument(timeout_ms=LONG)
    control[database].coll.insert_many([{} for _ in range(3)])
    db = side.client(proxy.uri)[database]
    owner, name, use = FAULTS[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        use(side, db)
    assert "internal error in pymongo-resilience" in caplog.text
    assert in_progress.current() is None
    assert (_csot.TIMEOUT.get(), _csot.DEADLINE.get()) == (None, float("inf"))


def test_the_error_of_a_transaction_is_the_drivers(
    side: Side, proxy: ReplicaSet, instrument: Instrument, monkeypatch: pytest.MonkeyPatch,
    drivers_time: DriversTime, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    instrument()

    def conflict(_: Any) -> None:
        drivers_time.passed = LOW
        raise OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})

    monkeypatch.setattr(session_methods, "timed_out", fail)
    with session_of(side, side.client(proxy.uri), default_timeout_ms=LOW) as session:
        with pytest.raises(ExecutionTimeout, match="conflict"):
            run(side, session, conflict)
