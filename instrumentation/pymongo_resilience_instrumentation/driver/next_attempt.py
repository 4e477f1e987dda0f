"""What has to be set in pymongo's retry loop before an attempt is repeated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pymongo.errors import ClientBulkWriteException, NotPrimaryError, WriteConcernError

from pymongo_resilience.rules.failure import RETRYABLE_WRITE, Failure, RetryReason, Stage
from pymongo_resilience.rules.retried_operation import Kind

from .retry_loop import bulk_progress, in_transaction, is_sharded, kind, topology_type
from .selection import NO_LIMIT


def needed_unpin(loop: Any, failure: Failure) -> Callable[[], Any] | None:
    """The session's own method to leave its server after a failed write, as in the driver's loop.

    A coroutine function in async clients. None where there is nothing to do, or only that server
    knows the transaction.
    """
    if loop._is_read or loop._session is None or stays_pinned(loop, failure):
        return None
    if failure.retryable_overload or RETRYABLE_WRITE in failure.labels:
        method: Callable[[], Any] = loop._session._unpin
        return method
    return None


class _ErrorContext(NamedTuple):
    """What the driver's topology reads of an error."""

    error: Exception
    max_wire_version: int
    sock_generation: int
    completed_handshake: bool
    service_id: Any


def needed_check(loop: Any, failure: Failure) -> Callable[[], Any] | None:
    """The topology's own method to take a server for unknown until it is checked, where one of a
    write's statements says that it is no primary: there the driver ignores it, and the next
    attempt would go to the same server. A coroutine function in async clients.

    None of what a router relays: it is not the router's state.
    """
    in_statement = failure.executed and not isinstance(failure.error, WriteConcernError)
    if failure.reason is not RetryReason.NOT_PRIMARY or not in_statement or is_sharded(loop):
        return None
    connection, error = loop.connection, NotPrimaryError("", {"code": failure.code})
    context = _ErrorContext(
        error, connection.max_wire_version, connection.generation, True, connection.service_id
    )
    topology = loop._client._topology
    return partial(topology.handle_error, loop._server.description.address, context)


def stays_pinned(loop: Any, failure: Failure) -> bool:
    """Whether a retry must go to the router that the transaction was begun through.

    No other one knows it. An end that was not plainly rejected may go to another: it takes a
    recovery token along (Transactions, "When to unpin").
    """
    if not in_transaction(loop):
        return False
    transaction = loop._session._transaction
    if kind(loop) is not Kind.TRANSACTION_END:
        return bool(transaction.sharded and transaction.has_completed_command)
    return (
        transaction.pinned_address is not None
        and failure.retryable_overload
        and failure.stage is Stage.ANSWERED
    )


def pin_again(loop: Any) -> None:
    """The driver unpins for any error with the label TransientTransactionError, which it gives to
    each connection that cannot be made."""
    transaction = loop._session._transaction
    if transaction.pinned_address is None:
        transaction.pinned_address = loop._server.description.address


def retry_once_at_most(loop: Any) -> None:
    """Limit a loop that pymongo runs by itself, under a deadline of another operation's: it would
    repeat without a pause until that is over."""
    if hasattr(loop, "_max_retries"):
        loop._max_retries = 1


def prepare_retry(loop: Any, failure: Failure) -> None:
    """Bring the loop's state to what its own code has before it repeats an attempt."""
    # Without it, the loop raises the last error again where it does not count the attempt as
    # retryable itself, inside of the checkout: which clears the pool, for everybody.
    loop._always_retryable = True
    if bulk_progress(loop) is not None:
        # pymongo 4.20 marks a bulk as retrying that has not begun its first run, then never asks
        # for the next run: the rest of a mixed bulk would be lost.
        loop._bulk.retrying = True
        _forget_in_result(failure.error)
    if failure.overloaded and not failure.executed and in_transaction(loop):
        _rejected_in_transaction(loop, failure)


def _rejected_in_transaction(loop: Any, failure: Failure) -> None:
    """Nothing was executed: the transaction has still to begin, or its end to be tried.

    The driver's own loop forgets all attempts to commit, those whose reply was lost as well, which
    must be followed by one with a majority; and it sends an end that would begin a transaction.
    """
    transaction = loop._session._transaction
    if kind(loop) is not Kind.TRANSACTION_END:
        if not transaction.has_completed_command:
            transaction.set_starting()
    elif failure.stage is Stage.ANSWERED:
        transaction.attempt -= 1


def _forget_in_result(error: Exception) -> None:
    """Take the error of the failed attempt out of the result of a client's bulk write.

    pymongo 4.17 to 4.20 put it there unless the write carried a txnNumber and the error is one of
    those that their own loop retries, and raise it at the end, although a retry succeeded.
    """
    if not isinstance(error, ClientBulkWriteException):
        return
    result: Any = error.details
    # The error itself may still be raised: it keeps what it says.
    error._OperationFailure__details = {  # type: ignore[attr-defined]  # a private name
        name: copy.copy(value) if isinstance(value, (dict, list)) else value
        for name, value in result.items()
    }
    result["error"] = None


def deprioritize(loop: Any, server: Any) -> None:
    """The loop's next selection avoids the server, where there is another.

    Not where that could read what is too old: pymongo 4.20 measures a maximum staleness against
    the primary, or else the newest member, of those that it does not avoid.
    """
    if server is None:
        return
    if getattr(loop._server_selector, "max_staleness", NO_LIMIT) != NO_LIMIT:
        has_primary = topology_type(loop) == "ReplicaSetWithPrimary"
        if not has_primary or server.description.is_writable:
            return
    loop._deprioritized_servers = [*(loop._deprioritized_servers or ()), server]
