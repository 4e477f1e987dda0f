"""Runs a resumable find: its first command, the position after each batch, and the find that
replaces a failed getMore.

The UUID of the collection is read after the first batch, on the same connection, and again after
each resumed find, because another collection may have the same name by then. If a temporary failure
prevents that, it is read later: after the batch in a separate loop, or after a later batch. As long
as the server answers for an open cursor, the collection was not replaced.

With ``resumable="if_possible"``, a find without a sort is sorted by ``_id`` only in an ordinary
collection. A ``listCollections`` finds out before the first find, once for each collection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.internal_errors import contain_internal_errors, internal_error_types, logger
from pymongo_resilience.option_types import IF_POSSIBLE, Resumable
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience.rules.retry_state import Kind
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.bound_policies import attach_policy, policy_of_cursor
from pymongo_resilience_instrumentation.clients.client_registry import ByClient, ClientState
from pymongo_resilience_instrumentation.failures.reasons import PASSING
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
from pymongo_resilience_instrumentation.runtime import Runtime

from . import rules

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.retries.after_failure import Retries

ATTRIBUTE = "_pymongo_resilience_position"
OTHERWISE = (
    "to send it unchanged, use override(resumable=False); to send all such finds unchanged, use "
    'resumable="if_possible"'
)
LATER_S = 0.5
"""Maximum seconds by which reading the UUID may delay a batch that has arrived."""
KNOWN_S = 300.0
"""How long the kind of a collection is remembered, in seconds. Another one may take its name."""
REMEMBERED = 1000
"""Maximum number of collections of one client. Some applications create one for each day."""
UNIDENTIFIED = "its collection could not be identified with listCollections"
WITHOUT_ID = "the last document has no _id"
REPLACED = (
    "the collection was dropped, renamed or replaced during a resumable find, so the find cannot "
    "continue. Run it again"
)


def plug_in(runtime: Runtime, _apply_patches: Any) -> None:
    if runtime.owns_retries:
        runtime.before_batch = partial(begin, runtime)


class KindsOfCollections:
    """Which collections of one client are ordinary, so that their documents have no other order.

    Thread- and task-safe: at worst, a kind is read again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[bool | None, float]] = {}

    def is_plain(self, database: str, collection: str | None) -> bool | None:
        """Return None if it is not known."""
        plain, until = self._known.get((database, collection), (None, 0.0))
        return plain if driver.csot.now() < until else None

    def note(self, query: Any, plain: bool) -> None:
        self._known.pop((query.db, query.coll), None)
        self._known[query.db, query.coll] = plain, driver.csot.now() + KNOWN_S
        if len(self._known) > REMEMBERED:
            # A copy, because another thread may add one at the same time.
            oldest, *_ = self._known
            self._known.pop(oldest, None)


kinds: ByClient[KindsOfCollections] = ByClient(lambda _: KindsOfCollections())


def begin(runtime: Runtime, operation: Operation, query: Any, method: Any) -> None:
    """Called before each batch.

    Raises:
        ConfigurationError: If the find should be resumable but cannot be.
    """
    cursor = method.__self__
    if operation.call.cursor_class is None:
        wanted = operation.call.option(runtime.rules, "resumable")
        position = None
        if wanted and not driver.finds.reads_chunks(query):
            position = _first(query, wanted)
        if position is not getattr(cursor, ATTRIBUTE, None):
            setattr(cursor, ATTRIBUTE, position)
        if not isinstance(position, Position):
            return
        if policy_of_cursor(cursor).resumable is None:
            # Attach the policy to the cursor, so that it stays resumable after the block with the
            # policy ends.
            attach_policy(Policy(resumable=wanted).over(policy_of_cursor(cursor)), cursor)
    else:
        position = getattr(cursor, ATTRIBUTE, None)
        if isinstance(position, Position):
            retrieved = driver.finds.retrieved(cursor)
            position = position if position.is_of(query.cursor_id, retrieved) else None
    if isinstance(position, str):
        operation.hook_first_loop(NotResumed(position))
    elif position is not None:
        fetch = AsyncFetch if isinstance(operation.client, AsyncMongoClient) else Fetch
        state = runtime.clients.of(operation.client)
        operation.hook_first_loop(fetch(position, query, method, state))


def _first(query: Any, wanted: Resumable) -> Position | str | None:
    """Return the position of a find that begins, or why it is not resumed.

    Raises:
        ConfigurationError: If it cannot be resumed, and ``wanted`` is True.
    """
    find = rules.Find(**driver.finds.read(query))
    if not find.has_cursor:
        return None
    if wanted == IF_POSSIBLE:
        return position_if_possible(query, find)
    problem = rules.problem_of(find)
    if problem is not None:
        raise _refused(query, problem)
    hides_id, find = find.hides_id, rules.begun(find)
    driver.finds.write(query, find)
    return Position(find, driver.finds.copied(query, None), hides_id=hides_id)


