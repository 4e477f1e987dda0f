"""Determines whether a client is ready to write and to read, for ``readiness(client)``.

It uses what the client's monitors have found and what the library knows. It sends nothing and does
not wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import ConfigurationError

from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.client_status import Readiness
from pymongo_resilience.internal_errors import logger
from pymongo_resilience.ready_states import Look, ReadyState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.clients.client_registry import ByClient, closed_text
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, Row
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection import second_look, selection_explained
from pymongo_resilience_instrumentation.selection.fast_fail import TerminalDetector

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription

    from pymongo_resilience_instrumentation.driver.protocols import Client, ReadPreference, Topology

T = TypeVar("T")

LATE = 2.0
"""Seconds. A server answers a check at least every ``heartbeatFrequencyMS``. If an answer is late
by this much, the server is not responding.
"""
MOST_PREFERENCES = 16
"""The number of read preferences per client whose history is kept."""
NOT_BEGUN = (
    "the client has not started to look for its servers: call its aconnect(), or run an "
    "operation, when the application starts"
)


def readiness(
    client: Client, preference: ReadPreference | None, grace: float, runtime: Runtime | None
) -> Readiness:
    """Implement ``pymongo_resilience.readiness``. ``grace`` is in seconds."""
    preference = client.read_preference if preference is None else preference
    if not hasattr(preference, "mongos_mode"):
        raise TypeError(f"an object of type {type(preference).__name__} is not a read preference")
    history = histories.of(client)
    if runtime is not None:
        runtime.clients.of(client).readiness = history
    return history.answer(client, preference, grace, runtime)


class History:
    """The readiness of one client over time, by read preference.

    Thread- and task-safe without a lock, because a forked child might inherit a lock that is held.
    Each look replaces an immutable value.
    """

    def __init__(self) -> None:
        self.latest: Readiness | None = None
        """The last answer."""
        self._states: dict[str, ReadyState] = {}
        self._preferences: dict[str, ReadPreference] = {}
        self._detector = TerminalDetector()
        self.topology: Topology | None = None

    def answer(
        self, client: Client, preference: ReadPreference, grace: float, runtime: Runtime | None
    ) -> Readiness:
        self.topology = driver.clients.topology_of(client)
        state, now = self._look(client, preference, runtime), driver.csot.now()
        ready_to_write, ready_to_read = state.ready(now, grace)
        answer = Readiness(
            ready_to_write=ready_to_write,
            ready_to_read=ready_to_read,
            why_not=state.look.why_not,
            # The states are on a monotonic clock; convert to the wall clock of the answer.
            since=time.time() - (now - state.since),
        )
        self._log_change(answer)
        self.latest = answer
        return answer

    def look_again(self, client: Client, runtime: Runtime) -> None:
        """Record what has changed, for the read preferences that ``readiness`` was called with."""
        for preference in list(self._preferences.values()):
            self._look(client, preference, runtime)

    def _look(
        self, client: Client, preference: ReadPreference, runtime: Runtime | None
    ) -> ReadyState:
        key = repr(preference)
        look = look_at(client, preference, runtime, self._detector)
        now, before = driver.csot.now(), self._states.get(key)
        state = ReadyState.first(look, now) if before is None else before.after(look, now)
        if before is None and len(self._states) >= MOST_PREFERENCES:
            # An application that creates ever new preferences must not fill the memory. Forgetting
            # all of them only restarts their grace periods.
            self._states.clear()
            self._preferences.clear()
        self._states[key], self._preferences[key] = state, preference
        return state

    def _log_change(self, answer: Readiness) -> None:
        before = self.latest
        for what, was, now in (
            ("write", before is not None and before.ready_to_write, answer.ready_to_write),
            ("read", before is not None and before.ready_to_read, answer.ready_to_read),
        ):
            if now and not was:
                logger.info("a client is ready to %s", what)
            elif not now and (was or before is None):
                logger.warning("a client is not ready to %s: %s", what, answer.why_not)


histories: ByClient[History] = ByClient(lambda _: History())
"""The histories of the clients that ``readiness`` was called with."""


def look_at(
    client: Client, preference: ReadPreference, runtime: Runtime | None, detector: TerminalDetector
) -> Look:
    """Determine what the client's servers currently allow."""
    topology = driver.clients.topology_of(client)
    if driver.clients.is_closed(client):
        return Look(False, False, closed_text(client), is_hopeless=True)
    described = client.topology_description
    servers = described.server_descriptions()
    if not any(driver.clients.server_at(topology, at) is not None for at in servers) and servers:
        # The topology has no servers before the client's first operation.
        return Look(False, False, NOT_BEGUN)
    breakers = {} if runtime is None else runtime.breakers_of(client)
    try:
        writes, reads = (_eligible(client, preference, writes=writes) for writes in (True, False))
    except ConfigurationError as error:
        # pymongo refuses the read preference for this deployment, for example a maximum staleness
        # that is too short.
        return Look(False, False, str(error), is_hopeless=True)
    writes = [at for at in writes if servers[at].is_writable]
    silent = _silent(client, servers)
    usable = {at for at in servers if at not in silent and not _is_open(breakers.get(at))}
    can_write, can_read = (not usable.isdisjoint(each) for each in (writes, reads))
    cause = detector.look(
        described,
        driver.csot.now(),
        partial(driver.connections.refused_logins, client),
        partial(second_look.known_finding, client),
    )
    if can_write and can_read:
        return Look(True, True, "")
    impossible = "writes" if can_read else "reads" if can_write else "writes and reads"
    wanted = {*(() if can_write else writes), *(() if can_read else reads)}
    why, began = _why(client, preference, wanted, silent, breakers, can_write=can_write)
    return Look(
        can_write,
        can_read,
        f"no {impossible}: {why}",
        is_hopeless=cause is not None,
        began=began,
    )


