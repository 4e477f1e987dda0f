"""What goes wrong between client and server: retries, give-ups, timeouts, refused credentials."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pymongo
from pymongo import InsertOne, errors
from support.canaries import MARK, NUMBER, PASSWORD, USER, WRONG_PASSWORD, document, matching, text
from support.canary_operations import Operation
from support.clients import fail_command
from support.every_operation import Scene

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.strategy import Answer
from pymongo_resilience.strategies import BestEffort, Failure

OVERLOADED = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}
CUT = {"closeConnection": True}
LATE = {"blockConnection": True, "blockTimeMS": 5000}


def _concern(code: int) -> dict[str, Any]:
    """The write was made; its write concern failed, and the server's words hold a canary."""
    words = {"errmsg": text("a write concern"), "errInfo": {"number": NUMBER, MARK: 1}}
    return {"writeConcernError": {"code": code, **words}}


@dataclass(frozen=True)
class Trouble:
    """A failpoint, what is done meanwhile, and how it ends for the application."""

    commands: tuple[str, ...]
    data: Mapping[str, Any]
    call: Operation
    reason: RetryReason | None
    """Of the first decision; None where nothing was decided."""
    kind: type[BaseException] | None = None
    times: int | None = 1
    quotes: bool = False
    around: Any = field(default=contextlib.nullcontext)


def _write(p: Scene) -> Any:
    return p.do(p.coll.insert_one, document("a write in trouble"))


def _read(p: Scene) -> Any:
    return p.do(p.coll.find_one, matching("a read in trouble"), comment=text("a comment"))


class Own(BestEffort):
    """A strategy of the application, which is told the application's own facts."""

    def retry_after(self, operation: Any, failure: Failure, /) -> Answer:
        assert operation.data["text"] == text("override's data")
        return super().retry_after(operation, failure)


TROUBLES = {
    "a cut write": Trouble(
        ("insert",), CUT, _write, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT
    ),
    "a cut read, again and again": Trouble(
        ("find",), CUT, _read, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT,
        errors.AutoReconnect, times=None,
    ),
    "an overload": Trouble(("find",), OVERLOADED, _read, RetryReason.OVERLOADED),
    "a batch": Trouble(
        ("getMore",), {"errorCode": 6},
        lambda p: p.side.documents(p.coll.find({"number": NUMBER}, batch_size=2)),
        RetryReason.TEMPORARILY_UNAVAILABLE, errors.OperationFailure,
    ),
    "a command": Trouble(
        ("ping",), OVERLOADED, lambda p: p.do(p.db.command, "ping", MARK),
        RetryReason.OVERLOADED,
    ),
    "a write concern": Trouble(
        ("insert",), _concern(64), _write, RetryReason.UNKNOWN, errors.WriteConcernError,
        quotes=True,
    ),
    "a bulk's write concern": Trouble(
        ("insert",), _concern(64),
        lambda p: p.do(p.coll.bulk_write, [InsertOne(document("a bulk's write concern"))]),
        None, errors.BulkWriteError, quotes=True,
    ),
    "a timeout in flight": Trouble(
        ("find",), LATE, _read, RetryReason.NO_REPLY, OperationTimeoutError,
        around=lambda: pymongo.timeout(1),
    ),
    "a timeout with the server's text": Trouble(
        ("insert",), _concern(50), _write, RetryReason.UNKNOWN,
        errors.WTimeoutError, quotes=True, around=lambda: pymongo.timeout(10),
    ),
    "the application's own facts": Trouble(
        ("find",), {"errorCode": 6}, _read, RetryReason.TEMPORARILY_UNAVAILABLE,
        around=lambda: override(strategy=Own(), data=document("override's data")),
    ),
}  # fmt: skip


def provoke(p: Scene, control: Any, trouble: Trouble) -> None:
    """With the failpoint armed; raises what the application gets."""
    with (
        fail_command(control, *trouble.commands, times=trouble.times, **trouble.data),
        trouble.around(),
    ):
        trouble.call(p)


def refused_clients(p: Scene, address: tuple[str, int]) -> dict[str, Any]:
    """Clients that may not enter: wrong password in the URI, as an option, and none at all."""
    host = "{}:{}".format(*address)
    wrong = f"mongodb://{quote(USER, safe='')}:{quote(WRONG_PASSWORD, safe='')}@{host}/"
    plain = f"mongodb://{host}/"
    soon = {"serverSelectionTimeoutMS": 10_000}
    return {
        "a wrong password": p.do(p.side.client, wrong, **soon),
        "a wrong password as an option": p.do(
            p.side.client, plain, username=USER, password=WRONG_PASSWORD, **soon
        ),
        "a user nobody knows": p.do(
            p.side.client, plain, username=f"{MARK}-nobody", password=PASSWORD, **soon
        ),
        "no credentials": p.do(p.side.client, plain, **soon),
    }
