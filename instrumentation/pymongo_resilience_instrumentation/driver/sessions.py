"""pymongo's sessions, and the state of their transactions."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pymongo.errors import ClientBulkWriteException, PyMongoError
from pymongo.server_selectors import writable_server_selector

from .clients import each_api
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
    cause = error.error if isinstance(error, ClientBulkWriteException) else error
    if isinstance(cause, PyMongoError):
        cause._add_error_label("TransientTransactionError")


def max_commit_time_ms(session: Session) -> int | None:
    """Return the application's limit for the commit. pymongo omits it under any timeout."""
    options = session._transaction.opts
    return None if options is None else options.max_commit_time_ms


ROUTER = "_pymongo_resilience_router"
"""A session's attribute: the ``Router`` of its transaction."""
NO_SUCH_TRANSACTION = 251


class Router(NamedTuple):
    """The mongos that a transaction was last sent to."""

    address: Any
    generation: object
    """The generation of its connection pool, which changes when a connection is lost."""


def note_router(session: Session, connection: Connection) -> None:
    """Record the router of a session's transaction, because pymongo unpins it after most errors."""
    vars(session)[ROUTER] = Router(connection.address, connection.generation)


def is_orphaned(client: Client, session: Session) -> bool:
    """Return True if the router of the session's transaction cannot be reached now.

    No other router knows which shards take part in the transaction.
    """
    router: Router | None = vars(session).get(ROUTER)
    return router is not None and not is_known(client, router.address)


def is_forgotten(session: Any, connection: Any, code: int | None) -> bool:
    """Return True if the mongos that answered an abort may not know the transaction (anymore).

    A mongos that has restarted does not know transactions from before, and replies with
    NoSuchTransaction. It gives the same reply if the shards have already aborted the transaction.
    The two cases are told apart by the connection pool: after a restart, a connection was lost
    since the last statement.

    Args:
        session: The session of the transaction.
        connection: The connection on which the abort was sent, or None.
        code: The error code of the reply.
    """
    router: Router | None = vars(session).get(ROUTER)
    if code != NO_SUCH_TRANSACTION or router is None or connection is None:
        return False
    # Another router never knew the transaction, and the generation of its pool is not comparable.
    return router != Router(connection.address, connection.generation)


class OpenTransaction(NamedTuple):
    """A transaction that must still be aborted, even if its session no longer exists."""

    command: dict[str, Any]
    """The command that aborts it."""
    address: Any
    """The address of its router; None on a replica set."""
    session: weakref.ref[Any] | None = None
    """Its session on a sharded cluster; None on a replica set."""
    is_forgotten: bool = False
    """True if its router does not know it anymore, because the router has restarted."""


def open_transaction(
    session: Session, *, aborted: bool = False, is_forgotten: bool = False
) -> OpenTransaction | None:
    """Return what is needed to abort the session's transaction later.

    None if the session has ended, or if it has no open transaction.

    Args:
        session: The session.
        aborted: Whether pymongo considers the transaction aborted, although the server may not have
            received the abort. It then counts as open.
        is_forgotten: Whether the router does not know the transaction anymore.
    """
    transaction, server = session._transaction, session._server_session
    if server is None or not (session.in_transaction or aborted):
        return None
    # The command that pymongo itself would send, including the recovery token.
    command = {ABORT: 1, "lsid": session.session_id}
    command |= {"txnNumber": server.transaction_id, "autocommit": False}
    if transaction.recovery_token:
        command["recoveryToken"] = transaction.recovery_token
    noted: Router | None = vars(session).get(ROUTER)
    router = transaction.pinned_address or (noted and noted.address)
    if router is None:
        return OpenTransaction(command, None)
    # The session may be killed later, so pymongo must not reuse it for another operation.
    server.mark_dirty()
    return OpenTransaction(command, router, weakref.ref(session), is_forgotten)


def can_be_ended(client: Client, opened: OpenTransaction) -> bool:
    """Return True if the transaction can be ended now.

    If it cannot be aborted, its whole session must be killed. That has to wait while the
    application still uses the session.
    """
    if opened.session is None or _can_be_aborted(client, opened):
        return True
    session = opened.session()
    return session is None or bool(session.has_ended)


def _can_be_aborted(client: Client, opened: OpenTransaction) -> bool:
    """Return True if an abortTransaction can end the transaction.

    On a sharded cluster, its router must be reachable and must still know the transaction.
    """
    if opened.session is None:
        return True
    return not opened.is_forgotten and is_known(client, opened.address)


def _ending(client: Client, opened: OpenTransaction) -> tuple[Any, dict[str, Any]]:
    """Return the address and the command that end the transaction.

    Usually, that is an abortTransaction to its router, or to the primary of a replica set. If the
    router cannot be reached or has forgotten the transaction, no reachable router knows it, so none
    can abort it. Then a killSessions is sent to any router, which forwards it to the shards.
    """
    if _can_be_aborted(client, opened):
        return opened.address, opened.command.copy()
    return None, {KILL_SESSIONS: [opened.command["lsid"]]}


def is_still_open(opened: OpenTransaction, code: int | None) -> bool:
    """Return True if the transaction may still be open on the shards after the reply to an abort.

    A router that has restarted replies with NoSuchTransaction, although the shards may not have
    received the abort.

    Args:
        opened: The transaction.
        code: The error code of the reply.
    """
    is_aborted_by_router = opened.session is not None and not opened.is_forgotten
    return is_aborted_by_router and code == NO_SUCH_TRANSACTION


def abort(client: Client, opened: OpenTransaction) -> None:
    """End the transaction: send an abortTransaction or a killSessions."""
    address, command = _ending(client, opened)
    # Do not use the retry loop, because the background task tries again by itself.
    server = client._select_server(writable_server_selector, None, ABORT, address)
    with client._checkout(server, None) as connection:
        connection.command("admin", command, client=client)


async def abort_async(client: Client, opened: OpenTransaction) -> None:
    """Do the same as ``abort`` in an async client."""
    address, command = _ending(client, opened)
    server = await client._select_server(writable_server_selector, None, ABORT, address)
    async with client._checkout(server, None) as connection:
        await connection.command("admin", command, client=client)


NO_SESSION: ContextVar[Any] = ContextVar("NO_SESSION", default=None)
BOUND = [getattr(module, "_SESSION", NO_SESSION) for module, _ in each_api("client_session")]
"""The session that ``session.bind()`` has set for the caller, in each API."""
