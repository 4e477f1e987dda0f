"""Ends a server selection early if every server has a terminal cause.

Only for the strategy ``fast_fail``, before each of pymongo's waits for a server.
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


CHECKS = 2
"""Consecutive checks that must find a terminal cause; for logins, refusals."""
UNCHANGED_S = 0.5
"""Seconds after which a wrong set name counts as checked twice. With streaming, a server answers
hello only when something changes, so there may be no second check.
"""
REFUSED_S = 1.0
"""Seconds for which a refused login also fails operations that did not try to log in."""
LOST_ALERT = {Symptom.HANGS_UP, Symptom.CLIENT_CERTIFICATE}
"""With TLS 1.3, a client that is writing when its certificate is refused may not see the alert."""
DECIDED = frozenset({"ReplicaSetWithPrimary", "Sharded"})
"""Topology types in which the members are known."""
NO_PRIMARY = "ReplicaSetNoPrimary"
PRIMARY, SECONDARY, ARBITER = "RSPrimary", "RSSecondary", "RSArbiter"


class UnreachableServer(NamedTuple):
    """A server that cannot be reached, as seen during one selection. Immutable."""

    description: ServerDescription
    symptom: Symptom | None
    """A terminal cause, or HANGS_UP, which a second look may explain."""
    times: int
    """Number of consecutive checks that found the symptom."""
    since: float
    """When the last of them was first seen, in seconds."""
    explained: Symptom | None = None
    """The result of the second look."""

    @property
    def cause(self) -> Symptom | None:
        """The terminal cause, if there is one."""
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
    """When the operation's server was first missing from the deployment, in seconds."""

    def is_removed(self, topology: TopologyDescription, bound_to: Address, now: float) -> bool:
        """Return True if an operation waits for a server that was renamed or removed.

        A primary or a mongos must be known all the time. Without one, the next one may list the
        server.
        """
        servers = topology.server_descriptions()
        is_known = topology.topology_type_name in DECIDED and any(
            server.is_server_type_known for server in servers.values()
        )
        if bound_to in servers or not is_known:
            # The server is back, or nothing is known, so start again.
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
        """Return the terminal cause that all servers share which could handle the operation, or
        None.

        Args:
            topology: The current description.
            now: Seconds.
            refusals: Returns the number of consecutive logins that a server has refused.
            second_look: Returns why a server closes connections.
        """
        servers = topology.server_descriptions().values()
        is_electing = topology.topology_type_name == NO_PRIMARY
        if not servers and is_electing:
            # pymongo has dropped every server because none belongs to the set, and no longer checks
            # any.
            return Symptom.SET_NAME
        unknown = [server for server in servers if not server.is_server_type_known]
        self.seen = {
            server.address: self._look_at(server, now, refusals, second_look) for server in unknown
        }
        if any(
            self._may_serve(server, is_electing)
            for server in servers
            if server.is_server_type_known
        ):
            return None
        # If the causes differ, one of them may disappear by itself, so the operation waits.
        shared = {
            server.cause if server.is_terminal(now) else None for server in self.seen.values()
        }
        return shared.pop() if len(shared) == 1 else None

    def _may_serve(self, description: ServerDescription, is_electing: bool) -> bool:
        """Return True if a reachable server may become usable: recover, catch up, or be elected.

        A secondary cannot help if the primary that it names is unreachable for good.
        """
        kind = description.server_type_name
        if is_electing and kind in (SECONDARY, ARBITER):
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
            # Logins happen on the connections of operations, not in the monitor's checks, so count
            # refusals.
            return UnreachableServer(description, symptom, refusals(address), now)
        if symptom is None and causes.hangs_up(error):
            symptom, explained = Symptom.HANGS_UP, second_look(address)
        # The same description as last time: there was no new check, so do not count it again.
        if before is not None and before.description is description:
            return before._replace(explained=explained)
        is_same = before is not None and (
            before.symptom is symptom or {before.symptom, symptom} == LOST_ALERT
        )
        times = before.times + 1 if before is not None and is_same else 1
        return UnreachableServer(description, symptom, times, now, explained)


class TerminalWaits:
    """Called before an operation with the strategy ``fast_fail`` waits for a server."""

    def __init__(self, rules: NamespaceRules) -> None:
        self._rules = rules
        self._checked: WeakSet[Exception] = WeakSet()
        """Login failures after which a new check of the server was requested."""

    def __call__(self, operation: Operation) -> Exception | None:
        """Return the error to raise at once, or None to wait."""
        strategy = operation.call.option(self._rules, "strategy") or self._rules.strategy
        if not isinstance(strategy, FastFail):
            return None
        client, detector = operation.client, operation.terminal_detector or TerminalDetector()
        operation.detect_terminal(detector)
        topology, now = client.topology_description, driver.csot.now()
        attempts = operation.attempts
        bound_to = None if attempts is None else driver.selection.bound_to(attempts)
        if bound_to is not None and detector.is_removed(topology, bound_to, now):
            members = ", ".join(map(address_text, topology.server_descriptions()))
            found: dict[Address, Any] = {bound_to: f"not among the members {members}"}
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
            # Report the most recent refusal. If it is old, the credentials may have been corrected
            # since, so try again.
            newest = max(refused, key=lambda server: server.last_update_time)
            age = now - newest.last_update_time
            if age < REFUSED_S:
                return causes.refused_again(newest.error, newest.address, age)
        elif cause is not None:
            seeds = driver.selection.seeds(driver.clients.topology_of(client))
            found = {
                at: server.error or server.server_type_name.removeprefix("RS").lower()
                for at, server in topology.server_descriptions().items()
            }
            found = found or dict.fromkeys(seeds)
            return causes.selection_error(cause, found, topology.replica_set_name)
        # pymongo treats the server as unknown until its next check, up to ten seconds later, and no
        # login is possible before that. Request the check now.
        for server in refused:
            if server.error not in self._checked:
                self._checked.add(server.error)
                driver.monitors.request_check(driver.clients.topology_of(client), server.address)
        return None
