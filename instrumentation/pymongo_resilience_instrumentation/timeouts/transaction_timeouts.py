"""What is left of a with_transaction's timeout, for the operations with its session.

Source: Client Side Operations Timeout, "Convenient Transactions API".
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pymongo.errors import InvalidOperation

from pymongo_resilience.policies import blocks
from pymongo_resilience_instrumentation import calls, driver

if TYPE_CHECKING:
    from pymongo_resilience.policies.blocks import Block

# A private attribute of the session: changed by others, transactions would end too soon or late.
_TRANSACTION = "_pymongo_resilience_transaction"


class TransactionDeadline(NamedTuple):
    """The one deadline of a with_transaction, for the operations with its session."""

    timeout: driver.csot.Timeout
    timed: Block | None
    """The ``override`` with a timeout around with_transaction."""
    began: float
    """On the clock of the driver's deadlines, in seconds."""

    def refuse_others(self) -> None:
        """Raises InvalidOperation where the callback gives an operation a timeout of its own.

        What a call puts in force for itself, and for those inside of it, is none of the callback's.
        """
        timed = blocks.timed()
        inside = timed is not None and timed is not self.timed
        if not inside and calls.current() is None:
            inside = driver.csot.timeout_in_force() is not None and not driver.csot.runs_already()
        if inside:
            raise InvalidOperation(
                "inside of with_transaction an operation with its session has what remains of the "
                "transaction's timeout, and none of its own: put the override() or "
                "pymongo.timeout() around with_transaction"
            )


def enter_transaction(session: object, deadline: TransactionDeadline) -> None:
    """The session is in the callback from now on."""
    setattr(session, _TRANSACTION, deadline)


def leave_transaction(session: object) -> None:
    with suppress(AttributeError):
        delattr(session, _TRANSACTION)


def transaction_of(session: object) -> TransactionDeadline | None:
    """The deadline of the with_transaction in whose callback a session is."""
    return getattr(session, _TRANSACTION, None)
