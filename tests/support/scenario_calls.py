"""The calls of the table, as an application makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pymongo
from pymongo.errors import PyMongoError
from support.clients import Side
from support.engine.failing_work import Call
from support.engine.scenarios import Scenario

from pymongo_resilience.rules.retried_operation import Kind

DOCUMENTS = [{"_id": number} for number in range(6)]
NO_ANSWER = pymongo.WriteConcern(w=0)


@dataclass(frozen=True)
class RealCall:
    """Ready to be made: whatever has to go before it has gone well."""

    commands: Sequence[str]
    """What it sends, by name."""
    make: Callable[[], Any]
    finish: Callable[[], Any] = lambda: None
    """Leaves nothing on the server that is open."""


@dataclass(frozen=True)
class Maker:
    """Makes calls of one client. ``database`` holds ``DOCUMENTS`` in its collection ``coll``."""

    side: Side
    client: Any
    database: str

    def prepare(self, row: Scenario) -> RealCall:
        call = row.call
        if any(fault.next_command for fault in row.faults):
            return self._bulk()
        if call.kind is Kind.TRANSACTION_END:
            return self._commit()
        if call.in_transaction:
            return self._in_transaction(call)
        if call.kind in (Kind.GET_MORE, Kind.CLEANUP):
            return self._of_a_cursor(call)
        return self._plain(call)

    def _coll(self, call: Call) -> Any:
        coll = self.client[self.database].coll
        return coll if call.acknowledged else coll.with_options(write_concern=NO_ANSWER)

    def _plain(self, call: Call) -> RealCall:
        coll, do = self._coll(call), self.side.do
        if call.kind is Kind.COMMAND:
            return RealCall(["ping"], lambda: do(self.client[self.database].command, "ping"))
        if call.kind is Kind.AGGREGATE_WRITE:
            return RealCall(["aggregate"], lambda: do(coll.aggregate, [{"$out": "other"}]))
        return self._read_or_write(call, coll)

    def _read_or_write(self, call: Call, coll: Any, **session: Any) -> RealCall:
        do = self.side.do
        if call.kind is Kind.READ:
            return RealCall(["find"], lambda: do(coll.find_one, {"_id": 0}, **session))
        if call.txn_number:
            return RealCall(["insert"], lambda: do(coll.insert_one, {"new": True}, **session))
        change = {"$set": {"changed": True}}
        return RealCall(["update"], lambda: do(coll.update_many, {}, change, **session))

    def _bulk(self) -> RealCall:
        operations = [
            pymongo.InsertOne({"new": True}),
            pymongo.UpdateOne({"_id": 0}, {"$inc": {"n": 1}}),
        ]
        coll = self.client[self.database].coll
        return RealCall(["insert", "update"], lambda: self.side.do(coll.bulk_write, operations))

    def _of_a_cursor(self, call: Call) -> RealCall:
        cursor = self.client[self.database].coll.find(batch_size=2)
        for _ in range(2):
            self.side.do(cursor.next)
        if call.kind is Kind.CLEANUP:
            return RealCall(["killCursors"], lambda: self.side.do(cursor.close))
        return RealCall(
            ["getMore"], lambda: self.side.do(cursor.next), lambda: self.side.do(cursor.close)
        )

    def _begin(self) -> Any:
        session = self.client.start_session()
        self.side.do(session.start_transaction)
        return session

    def _in_transaction(self, call: Call) -> RealCall:
        session = self._begin()
        made = self._read_or_write(call, self._coll(call), session=session)
        # To leave a transaction is to abort it.
        return RealCall(made.commands, made.make, lambda: self.side.do(session.end_session))

    def _commit(self) -> RealCall:
        session = self._begin()
        self.side.do(self.client[self.database].coll.insert_one, {"new": True}, session=session)

        def finish() -> None:
            # A commit that failed may be called again; one that did not may, too.
            with suppress(PyMongoError):
                self.side.do(session.commit_transaction)
            self.side.do(session.end_session)

        return RealCall(
            ["commitTransaction"], lambda: self.side.do(session.commit_transaction), finish
        )
