"""Continues bulk writes and insert_many of which the server throttled some statements.

Azure Cosmos DB then replies ``ok: 1`` with the code 16500 for these statements, and has executed
others of the same command. Without a transaction number, the server would not recognize what it has
executed if the whole command were sent again. So only the throttled statements are sent again, as
a command of their own, if the application declared the write idempotent:

- Ordered: the reply is cut off before the throttled statement. pymongo then sends the rest.
- Unordered: the throttled statements are appended to those that pymongo sends.

Before pymongo sends them, ``take`` returns their errors in place of a reply. pymongo raises for it,
which lets the retry rules decide whether and when they are sent. If they are not, the application
gets the error that pymongo alone would raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo_resilience.rules.strategy import MongoDB
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.failures import engines

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.runtime import Runtime

Reply = dict[str, Any]
Error = Mapping[str, Any]


class HeldBack(NamedTuple):
    """Statements that wait to be sent again. Immutable."""

    position: tuple[Any, int]
    """The position of the bulk write at which they come; see ``DriverAttempts.bulk_progress``."""
    errors: Sequence[Error]
    """The server's error of each, with its index from ``position``."""


class Settled(NamedTuple):
    """A reply as pymongo should see it. Immutable."""

    reply: Reply
    sent: Sequence[Any]
    """The statements that the reply covers."""
    raised: Error | None
    """The error to raise now, or None to let pymongo continue."""


def take() -> Sequence[Error] | None:
    """Return the errors of the statements that pymongo is about to send again, once."""
    attempts = _attempts()
    if attempts is None or (held_back := attempts.held_back) is None:
        return None
    attempts.held_back = None
    return held_back.errors if held_back.position == attempts.bulk_progress() else None


def settle(
    runtime: Runtime, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]
) -> Settled | None:
    """Return the reply without the throttled statements, or None if pymongo should see it as it
    is.

    Args:
        runtime: The runtime.
        cmd: The command.
        reply: The server's reply.
        sent: The statements that were sent.
    """
    errors, attempts = reply.get("writeErrors"), _attempts()
    # A transaction is retried as a whole, and a command with a number by ``stopped_bulks``.
    if not errors or attempts is None or "txnNumber" in cmd or "writeConcernError" in reply:
        return None
    throttled = [each for each in errors if engines.is_throttled(each)]
    progress, ordered = attempts.bulk_progress(), cmd["ordered"]
    # In an unordered bulk write, everything else is sent first, as by pymongo alone.
    is_complete = ordered or attempts.is_last_command(len(sent))
    policy = attempts.operation.policy(runtime.rules)
    strategy = runtime.rules.strategy_of(policy)
    if not throttled or progress is None or not is_complete or isinstance(strategy, MongoDB):
        return None
    if not policy.idempotent:
        return Settled(reply, sent, throttled[0])
    others = [each for each in errors if not engines.is_throttled(each)]
    settled = {**reply, "writeErrors": others}
    if not others:
        del settled["writeErrors"]
    if ordered:
        # The server has stopped here, so there is one error.
        sent = sent[: throttled[0]["index"]]
    else:
        attempts.append_statements([each["index"] for each in throttled])
    run, position = progress
    held_back = [{**each, "index": index} for index, each in enumerate(throttled)]
    attempts.held_back = HeldBack((run, position + len(sent)), held_back)
    return Settled(settled, sent, None)


def _attempts() -> DriverAttempts | None:
    operation = in_progress.current()
    return None if operation is None else operation.attempts
