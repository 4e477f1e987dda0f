"""Runs a resumable find: its first command, the position after each batch, and the find that
replaces a failed getMore.

The UUID of the collection is read after the first batch, on the same connection, and again after
each resumed find, because another collection may have the same name by then. If a temporary failure
prevents that, it is read later: after the batch in a separate loop, or after a later batch. As long
as the server answers for an open cursor, the collection was not replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import contain_internal_errors, internal_error_types, logger
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.bound_policies import attach_policy, policy_of_cursor
from pymongo_resilience_instrumentation.clients.client_registry import ClientState
from pymongo_resilience_instrumentation.failures.reasons import PASSING
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.retries.retry_loop import LoopHooks, RetryLoop
from pymongo_resilience_instrumentation.runtime import Runtime

from . import rules

ATTRIBUTE = "_pymongo_resilience_position"
RESUMABLE = Policy(resumable=True)
OTHERWISE = "to send it unchanged, use override(resumable=False)"
LATER_S = 0.5
"""Maximum seconds by which reading the UUID may delay a batch that has arrived."""
REPLACED = (
    "the collection was dropped, renamed or replaced during a resumable find, so the find cannot "
    "continue. Run it again"
)


def plug_in(runtime: Runtime, _apply_patches: Any) -> None:
    if runtime.owns_retries:
        runtime.before_batch = partial(begin, runtime)


def begin(runtime: Runtime, operation: Operation, query: Any, method: Any) -> None:
    """Called before each batch.

    Raises:
        ConfigurationError: If the find should be resumable but cannot be.
    """
    cursor = method.__self__
    if operation.call.cursor_class is None:
        position = _first(runtime, operation, query, cursor)
        if position is not getattr(cursor, ATTRIBUTE, None):
            setattr(cursor, ATTRIBUTE, position)
    else:
        position = getattr(cursor, ATTRIBUTE, None)
        if position is not None and not position.is_of(query.cursor_id, cursor.retrieved):
            position = None
    if position is not None:
        fetch = AsyncFetch if isinstance(operation.client, AsyncMongoClient) else Fetch
        state = runtime.clients.of(operation.client)
        operation.hook_first_loop(fetch(position, query, method, state))


def _first(runtime: Runtime, operation: Operation, query: Any, cursor: Any) -> Position | None:
    if not operation.call.option(runtime.rules, "resumable") or driver.finds.reads_chunks(query):
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
        # Attach the policy to the cursor, so that it stays resumable after the block with the
        # policy ends.
        attach_policy(RESUMABLE.over(policy_of_cursor(cursor)), cursor)
    return Position(find, driver.finds.copied(query, None), hides_id=hides_id)


def _refused(query: Any, problem: str) -> ConfigurationError:
    refused = f"find on {query.namespace()} with resumable=True was not sent"
    return ConfigurationError([f"{refused}: {problem} ({OTHERWISE})"])


class Position:
    """How far a cursor has got. Belongs to the cursor and its user; keeps neither alive."""

    __slots__ = "asks", "came", "collection", "find", "hides_id", "last", "left", "query"

    def __init__(self, find: rules.Find, query: Any, *, hides_id: bool) -> None:
        self.hides_id = hides_id
        """True if the application does not want the ``_id``."""
        self.find = find
        """The find that was sent first."""
        self.query = query
        self.left: int | None = find.limit or None
        """Documents of the limit that are still missing; None without a limit."""
        self.last: Any = None
        """The reply with the last document. Its ``_id`` is read only when it is needed, which is
        rare.
        """
        self.came: tuple[int | None, int] = None, 0
        """The cursor's ID on its server, and the number of documents that pymongo has retrieved."""
        self.collection: list[Any] | None = None
        """The collection's identity; None if unknown."""
        self.asks = False
        """True if the identity could not be read yet."""

    def is_of(self, cursor_id: int, retrieved: int) -> bool:
        """Return True if the position is that of the cursor, and more documents may follow.

        It is not if batches were read while the library was off.
        """
        return self.came == (cursor_id, retrieved) and self.left != 0

    def note(self, response: Any) -> None:
        batch, cursor_id = driver.finds.batch_of(response), driver.finds.cursor_id(response)
        if batch and self.left is not None:
            self.left = max(0, self.left - driver.finds.count(batch))
        if batch:
            self.last = response.data if cursor_id else None
        self.came = cursor_id, self.came[1] + len(batch)

    def next_find(self) -> rules.Find:
        """Return the find that continues. Raises KeyError if the last document has no ``_id``."""
        if self.last is None:
            return self.find
        return rules.continued(self.find, driver.finds.last_id(self.last), limit=self.left or 0)