def position_if_possible(query: Any, find: rules.Find) -> Position | str:
    """Return the position of a find that begins, or why it runs unchanged."""
    problem = rules.problem_of(find) or rules.risk_of(find)
    plain = True if find.sort else kinds.of(query.client).is_plain(query.db, query.coll)
    if problem is None and plain is False:
        problem = rules.NOT_PLAIN
    if problem is not None:
        return problem
    original, hides_id = driver.finds.copied(query, None), find.hides_id
    added_sort, find = not find.sort, rules.begun(find, hint=False)
    if plain and (added_sort or hides_id):
        driver.finds.write(query, find)
    position = Position(find, driver.finds.copied(query, None), hides_id=hides_id)
    if added_sort:
        position.original, position.undecided = original, not plain
    return position


def _refused(query: Any, problem: str) -> ConfigurationError:
    refused = f"find on {query.namespace()} with resumable=True was not sent"
    return ConfigurationError([f"{refused}: {problem} ({OTHERWISE})"])


class Position:
    """How far a cursor has got. Belongs to the cursor and its user; keeps neither alive."""

    __slots__ = (
        "asks", "came", "collection", "find", "hides_id", "last", "left", "original", "query",
        "undecided",
    )  # fmt: skip

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
        self.original: Any = None
        """The query without the sort that the library added, if it may be sent like that."""
        self.undecided = False
        """True until it is known whether the collection is an ordinary one."""

    def is_of(self, cursor_id: int, retrieved: object) -> bool:
        """Return True if the position is that of the cursor, and more documents may follow.

        It is not if batches were read while the library was off.
        """
        return self.came == (cursor_id, retrieved) and self.left != 0

    def note(self, response: Any) -> None:
        batch, cursor_id = driver.finds.batch_of(response), driver.finds.cursor_id(response)
        if batch and self.left is not None:
            self.left = max(0, self.left - driver.finds.count(batch))
        if batch:
            # After the last batch nothing can be resumed, so do not keep the reply in memory.
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
        self.is_plain = False
        """True if it is neither a view nor a time-series collection, and not capped."""

    def command(self) -> dict[str, Any]:
        return {"listCollections": 1, "filter": {"name": self.next}, "cursor": {}}

    def note(self, reply: Any) -> None:
        entry = next(iter(reply["cursor"]["firstBatch"]), None)
        self.next = None if entry is None else entry["options"].get("viewOn")
        self.is_plain = (
            entry is not None
            and entry.get("type", "collection") == "collection"
            and not entry["options"].get("capped")
        )
        found = entry and (entry["info"].get("uuid") if self.next is None else entry["options"])
        self.found = None if found is None or self.found is None else [*self.found, found]


