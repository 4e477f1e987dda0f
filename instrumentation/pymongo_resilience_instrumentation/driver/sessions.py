"""pymongo's sessions, and the state of their transactions."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pymongo.errors import ClientBulkWriteException, PyMongoError
from pymongo.server_selectors import writable_server_selector

from pymongo_resilience.open_transactions import (
    Event,
    OpenTransaction,
    OpenTransactions,
    State,
    Step,
    state_after,
)

from .clients import each_api
from .csot import now
from .finds import is_known

if TYPE_CHECKING:
    from .protocols import Client, Connection, Session

T = TypeVar("T")

STATE = "state"
"""The attribute of a transaction with its state."""
ABORT, KILL_SESSIONS = "abortTransaction", "killSessions"
WITHIN_TIME_LIMIT = "_within_time_limit"
"""A function of the sessions' module, called before with_transaction retries anything."""


class ReopenedIfInterrupted(AbstractContextManager["ReopenedIfInterrupted"]):
    """A context manager around a with_transaction.

    An interrupted commit may not have been sent at all, but pymongo considers it done. This reopens
    the transaction, so that it is aborted when its session ends.
    """

    def __init__(self, session: Session) -> None:
        self._transaction = session._transaction
        self._state: Any = None

    def note(self, result: T) -> T:
        """Record that the callback has returned ``result`` and the commit follows."""
        self._state = getattr(self._transaction, STATE, None)
        return result

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        interrupted = error is not None and not isinstance(error, PyMongoError)
        # The state is None if the installed pymongo does not have the attribute.
        if interrupted and self._state is not None:
            setattr(self._transaction, STATE, self._state)


UNRECOVERABLE = 50940
"""A router's code for committing a transaction that it does not know, without a recovery token."""


def may_be_committed(session: Session, code: int | None) -> bool:
    """Return True if the error of a commit only means that this router does not know the
    transaction, after an attempt with an unknown result.
    """
    return code == UNRECOVERABLE and session._transaction.attempt > 1


def label_unknown_result(error: PyMongoError) -> None:
    """Add pymongo's label for a commit with an unknown result, which may be sent again."""
    error._add_error_label("UnknownTransactionCommitResult")


def label_transient(error: PyMongoError) -> None:
    """Add pymongo's label for an error after which the whole transaction may be retried."""
    # A client's bulk write wraps the server's error, and reads its labels from there.
    cause = error.error if isinstance(error, ClientBulkWriteException) else error
    if isinstance(cause, PyMongoError):
        cause._add_error_label("TransientTransactionError")


def max_commit_time_ms(session: Session) -> int | None:
    """Return the application's limit for the commit. pymongo omits it under any timeout."""
    options = session._transaction.opts
    return None if options is None else options.max_commit_time_ms


ROUTER = "_pymongo_resilience_router"
"""A session's attribute: the ``Router`` of its transaction."""


class Router(NamedTuple):
    """The mongos that a transaction was last sent to."""

    address: Any
    generation: object
    """The generation of its connection pool, which changes when a connection is lost."""


def note_router(session: Session, connection: Connection) -> None:
    """Record the router of a session's transaction, because pymongo unpins it after most errors."""
    vars(session)[ROUTER] = Router(connection.address, connection.generation)


def note_end(
    transactions: OpenTransactions,
    session: Session,
    event: Event,
    connection: Connection | None = None,
) -> None:
    """Record how a transaction ended, so that the background task ends it if it may still be open.

    Args:
        transactions: The open transactions of the session's client.
        session: The session of the transaction. It may have no transaction.
        event: What happened.
        connection: The connection on which an abort was sent, if any.
    """
    transaction, server = session._transaction, session._server_session
    # None if the session has ended, or has not sent a command yet.
    txn_number = getattr(server, "transaction_id", None)
    # pymongo considers an interrupted transaction ended.
    may_be_open = session.in_transaction or event is Event.INTERRUPTED
    # Before its first statement, a transaction does not exist on the server.
    if txn_number is None or not may_be_open or transaction.starting():
        return
    router: Router | None = vars(session).get(ROUTER)
    may_be_forgotten = False
    if router is not None and connection is not None:
        if router.address != connection.address:
            event = Event.ANOTHER_ROUTER
        may_be_forgotten = router.generation != connection.generation
    state = state_after(
        event,
        may_be_forgotten=may_be_forgotten,
        router_is_lost=router is not None and not is_known(session.client, router.address),
    )
    if state is State.ENDED:
        return
    # The command that pymongo itself would send, including the recovery token.
    abort = {ABORT: 1, "lsid": session.session_id, "txnNumber": txn_number, "autocommit": False}
    if transaction.recovery_token:
        abort["recoveryToken"] = transaction.recovery_token
    # pymongo pins the session to the router of the last attempt, which may be another one.
    address = transaction.pinned_address if router is None else router.address
    if address is not None:
        # The session may be killed later, so pymongo must not reuse it for another operation.
        server.mark_dirty()
    opened = OpenTransaction(
        (bytes(session.session_id["id"]), txn_number),
        abort,
        address,
        None if address is None else weakref.ref(session),
    )
    transactions.add(opened, state, now())


def router_is_lost(client: Client, opened: OpenTransaction) -> bool:
    """Return True if the transaction began on a router that cannot be reached now."""
    return opened.router is not None and not is_known(client, opened.router)


def is_in_use(opened: OpenTransaction) -> bool:
    """Return True if the application has not ended the transaction's session."""
    session: Any = None if opened.session is None else opened.session()
    return session is not None and not session.has_ended


def command_for(step: Step, opened: OpenTransaction) -> tuple[Any, dict[str, Any]]:
    """Return the address to send to, or None for any server, and the command of a step."""
    if step is Step.ABORT:
        return opened.router, dict(opened.abort)
    return None, {KILL_SESSIONS: [opened.abort["lsid"]]}


def send(client: Client, step: Step, opened: OpenTransaction) -> None:
    """Send the command of a step."""
    address, command = command_for(step, opened)
    # Do not use the retry loop, because the background task tries again by itself.
    server = client._select_server(writable_server_selector, None, ABORT, address)
    with client._checkout(server, None) as connection:
        connection.command("admin", command, client=client)


async def send_async(client: Client, step: Step, opened: OpenTransaction) -> None:
    """Do the same as ``send`` in an async client."""
    address, command = command_for(step, opened)
    server = await client._select_server(writable_server_selector, None, ABORT, address)
    async with client._checkout(server, None) as connection:
        await connection.command("admin", command, client=client)


NO_SESSION: ContextVar[Any] = ContextVar("NO_SESSION", default=None)
BOUND = [getattr(module, "_SESSION", NO_SESSION) for module, _ in each_api("client_session")]
"""The session that ``session.bind()`` has set for the caller, in each API."""