class CollectionLookup:
    """Reads the identity of a collection or view."""

    def __init__(self, name: str) -> None:
        self.next: str | None = name
        self.found: list[Any] | None = []
        """The UUID of the collection, preceded by the definitions of views; None if there is no
        such collection.
        """

    def command(self) -> dict[str, Any]:
        return {"listCollections": 1, "filter": {"name": self.next}, "cursor": {}}

    def note(self, reply: Any) -> None:
        entry = next(iter(reply["cursor"]["firstBatch"]), None)
        self.next = None if entry is None else entry["options"].get("viewOn")
        found = entry and (entry["info"].get("uuid") if self.next is None else entry["options"])
        self.found = None if found is None or self.found is None else [*self.found, found]


class Fetch(LoopHooks):
    """One batch, while pymongo's loop fetches it. Belongs to one thread or task."""

    def __init__(self, position: Position, query: Any, method: Any, state: ClientState) -> None:
        """``state`` is that of the client."""
        self._position = position
        self._state = state
        self._query = query
        self._method = method
        """Sends an operation of the cursor on a connection."""
        self._cursor = method.__self__
        self._client = query.client
        self._later = query.cursor_id is not None
        """True for a getMore, which another find may replace."""
        self._anew = self._resumed = False
        self._lost = False
        self._address: Address | None = None
        """The server of a batch after which the identity must still be read."""
        self._find = position.find
        """The find to send next."""

    def begin(self, loop: RetryLoop) -> None:
        attempts = loop.attempts
        attempts.replace_function(partial(self._fetch, attempts.function))
        address: Address = self._cursor.address
        known = self._position.collection is not None
        if self._later and known and not driver.finds.is_known(self._client, address):
            attempts.fail_first(driver.finds.unreachable(address))

    def _fetch(self, original: Any, *args: Any) -> Any:
        try:
            response = original(*args)
        except OperationFailure as error:
            self._check_index(error)
            raise
        if self._noted(response):
            try:
                self._position.collection = self._collection(args)
            except PyMongoError as error:
                self._ask_later(error, response)
        return response

    def unfinished(self, loop: RetryLoop) -> Callable[[], Any] | None:
        return None if self._address is None else partial(self._find_out, loop, self._address)

    def _find_out(self, loop: RetryLoop, address: Address) -> Any:
        position, names = self._position, CollectionLookup(self._query.coll)
        try:
            with driver.csot.within(LATER_S):
                while names.next is not None:
                    names.note(self._run_apart(names, loop, address))
        except PyMongoError as error:
            self._still_unknown(error)
        else:
            position.collection, position.asks = names.found, False

    def _run_apart(self, names: CollectionLookup, loop: RetryLoop, address: Address) -> Any:
        return driver.finds.run_apart(self._query, names.command(), loop.attempts, address)

    def _ask_later(self, error: PyMongoError, response: Any) -> None:
        """Handle a failure to read the collection's identity on the connection of the first
        batch.
        """
        if isinstance(error, OperationFailure) and error.code not in PASSING:
            self._still_unknown(error)
        else:
            self._position.asks, self._address = True, response.address

    def _check_index(self, error: OperationFailure) -> None:
        """Raise ConfigurationError if the find cannot use an index on ``_id``."""
        position = self._position
        if not self._later and rules.lacks_id_index(position.find, error.code, str(error)):
            raise _refused(position.query, "there is no index on _id") from error

    def _noted(self, response: Any) -> bool:
        """Record a batch. Return True if the collection's identity must be read, as a second batch
        may follow.

        If the server's reply lacks something, the find is not resumed.
        """
        position = self._position
        with contain_internal_errors("after a batch of a resumable find"):
            position.note(response)
        if position.hides_id:
            driver.finds.hide_ids(response, self._cursor)
        if not driver.finds.cursor_id(response):
            return False
        if self._later:
            self._address = response.address if position.asks else None
            return False
        time = driver.finds.operation_time(response)
        if time is not None and position.find.may_read_after:
            position.query.read_concern = driver.finds.ReadAfter(self._query.read_concern, time)
        return True

    def _still_unknown(self, error: PyMongoError) -> None:
        passes = not isinstance(error, OperationFailure) or error.code in PASSING
        if passes and self._later:
            # This was already logged after the first batch.
            return
        self._position.asks = passes
        logger.warning(
            "find on %s with resumable=True cannot be resumed%s: listCollections failed with "
            "%s %s. %s",
            self._query.namespace(),
            " for now" if passes else "",
            type(error).__name__,
            getattr(error, "code", ""),
            "It is tried again after the next batch"
            if passes
            else "Check that the user has the permission for listCollections",
        )

    def _collection(self, args: tuple[Any, ...]) -> Any:
        query = self._position.query
        names = CollectionLookup(query.coll)
        while names.next is not None:
            names.note(driver.finds.run_command(query, names.command(), args))
        return names.found

    def reclassify(self, loop: RetryLoop, failure: Failure, state: RetryState) -> Failure:
        if not self._later:
            return failure
        unknown = replace(failure, reason=RetryReason.UNKNOWN)
        if failure.code in rules.SCAN_ENDED:
            return unknown
        if self._resumed:
            return failure
        if not self._finds_query():
            state.kind = Kind.GET_MORE
            return failure
        most = loop.runtime.executor.retry_rules.max_retries_of(state.max_retries)
        failure, self._anew = rules.reclassified(failure, state, most)
        self._lost = failure.reason is RetryReason.CURSOR_LOST
        return failure

    def prepare(self, loop: RetryLoop) -> None:
        if self._anew and not self._resumed:
            self._resumed = True
            loop.attempts.replace_function(self._resume)
            driver.finds.unbind(loop.attempts)

    def _resume(self, *args: Any) -> Any:
        response = self._send(args)
        try:
            collection = self._collection(args)
        except BaseException:
            self._abandon(driver.finds.cursor_id(response), response.address)
            raise
        return self._resumed_by(response, collection)

    def _resumed_by(self, response: Any, collection: Any) -> Any:
        """Raise OperationFailure if another collection has the name now."""
        if collection != self._position.collection:
            self._abandon(driver.finds.cursor_id(response), response.address)
            code, name = rules.QUERY_PLAN_KILLED, "QueryPlanKilled"
            details = {"ok": 0.0, "errmsg": REPLACED, "code": code, "codeName": name}
            raise OperationFailure(REPLACED, code, details)
        if not self._lost:
            self._abandon(self._query.cursor_id, self._cursor.address)
        self._noted(response)
        driver.finds.as_of_getmore(response)
        return response

    def _send(self, args: tuple[Any, ...]) -> Any:
        query = driver.finds.copied(self._position.query, self._query.session)
        driver.finds.write(query, self._find)
        query.reset()
        return self._method(args[2], query, args[3])

    def _abandon(self, cursor_id: int, address: Address) -> None:
        if cursor_id:
            self._state.kill_later(cursor_id, driver.cursors.cursor_address(self._query, address))

    def _finds_query(self) -> bool:
        """Return True if the find can be sent again. The documents of a view may lack an
        ``_id``.
        """
        if self._position.collection is None:
            return False
        try:
            self._find = self._position.next_find()
        except KeyError:
            return False
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience before a find is resumed")
            return False
        return True


class AsyncFetch(Fetch):
    """As ``Fetch``, in a task."""

    async def _fetch(self, original: Any, *args: Any) -> Any:
        try:
            response = await original(*args)
        except OperationFailure as error:
            self._check_index(error)
            raise
        if self._noted(response):
            try:
                self._position.collection = await self._collection(args)
            except PyMongoError as error:
                self._ask_later(error, response)
        return response

    async def _find_out(self, loop: RetryLoop, address: Address) -> None:
        position, names = self._position, CollectionLookup(self._query.coll)
        try:
            with driver.csot.within(LATER_S):
                while names.next is not None:
                    names.note(await self._run_apart(names, loop, address))
        except PyMongoError as error:
            self._still_unknown(error)
        else:
            position.collection, position.asks = names.found, False

    async def _collection(self, args: tuple[Any, ...]) -> Any:
        query = self._position.query
        names = CollectionLookup(query.coll)
        while names.next is not None:
            names.note(await driver.finds.run_command(query, names.command(), args))
        return names.found

    async def _resume(self, *args: Any) -> Any:
        response = await self._send(args)
        try:
            collection = await self._collection(args)
        except BaseException:
            self._abandon(driver.finds.cursor_id(response), response.address)
            raise
        return self._resumed_by(response, collection)