class NotResumed(LoopHooks):
    """A later batch of a cursor that is not resumed. The text of its error gives the reason."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def gives_up(self, retries: Retries, error: Exception) -> bool:  # noqa: ARG002 - as in the base
        return retries.attempts.streams()

    def reclassify(self, retries: Retries, failure: Failure) -> Failure:
        state = retries.state
        state.kind, state.not_resumable = Kind.GET_MORE, self._problem
        return failure


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
        self._anew = self._resumed = self._unchanged = False
        self._lost = False
        self._address: Address | None = None
        """The server of a batch after which the identity must still be read."""
        self._find = position.find
        """The find to send next."""
        self._problem = UNIDENTIFIED
        """Why a find cannot be sent again, if it cannot."""

    def begin(self, attempts: DriverAttempts) -> None:
        attempts.replace_function(partial(self.fetch, attempts.function))
        address: Address = self._cursor.address
        known = self._position.collection is not None
        if self._later and known and not driver.finds.is_known(self._client, address):
            # Do not wait for that server: another one can continue the find at once.
            attempts.fail_first(driver.finds.unreachable(address))

    def fetch(self, original: Any, *args: Any) -> Any:
        # On the connection of the find itself, so that no other server can give a different answer.
        if self._position.undecided:
            lookup = CollectionLookup(self._query.coll)
            try:
                lookup.note(driver.finds.run_command(self._query, lookup.command(), args))
            except PyMongoError as error:
                self._note_unknown_kind(error)
            else:
                self._decide(lookup)
        if self._unchanged:
            return original(*args)
        try:
            response = original(*args)
        except OperationFailure as error:
            if not self._was_not_sorted(error):
                raise
            return original(*args)
        if self._noted(response):
            try:
                self._position.collection = self._collection(args)
            except PyMongoError as error:
                self._ask_later(error, response)
        return response

    def kept_position(self) -> Any:
        """Return the cursor's position, or a text that tells why it is not resumed."""
        return getattr(self._cursor, ATTRIBUTE)

    def _decide(self, lookup: CollectionLookup) -> None:
        """Sort the find by ``_id`` if the documents have no other order."""
        position, query = self._position, self._query
        position.undecided, self._unchanged = False, True
        with contain_internal_errors("before a resumable find"):
            if not lookup.is_plain:
                self._run_unchanged(rules.NOT_PLAIN)
            else:
                driver.finds.write(position.query, position.find)
                driver.finds.write(query, position.find)
                query.reset()
                self._unchanged = False
            # A collection that does not exist may be created at any moment.
            if lookup.found is not None:
                kinds.of(self._client).note(query, plain=lookup.is_plain)

    def _note_unknown_kind(self, error: PyMongoError) -> None:
        """Send the find unchanged after listCollections has failed.

        Raises:
            PyMongoError: If the connection is of no more use.
        """
        self._run_unchanged(rules.KIND_UNKNOWN)
        if not isinstance(error, OperationFailure):
            raise error
        if error.code not in PASSING:
            kinds.of(self._client).note(self._query, plain=False)
            logger.warning(
                "finds on %s without a sort are not resumed: listCollections failed with %s %s. "
                "Check that the user has the permission for listCollections",
                self._query.namespace(),
                type(error).__name__,
                error.code,
            )

    def _run_unchanged(self, problem: str) -> None:
        """Send the find as it is without the option, in this and in further attempts."""
        self._unchanged, self._position.undecided = True, False
        setattr(self._cursor, ATTRIBUTE, problem)

    def _was_not_sorted(self, error: OperationFailure) -> bool:
        """Return True if the server refused only the sort that the library added, so that the find
        must be sent unchanged.

        Raises:
            ConfigurationError: If the find cannot use an index on ``_id``.
        """
        self._check_index(error)
        original = self._position.original
        if self._later or original is None or error.code not in rules.NOT_SORTED:
            return False
        self._run_unchanged(rules.SORT_REFUSED)
        driver.finds.restore(self._query, original)
        self._query.reset()
        return True

    def unfinished(self, attempts: DriverAttempts) -> Callable[[], Any] | None:
        return None if self._address is None else partial(self._find_out, attempts, self._address)

    def _find_out(self, attempts: DriverAttempts, address: Address) -> Any:
        position, names = self._position, CollectionLookup(self._query.coll)
        try:
            with driver.csot.within(LATER_S):
                while names.next is not None:
                    names.note(self._run_apart(names, attempts, address))
        except PyMongoError as error:
            self._still_unknown(error)
        else:
            position.collection, position.asks = names.found, False

    def _run_apart(
        self, names: CollectionLookup, attempts: DriverAttempts, address: Address
    ) -> Any:
        return driver.finds.run_apart(self._query, names.command(), attempts, address)

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
        if driver.finds.is_of_command(self._cursor):
            driver.finds.note_retrieved(response, position.came[1])
        if not driver.finds.cursor_id(response):
            return False
        if self._later:
            self._address = response.address if position.asks else None
            return False
        # A resumed find may be sent to another member, which must have replicated at least what
        # this one had when the find began. Otherwise documents could be missing.
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
            "resumable find on %s cannot be resumed%s: listCollections failed with %s %s. %s",
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

    def reclassify(self, retries: Retries, failure: Failure) -> Failure:
        state = retries.state
        if not self._later:
            return failure
        unknown = replace(failure, reason=RetryReason.UNKNOWN)
        if failure.code in rules.SCAN_ENDED:
            return unknown
        if self._resumed:
            return failure
        if not self._finds_query():
            state.kind, state.not_resumable = Kind.GET_MORE, self._problem
            return failure
        most = retries.runtime.executor.retry_rules.max_retries_of(state.max_retries)
        failure, self._anew = rules.reclassified(
            failure,
            state,
            most,
            max_time_ms=self._position.find.max_time_ms,
            has_documents=self._position.last is not None,
        )
        self._lost = failure.reason is RetryReason.CURSOR_LOST
        return failure

    def prepare(self, attempts: DriverAttempts) -> None:
        if self._anew and not self._resumed:
            self._resumed = True
            attempts.replace_function(self._resume)
            driver.finds.unbind(attempts)

    def _resume(self, *args: Any) -> Any:
        # Read the identity only after the find. If it were read before, the collection could be
        # replaced in between.
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
            # The old cursor may still be open on its server.
            self._abandon(self._query.cursor_id, self._cursor.address)
        self._noted(response)
        driver.finds.as_of_getmore(response)
        driver.finds.move(self._cursor, response.address)
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
            self._problem = WITHOUT_ID
            return False
        except internal_error_types():
            logger.exception("internal error in pymongo-resilience before a find is resumed")
            return False
        return True


class AsyncFetch(Fetch):
    """As ``Fetch``, in a task."""

    async def fetch(self, original: Any, *args: Any) -> Any:
        if self._position.undecided:
            lookup = CollectionLookup(self._query.coll)
            try:
                lookup.note(await driver.finds.run_command(self._query, lookup.command(), args))
            except PyMongoError as error:
                self._note_unknown_kind(error)
            else:
                self._decide(lookup)
        if self._unchanged:
            return await original(*args)
        try:
            response = await original(*args)
        except OperationFailure as error:
            if not self._was_not_sorted(error):
                raise
            return await original(*args)
        if self._noted(response):
            try:
                self._position.collection = await self._collection(args)
            except PyMongoError as error:
                self._ask_later(error, response)
        return response

    async def _find_out(self, attempts: DriverAttempts, address: Address) -> None:
        position, names = self._position, CollectionLookup(self._query.coll)
        try:
            with driver.csot.within(LATER_S):
                while names.next is not None:
                    names.note(await self._run_apart(names, attempts, address))
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