def _eligible(client: Client, preference: ReadPreference, *, writes: bool) -> list[Address]:
    """Return the servers that an operation may use according to the rules of server selection."""
    verdicts = selection_explained.explain_selection(client, preference, {}, writes=writes)
    eligible = {each.address for each in verdicts if each.eligible}
    known = client.topology_description.server_descriptions()
    return [at for at in known if address_text(at) in eligible]


def _silent(client: Client, servers: Mapping[Address, ServerDescription]) -> dict[Address, float]:
    """Return the servers that have not answered a check in time, and when each last did.

    Such a server's process may be stopped.
    """
    topology = driver.clients.topology_of(client)
    if client.topology_description.topology_type_name == "LoadBalanced":
        # A load balancer is not monitored.
        return {}
    late = driver.csot.now() - driver.monitors.max_wait(topology) - LATE
    return {
        at: each.last_update_time
        for at, each in servers.items()
        if each.is_server_type_known and each.last_update_time < late
    }


def _is_open(breaker: Snapshot | None) -> bool:
    return breaker is not None and breaker.next_probe_in > 0


def _why(
    client: Client,
    preference: ReadPreference,
    wanted: set[Address],
    silent: Mapping[Address, float],
    breakers: Mapping[Address, Snapshot],
    *,
    can_write: bool,
) -> tuple[str, float | None]:
    """Return what is wrong, and when it began if that is known."""
    if late := {at: silent[at] for at in wanted if at in silent}:
        names = ", ".join(sorted(map(address_text, late)))
        last = max(late.values())
        seconds = driver.csot.now() - last
        return f"{names} has not answered a check for {seconds:.1f} s", last
    if held := sorted(address_text(at) for at in wanted if _is_open(breakers.get(at))):
        return f"the circuit breaker of {', '.join(held)} is open", None
    described = client.topology_description
    if described.topology_type_name == "Single" and described.known_servers:
        return "the client is connected directly to a server that is not the primary", None
    selector = preference if can_write else driver.selection.WRITABLE
    found = selection_explained.diagnosis(client, selector, looks=False)
    if found is None:
        return "no server has answered yet", None
    return found.symptom.says + (f" ({', '.join(found.servers)})" if found.servers else ""), None


class TopologyChange(Interceptor):
    """Records how a server's new description changes the readiness of clients.

    Only for clients that ``readiness`` was called with.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        return Entered(args[0]) if histories else None

    def succeeded(self, entered: Entered, result: T) -> T:
        for client in driver.clients.existing_clients():
            history = histories.known(client)
            if history is not None and history.topology is entered.instance:
                history.look_again(client, self._runtime)
        return result


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of topologies to wrap, and their interceptors."""
    for owner in driver.clients.classes("topology", "Topology"):
        yield owner, driver.monitors.CHANGE, TopologyChange(runtime)
