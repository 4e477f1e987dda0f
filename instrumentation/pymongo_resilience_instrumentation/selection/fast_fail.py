"""Ends a selection that waits while every server has a terminal cause.

For the strategy ``fast_fail`` only, before each of the driver's waits for a server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.rules.strategy import FastFail
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures import causes
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.operation import Operation

from . import second_look

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.retries.retry_loop import RetryLoop

CHECKS = 2
"""Checks in a row that must find a terminal cause; for a login, refusals."""
UNCHANGED_S = 0.5
"""Seconds after which a set name counts as checked twice: streamed hellos return on changes
alone."""
REFUSED_S = 1.0
"""Seconds for which a refused login fails operations that have not tried it themselves."""
LOST_ALERT = {Symptom.HANGS_UP, Symptom.CLIENT_CERTIFICATE}
"""With TLS 1.3 a client that is writing when its certificate is refused may not see the alert."""
DECIDED = frozenset({"ReplicaSetWithPrimary", "Sharded"})
"""Topologies in which it is known who is a member."""
NO_PRIMARY = "ReplicaSetNoPrimary"
PRIMARY, SECONDARY, ARBITER = "RSPrimary", "RSSecondary", "RSArbiter"


class UnreachableServer(NamedTuple):
    """A server that cannot be reached, as a selection saw it. Immutable."""

    description: ServerDescription
    symptom: Symptom | None
    """A terminal cause, or that the server hangs up, which a second look may explain."""
    times: int
    """For how many checks in a row."""
    since: float
    """When the last of them was seen first, in seconds."""
    explained: Symptom | None = None
    """What the second look has found."""

    @property
    def cause(self) -> Symptom | None:
        """The terminal one, if any."""
        return self.explained if self.symptom is Symptom.HANGS_UP else self.symptom

    def is_terminal(self, now: float) -> bool:
        if self.cause is Symptom.SET_NAME and now - self.since >= UNCHANGED_S:
            return True
        return self.cause is not None and self.times >= CHECKS


@dataclass(slots=True, repr=False, kw_only=True)
class TerminalDetector:
    """What one operation saw of the servers while it waited for one. Not thread-safe."""

    seen: dict[Address, UnreachableServer] = field(default_factory=dict)
    removed_since: float | None = None
    """Since when the server that the operation is bound to is not a member, in seconds."""

    def is_removed(self, topology: TopologyDescription, bound_to: Address, now: float) -> bool:
        """Return whether an operation waits for a server that was renamed or removed.

        A primary or mongos must be known all the time: without one, the next may list the server.
        """
        servers = topology.server_descriptions()
        is_known = topology.topology_type_name in DECIDED and any(
            each.is_server_type_known for each in servers.values()
        )
        if bound_to in servers or not is_known:
            self.removed_since = None
            return False
        if self.removed_since is None:
            self.removed_since = now
        return now - self.removed_since >= UNCHANGED_S

    def look(
        self,
        topology: TopologyDescription,
        now: float,
        refusals: Callable[[Address], int],
        second_look: Callable[[Address], Symptom | None] = lambda _: None,
    ) -> Symptom | None:
        """The terminal cause that all servers that could serve have in common; else None. ``now``:
        in seconds; ``refusals``: how many logins in a row a server has refused; ``second_look``:
        why one hangs up."""
        servers = topology.server_descriptions().values()
        electing = topology.topology_type_name == NO_PRIMARY
        if not servers and electing:
            # pymongo has dropped every server for being none of the set, and checks none any more.
            return Symptom.SET_NAME
        unknown = [each for each in servers if not each.is_server_type_known]
        self.seen = {
            each.address: self._look_at(each, now, refusals, second_look) for each in unknown
        }
        if any(self._may_serve(each, electing) for each in servers if each.is_server_type_known):
            return None
        found = {each.cause if each.is_terminal(now) else None for each in self.seen.values()}
        return found.pop() if len(found) == 1 else None

    def _may_serve(self, description: ServerDescription, electing: bool) -> bool:
        """A server that is reached, and does not serve, may recover, catch up or be elected, unless
        the primary that it names has an error."""
        kind = description.server_type_name
        if electing and kind in (SECONDARY, ARBITER):
            return description.primary not in self.seen
        return kind not in (PRIMARY, ARBITER)

    def _look_at(
        self,
        description: ServerDescription,
        now: float,
        refusals: Callable[[Address], int],
        second_look: Callable[[Address], Symptom | None],
    ) -> UnreachableServer:
        address, error = description.address, description.error
        before, symptom, explained = self.seen.get(address), causes.cause_of(error), None
        if symptom in causes.LOGINS:
            return UnreachableServer(description, symptom, refusals(address), now)
        if symptom is None and causes.hangs_up(error):
            symptom, explained = Symptom.HANGS_UP, second_look(address)
        if before is not None and before.description is description:
            return before._replace(explained=explained)
        same = before is not None and (
            before.symptom is symptom or {before.symptom, symptom} == LOST_ALERT
        )
        times = before.times + 1 if before is not None and same else 1
        return UnreachableServer(description, symptom, times, now, explained)


class TerminalWaits:
    """Before a wait for a server of an operation with the strategy ``fast_fail``."""

    def __init__(self, rules: NamespaceRules, in_flight: Callable[[], list[RetryLoop]]) -> None:
        self._rules, self._in_flight = rules, in_flight
        self._checked: WeakSet[Exception] = WeakSet()
        """The refusals of a login after which the server was checked anew."""

    def __call__(self, operation: Operation) -> Exception | None:
        """The error to fail with at once; None to wait."""
        strategy = operation.call.option(self._rules, "strategy") or self._rules.strategy
        if not isinstance(strategy, FastFail):
            return None
        client, detector = operation.client, operation.terminal_detector or TerminalDetector()
        operation.detect_terminal(detector)
        topology, now = client.topology_description, driver.csot.now()
        bound_to = self._bound_to(operation)
        if bound_to is not None and detector.is_removed(topology, bound_to, now):
            members = ", ".join(map(address_text, topology.server_descriptions()))
            found: dict[Address, Any] = {bound_to: f"not among {members}"}
            return causes.selection_error(Symptom.REMOVED, found, None)
        cause = detector.look(
            topology,
            now,
            partial(driver.connections.refused_logins, client),
            partial(second_look.finding, client),
        )
        refused: list[Any] = [
            seen.description for seen in detector.seen.values() if seen.cause in causes.LOGINS
        ]
        if cause in causes.LOGINS:
            newest = max(refused, key=lambda each: each.last_update_time)
            age = now - newest.last_update_time
            if age < REFUSED_S:
                return causes.refused_again(newest.error, newest.address, age)
        elif cause is not None:
            seeds = driver.selection.seeds(driver.clients.topology_of(client))
            found = {
                at: each.error or each.server_type_name.removeprefix("RS").lower()
                for at, each in topology.server_descriptions().items()
            }
            found = found or dict.fromkeys(seeds)
            return causes.selection_error(cause, found, topology.replica_set_name)
        # pymongo takes the server for unknown until its next hello, up to ten seconds later, and no
        # login can be tried before.
        for each in refused:
            if each.error not in self._checked:
                self._checked.add(each.error)
                driver.monitors.request_check(driver.clients.topology_of(client), each.address)
        return None

    def _bound_to(self, operation: Operation) -> Address | None:
        own = (loop.attempts for loop in self._in_flight() if loop.operation is operation)
        return next(filter(None, map(driver.selection.bound_to, own)), None)
