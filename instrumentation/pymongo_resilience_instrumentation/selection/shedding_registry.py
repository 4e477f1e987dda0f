"""Which attempts a client refuses itself, and the error of those.

A batch of a cursor and what follows the first command of a transaction are never refused.
"""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING

from pymongo.errors import AutoReconnect

from pymongo_resilience import errors
from pymongo_resilience.option_types import NORMAL
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED, TRANSIENT_TRANSACTION
from pymongo_resilience.rules.load_shedding import LoadShedder, LoadShedders
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.clients.by_client import ByClient

if TYPE_CHECKING:
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience_instrumentation.calls import Call

SWITCH = "PYMONGO_RESILIENCE_LOAD_SHEDDING=false"


class OverloadShedError(errors.OverloadShedError, AutoReconnect):
    """An AutoReconnect, as every ``except`` clause knows one: nothing was sent."""


class ClientShedders(LoadShedders):
    """Those of one client, by server. Thread- and task-safe."""

    def __init__(self, clock: Clock, rules: NamespaceRules) -> None:
        super().__init__(clock, random)
        self._rules = rules

    def admit(self, loop: object, server: object, call: Call) -> None:
        """Before anything is sent to the server that was selected.

        Raises OverloadShedError, which is also pymongo's AutoReconnect.
        """
        if driver.selection.is_bound(loop):
            return
        address = address_text(driver.selection.address(server))
        shedder, priority = self.of(address), call.wanted(self._rules, "priority") or NORMAL
        if not shedder.admits(priority):
            in_transaction = driver.retry_loop.in_transaction(loop)
            raise _error(address, shedder, priority, in_transaction=in_transaction)


class SheddingRegistry(ByClient[ClientShedders]):
    """What each client needs for it."""

    def __init__(self, clock: Clock, rules: NamespaceRules) -> None:
        super().__init__(lambda _: ClientShedders(clock, rules))


def _error(
    server: str, shedder: LoadShedder, priority: str, *, in_transaction: bool
) -> OverloadShedError:
    refused = shedder.refused(priority)
    labels = [SYSTEM_OVERLOADED, RETRYABLE]
    if in_transaction:
        # As pymongo labels it where no server could be selected.
        labels.append(TRANSIENT_TRANSACTION)
    error = OverloadShedError(
        f"nothing was sent: {server} rejects most of what it is sent, so this client refuses "
        f"{refused:.0%} of its operations of {priority} priority ({SWITCH} switches that off)",
        {"errorLabels": labels},
    )
    vars(error).update(server=server, priority=priority, refused=refused)
    return error
