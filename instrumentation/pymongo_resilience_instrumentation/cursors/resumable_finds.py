"""A resumable find: its first command, what is noted of each batch, and the find that is sent in
place of a getMore that failed.

What can be resumed, how, and after which failure: ``pymongo_resilience/rules/resumption.py``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.binding import attach_policy, policy_of_cursor
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules import resumption
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interception import steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call

ATTRIBUTE = "_pymongo_resilience_position"
KILLED_AT_ONCE = 10
"""Cursors that were left on their servers, before the scan is over."""
RESUMABLE = Policy(resumable=True)
OTHERWISE = "override(resumable=False) sends it as it is"


def begin(call: Call, operation: Any, cursor: Any, rules: NamespaceRules) -> None:
    """Before a batch. Raises ConfigurationError for a find that is to be resumable and cannot."""
    if call.batch_of is None:
        position = _first(call, operation, cursor, rules)
        if position is not getattr(cursor, ATTRIBUTE, None):
            setattr(cursor, ATTRIBUTE, position)
    else:
        position = getattr(cursor, ATTRIBUTE, None)
        if position is not None and not position.is_of(operation.cursor_id, cursor.retrieved):
            position = None
    if position is not None:
        call.resumption = Fetch(position, operation, cursor)
        # So the driver's loop prepares it, and the rules see a read.
        call.only_reads = True


def _first(call: Call, query: Any, cursor: Any, rules: NamespaceRules) -> Position | None:
    if not _wanted(call, rules) or driver.finds.reads_chunks(query):
        return None
    find = driver.finds.read(query)
    if not find.has_cursor:
        return None
    problem = resumption.problem_of(find)
    if problem is not None:
        refused = f"find on {call.namespace} with resumable=True was not sent"
        raise ConfigurationError([f"{refused}: {problem} ({OTHERWISE})"])
    hides_id, find = find.hides_id, resumption.begun(find)
    if hides_id:
        driver.finds.hide_ids(cursor)
    driver.finds.write(query, find)
    if policy_of_cursor(cursor).resumable is None:
        # It stays so, also once the block is left that has said it.
        attach_policy(RESUMABLE.over(policy_of_cursor(cursor)), cursor)
    return Position(find, driver.finds.copied(query, None), hides_id=hides_id)


def _wanted(call: Call, rules: NamespaceRules) -> bool:
    for policy in (blocks.current(), call.bound, rules.policy_of(*call.governed)):
        if policy.resumable is not None:
            return policy.resumable
    return False


class Position:
    """How far a cursor has come. Belongs to the cursor and to its user, and keeps neither alive."""

    __slots__ = (
        "abandoned", "by_expression", "came", "find", "hides_id", "last", "left", "query",
    )  # fmt: skip

    def __init__(self, find: resumption.Find, query: Any, *, hides_id: bool) -> None:
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
        """A server did not take bounds."""
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

    def next_find(self, session: Any) -> Any:
        """Raises KeyError where the last document has no ``_id``."""
        query = driver.finds.copied(self.query, session)
        if self.last is not None:
            find = resumption.continued(
                self.find,
                driver.finds.last_id(self.last),
                limit=self.left or 0,
                by_expression=self.by_expression,
            )
            driver.finds.write(query, find)
        return query


class Fetch:
    """One batch, while the driver's loop fetches it. Belongs to one thread or task."""

    def __init__(self, position: Position, operation: Any, cursor: Any) -> None:
        self._position = position
        self._operation = operation
        self._cursor = cursor
        self._client = cursor.collection.database.client
        self._later = operation.cursor_id is not None
        """It is a getMore, which another find may replace."""
        self._anew = self._resumed = False
        self._lost = False
        self._query: Any = None
        self._run: Any = None
        self._hides_id = position.hides_id

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
        response = yield partial(original, *given)
        with shielded("after a batch of a resumable find"):
            self._position.note(response)
        if self._hides_id and not self._later:
            driver.finds.hide_first_ids(response, self._cursor)
        return response

    def reclassified(self, failure: Failure, operation: Operation, max_retries: int) -> Failure:
        """As the rules are to see it, before they do."""
        if not self._later or self._resumed:
            return failure
        if not self._finds_query():
            unknown = replace(failure, reason=RetryReason.UNKNOWN)
            return failure if failure.retryable_overload else unknown
        failure, self._anew = resumption.reclassified(failure, operation, max_retries)
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
        try:
            response = yield partial(driver.finds.send, self._cursor, self._query, given)
        except OperationFailure as error:
            if position.by_expression or error.code not in resumption.NO_BOUNDS:
                raise
            position.by_expression = True
            if not self._finds_query():
                raise
            response = yield partial(driver.finds.send, self._cursor, self._query, given)
        if not self._lost:
            address = driver.cursors.cursor_address(self._operation, self._cursor.address)
            position.abandoned.append((self._operation.cursor_id, address))
        with shielded("after a batch of a resumable find"):
            position.note(response)
        driver.finds.as_of_getmore(response)
        return response

    def _finds_query(self) -> bool:
        """Whether the find can be made anew: the documents of a view need not have an ``_id``."""
        try:
            self._query = self._position.next_find(self._operation.session)
        except KeyError:
            return False
        except Exception:
            logger.exception("internal error in pymongo-resilience before a find is resumed")
            return False
        return True
