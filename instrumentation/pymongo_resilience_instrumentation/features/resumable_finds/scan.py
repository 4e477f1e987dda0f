"""A resumable find: its first command, what is noted of each batch, and the find that is sent in
place of a getMore that failed.

Which collection it reads is asked once, behind the first batch, and again behind each find that
resumes it, on the same connections: one of the same name need not be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from bson import MaxKey
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience import internal_errors, steps
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience.policies.policy import Policy, attach_policy, policy_of_cursor
from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience.rules.retried_operation import Operation
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.runtime import Runtime

from . import rules

ATTRIBUTE = "_pymongo_resilience_position"
KILLED_AT_ONCE = 10
"""Cursors that were left on their servers, before the scan is over."""
RESUMABLE = Policy(resumable=True)
OTHERWISE = "override(resumable=False) sends it as it is"
REPLACED = "collection dropped, renamed or replaced during a resumable find, which ends here"


def plug_in(runtime: Runtime, _put_on: Any) -> None:
    if runtime.owns_retries:
        runtime.before_batch = partial(begin, runtime)


def begin(runtime: Runtime, call: Call, operation: Any, method: Any) -> None:
    """Before a batch. Raises ConfigurationError for a find that is to be resumable and cannot."""
    cursor = method.__self__
    if call.batch_of is None:
        position = _first(runtime, call, operation, cursor)
        if position is not getattr(cursor, ATTRIBUTE, None):
            setattr(cursor, ATTRIBUTE, position)
    else:
        position = getattr(cursor, ATTRIBUTE, None)
        if position is not None and not position.is_of(operation.cursor_id, cursor.retrieved):
            position = None
    if position is not None:
        call.resumption = Fetch(position, operation, method)
        # So the driver's loop prepares it, and the rules see a read.
        call.only_reads = True


def _first(runtime: Runtime, call: Call, query: Any, cursor: Any) -> Position | None:
    if not call.wanted(runtime.rules, "resumable") or driver.finds.reads_chunks(query):
        return None
    find = rules.Find(**driver.finds.read(query))
    if not find.has_cursor:
        return None
    problem = rules.problem_of(find)
    if problem is not None:
        raise _refused(query, problem)
    hides_id, find = find.hides_id, rules.begun(find)
    driver.finds.write(query, find)
    if policy_of_cursor(cursor).resumable is None:
        # It stays so, also once the block is left that has said it.
        attach_policy(RESUMABLE.over(policy_of_cursor(cursor)), cursor)
    return Position(find, driver.finds.copied(query, None), hides_id=hides_id)


def _refused(query: Any, problem: str) -> ConfigurationError:
    refused = f"find on {query.namespace()} with resumable=True was not sent"
    return ConfigurationError([f"{refused}: {problem} ({OTHERWISE})"])


class Position:
    """How far a cursor has come. Belongs to the cursor and to its user, and keeps neither alive."""

    __slots__ = (
        "abandoned", "by_expression", "came", "collection", "find", "hides_id", "last", "left",
        "query", "sought_max_key",
    )  # fmt: skip

    def __init__(self, find: rules.Find, query: Any, *, hides_id: bool) -> None:
        self.hides_id = hides_id
        """The application does not want it."""
        self.find = find
        """As it was sent first."""
        self.query = query
        self.left: int | None = find.limit or None
        """Documents of its limit that are still to come; None without one."""
        self.last: Any = None
        """The reply with the last document; its ``_id`` is read where it is needed, and most of
        the time that is never."""
        self.came: tuple[int | None, int] = None, 0
        """The cursor's id on its server, and what the driver counts as retrieved of it."""
        self.by_expression = False
        """A server did not take bounds, or there is a document that they leave out."""
        self.sought_max_key = False
        self.collection: list[Any] | None = None
        """What the collection's name stands for; None where the server did not say."""
        self.abandoned: list[tuple[int, Any]] = []
        """Cursors that were left, and may live on their servers, with their addresses."""

    def is_of(self, cursor_id: int, retrieved: int) -> bool:
        """Whether it was noted how far the cursor has come, and more can follow. Not what was read
        while the library was switched off."""
        return self.came == (cursor_id, retrieved) and self.left != 0

    def note(self, response: Any) -> None:
        batch, cursor_id = driver.finds.batch_of(response), driver.finds.cursor_id(response)
        if batch and self.left is not None:
            self.left = max(0, self.left - driver.finds.count(batch))
        if batch:
            self.last = response.data if cursor_id else None
        self.came = cursor_id, self.came[1] + len(batch)
        if not cursor_id or len(self.abandoned) >= KILLED_AT_ONCE:
            self.kill_abandoned()

    def kill_abandoned(self) -> None:
        """Together, in one command. Where their server is not reachable, the driver's background
        task would wait for it."""
        client = self.query.client
        for each in self.abandoned.copy():
            cursor_id, address = each
            if driver.finds.is_known(client, tuple(address)):
                self.abandoned.remove(each)
                driver.clients.kill_later(client, cursor_id, address)

    def __del__(self) -> None:
        with suppress(Exception):
            self.kill_abandoned()

    def next_find(self) -> rules.Find:
        """Raises KeyError where the last document has no ``_id``."""
        if self.last is None:
            return self.find
        last, left = driver.finds.last_id(self.last), self.left or 0
        return rules.continued(self.find, last, limit=left, by_expression=self.by_expression)


class Fetch:
    """One batch, while the driver's loop fetches it. Belongs to one thread or task."""

    def __init__(self, position: Position, operation: Any, method: Any) -> None:
        self._position = position
        self._operation = operation
        self._method = method
        """Sends an operation of the cursor on a connection."""
        self._cursor = method.__self__
        self._client = operation.client
        self._later = operation.cursor_id is not None
        """It is a getMore, which another find may replace."""
        self._anew = self._resumed = False
        self._lost = False
        self._find = position.find
        """What is sent next."""
        self._run: Any = None

    def begin(self, loop: Any) -> None:
        """Before the loop's first attempt."""
        original = loop.driver_func
        self._run = steps.run_async if driver.finds.is_asynchronous(loop) else steps.run
        loop.driver_func = self._function(partial(self._fetch, original))
        address: Address = self._cursor.address
        if self._later and not driver.finds.is_known(self._client, address):
            driver.finds.fail_first(loop, address)

    def _function(self, function: Callable[..., steps.Steps]) -> Callable[..., Any]:
        return lambda *given: self._run(function(*given))

    def _fetch(self, original: Any, *given: Any) -> steps.Steps:
        position = self._position
        try:
            response = yield partial(original, *given)
        except OperationFailure as error:
            if not self._later and rules.lacks_id_index(position.find, error.code, str(error)):
                raise _refused(position.query, "there is no index on _id") from error
            raise
        with shielded("after a batch of a resumable find"):
            position.note(response)
        if not self._later:
            yield from self._note_collection(response, given)
        if position.hides_id:
            driver.finds.hide_ids(response, self._cursor)
        return response

    def _note_collection(self, response: Any, given: tuple[Any, ...]) -> steps.Steps:
        """Where a second batch may come. What the server does not say leaves the find as it was:
        it is not resumed."""
        position, cursor_id = self._position, driver.finds.cursor_id(response)
        if not cursor_id:
            return
        time = driver.finds.operation_time(response)
        if time is not None and position.find.may_read_after:
            position.query.read_concern = driver.finds.ReadAfter(self._operation.read_concern, time)
        try:
            position.collection = yield from self._collection(given)
        except PyMongoError as error:
            logger.warning(
                "find on %s with resumable=True is not resumed: listCollections failed with %s %s",
                *(position.query.namespace(), type(error).__name__, getattr(error, "code", "")),
            )
        except BaseException:
            address = driver.cursors.cursor_address(self._operation, response.address)
            driver.clients.kill_later(self._client, cursor_id, address)
            raise

    def _collection(self, given: tuple[Any, ...]) -> steps.Steps:
        """The UUID of the collection, and what stands before it of views; None where there is no
        such collection."""
        query, name, found = self._position.query, self._position.query.coll, list[Any]()
        while name is not None:
            command = {"listCollections": 1, "filter": {"name": name}, "cursor": {}}
            reply = yield driver.finds.run_command(query, command, given)
            for entry in reply["cursor"]["firstBatch"]:
                name = entry["options"].get("viewOn")
                found.append(entry["info"].get("uuid") if name is None else entry["options"])
                break
            else:
                return None
        return found if found[-1] is not None else None

    def reclassified(self, failure: Failure, operation: Operation, max_retries: int) -> Failure:
        """As the rules are to see it, before they do."""
        if not self._later:
            return failure
        unknown = replace(failure, reason=RetryReason.UNKNOWN)
        if failure.code in rules.SCAN_ENDED:
            return unknown
        if self._resumed:
            return failure
        if not self._finds_query():
            return failure if failure.retryable_overload else unknown
        failure, self._anew = rules.reclassified(failure, operation, max_retries)
        self._lost = failure.reason is RetryReason.CURSOR_LOST
        return failure

    def prepare(self, loop: Any) -> None:
        """Before an attempt that is made after a failure."""
        if self._anew and not self._resumed:
            self._resumed = True
            loop.driver_func = self._function(self._resume)
            driver.finds.unbind(loop)

    def _resume(self, *given: Any) -> steps.Steps:
        position = self._position
        if rules.excludes_max_key(self._find) and not position.sought_max_key:
            yield from self._seek_max_key(given)
        try:
            response = yield self._send(given)
        except OperationFailure as error:
            if position.by_expression or error.code not in rules.NO_BOUNDS:
                raise
            position.by_expression = True
            if not self._finds_query():
                raise
            response = yield self._send(given)
        opened = driver.finds.cursor_id(response), response.address
        try:
            collection = yield from self._collection(given)
        except BaseException:
            self._abandon(*opened)
            raise
        if collection != position.collection:
            self._abandon(*opened)
            code, name = rules.QUERY_PLAN_KILLED, "QueryPlanKilled"
            details = {"ok": 0.0, "errmsg": REPLACED, "code": code, "codeName": name}
            raise OperationFailure(REPLACED, code, details)
        if not self._lost:
            self._abandon(self._operation.cursor_id, self._cursor.address)
        with shielded("after a batch of a resumable find"):
            position.note(response)
        if position.hides_id:
            driver.finds.hide_ids(response, self._cursor)
        driver.finds.as_of_getmore(response)
        return response

    def _send(self, given: tuple[Any, ...]) -> Callable[[], Any]:
        query = driver.finds.copied(self._position.query, self._operation.session)
        driver.finds.write(query, self._find)
        query.reset()
        return partial(self._method, given[2], query, given[3])

    def _abandon(self, cursor_id: int, address: Address) -> None:
        if cursor_id:
            at = driver.cursors.cursor_address(self._operation, address)
            self._position.abandoned.append((cursor_id, at))

    def _seek_max_key(self, given: tuple[Any, ...]) -> steps.Steps:
        """Go on by an expression where there is a document that bounds leave out."""
        position, query = self._position, self._position.query
        pipeline = [{"$match": {rules.ID: MaxKey()}}, {"$project": rules.BY_ID}]
        command = {"aggregate": query.coll, "pipeline": pipeline, "cursor": {}}
        reply = yield driver.finds.run_command(query, command, given, query.read_concern)
        position.sought_max_key = True
        if reply["cursor"]["firstBatch"]:
            position.by_expression = True
            self._finds_query()

    def _finds_query(self) -> bool:
        """Whether the find can be made anew: the documents of a view need not have an ``_id``."""
        if self._position.collection is None:
            return False
        try:
            self._find = self._position.next_find()
        except KeyError:
            return False
        except internal_errors.faults:
            logger.exception("internal error in pymongo-resilience before a find is resumed")
            return False
        return True
