"""Gives a selection up that has to wait for servers of which every one is hopeless.

For the strategy ``fast_fail`` alone. Asked before each of the driver's waits for a server, so an
operation that finds one pays nothing. Each selection looks for itself, and nothing is remembered
but which refused password is being tried again: what recovers is found recovered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from pymongo_resilience.faults import logger
from pymongo_resilience.strategy import FastFailOnTerminalError
from pymongo_resilience_instrumentation import calls, driver, hopeless
from pymongo_resilience_instrumentation.attempts import said_of
from pymongo_resilience_instrumentation.hopeless import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo.errors import OperationFailure

    from pymongo_resilience.namespaces import NamespaceRules
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper

CHECKS = 2
"""In a row, that must find a server hopeless. A password is refused for good the first time."""
STANDS = 0.5
"""Seconds. A hello that is streamed says at once what changes, and nothing for as long as nothing
does: what a server says of its set and does not take back in this time counts as checked twice."""
PROBE_EVERY = 1.0
"""Seconds between two tries of a password that was refused."""
NO_PRIMARY = "ReplicaSetNoPrimary"
PRIMARY, SECONDARY, ARBITER = "RSPrimary", "RSSecondary", "RSArbiter"


class Found(NamedTuple):
    """A server as a selection found it. Immutable."""

    description: Any
    cause: Cause | None
    times: int
    """For how many checks in a row."""
    since: float
    """When the last of them was seen first, in seconds."""

    def is_hopeless(self, now: float) -> bool:
        if self.cause is Cause.PASSWORD:
            return True
        if self.cause is Cause.SET_NAME and now - self.since >= STANDS:
            return True
        return self.cause is not None and self.times >= CHECKS


class Patience:
    """What one selection has seen of the servers while it waits. One thread or task."""

    __slots__ = ("applies", "found", "probing")

    def __init__(self, *, applies: bool) -> None:
        self.applies = applies
        """The operation's strategy gives up on hopeless errors."""
        self.found: dict[Address, Found] = {}
        """The servers of which nothing is known but their last error."""
        self.probing: Exception | None = None
        """The refusal that this selection is to try anew."""

    def look(self, topology: Any, now: float) -> Cause | None:
        """The one cause for which every server that could serve is hopeless; else None.

        ``now``: in seconds.
        """
        servers = topology.server_descriptions()
        self.found = {
            address: self._look_at(address, description, now)
            for address, description in servers.items()
            if not description.is_server_type_known
        }
        if not servers and topology.topology_type_name == NO_PRIMARY:
            # pymongo has dropped every server for being none of the set, and checks none any more.
            return Cause.SET_NAME
        if not all(each.is_hopeless(now) for each in self.found.values()):
            return None
        causes = {each.cause for each in self.found.values()}
        if len(causes) != 1 or self._may_be_served_by_another(topology):
            return None
        return causes.pop()

    def _look_at(self, address: Address, description: Any, now: float) -> Found:
        before = self.found.get(address)
        if before is not None and before.description is description:
            return before
        cause = hopeless.cause_of(description.error)
        times = 1 if before is None or before.cause is not cause else before.times + 1
        return Found(description, cause, times, now)

    def _may_be_served_by_another(self, topology: Any) -> bool:
        """Whether a server that is reached, and does not serve, may do so later."""
        electing = topology.topology_type_name == NO_PRIMARY
        return any(
            description.is_server_type_known and self._may_serve(description, electing)
            for description in topology.server_descriptions().values()
        )

    def _may_serve(self, description: Any, electing: bool) -> bool:
        """It may recover or catch up; be elected, unless it says that a hopeless one is primary."""
        kind = description.server_type_name
        if electing and kind in (SECONDARY, ARBITER):
            return description.primary not in self.found
        return kind not in (PRIMARY, ARBITER)


class Probes:
    """One operation a second tries a refused password again; all others fail with the refusal.

    Each client's are taken with the lock of its topology held, by its thread or task. An entry
    lives as long as the refusal, which the server's description holds.
    """

    def __init__(self) -> None:
        self._begun: WeakKeyDictionary[Exception, float] = WeakKeyDictionary()

    def take(self, refusal: Exception, said: float, now: float) -> bool:
        """Whether the caller is the one to try; ``said``: when it was refused, in seconds."""
        if now < self._begun.get(refusal, said) + PROBE_EVERY:
            return False
        self._begun[refusal] = now
        return True

    def under_way(self, refusal: Exception, now: float) -> bool:
        """Whether a try that was begun may still come to its end."""
        begun = self._begun.get(refusal)
        return begun is not None and now < begun + PROBE_EVERY


def wrapped(runtime: Runtime) -> Iterator[tuple[Any, str, Wrapper]]:
    """A module, the name of its function that waits, and what runs in its place."""
    for half in (driver.SYNC_HALF, driver.ASYNC_HALF):
        yield half.module("topology"), half.wait, wait(runtime)


def wait(runtime: Runtime) -> Wrapper:
    """Before a wait for a server. The async one is called here and awaited by the caller."""
    probes = Probes()

    def wrapper(
        wrapped: Callable[..., Any], _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        error = None
        call = calls.current() if runtime.switch.on and args else None
        if call is not None:
            try:
                error = _verdict(call, args[0], runtime.rules, probes)
            except Exception:
                logger.exception("a fault of pymongo-resilience while a server was waited for")
        if error is not None:
            raise error
        return wrapped(*args, **kwargs)

    return wrapper


def _verdict(call: Call, condition: Any, rules: NamespaceRules, probes: Probes) -> Exception | None:
    """The error to fail with at once; None to wait."""
    client = call.client
    if not driver.waits_for_server(client, condition):
        return None
    patience = call.patience
    if patience is None:
        strategy = said_of(call, rules).strategy or rules.strategy
        applies = isinstance(strategy, FastFailOnTerminalError)
        patience = call.patience = Patience(applies=applies)
    if not patience.applies:
        return None
    topology = client.topology_description
    now = driver.now()
    cause = patience.look(topology, now)
    if cause is None:
        return None
    error = (
        _refusal(client, patience, probes, now)
        if cause is Cause.PASSWORD
        else hopeless.selection_error(
            cause,
            found_on(topology) or dict.fromkeys(driver.seeds(client)),
            topology.replica_set_name,
        )
    )
    if error is not None:
        driver.log_failed_selection(str(error))
    return error


def found_on(topology: Any) -> dict[Address, Exception | str | None]:
    """What each server was found with; of one that is reached, what it is."""
    return {
        address: description.server_type_name.removeprefix("RS").lower()
        if description.is_server_type_known
        else description.error
        for address, description in topology.server_descriptions().items()
    }


def _refusal(client: Any, patience: Patience, probes: Probes, now: float) -> Exception | None:
    """The newest refusal once more; None for who is to try the password anew, and waits."""
    newest = max(
        (each.description for each in patience.found.values()),
        key=lambda description: description.last_update_time,
    )
    refusal: OperationFailure = newest.error
    if patience.probing is refusal and probes.under_way(refusal, now):
        return None
    if patience.probing is not refusal and probes.take(refusal, newest.last_update_time, now):
        patience.probing = refusal
        # A streamed hello comes back after heartbeatFrequencyMS: until then nobody could try.
        driver.cancel_checks(client, patience.found)
        return None
    return hopeless.refused_again(refusal, newest.address, now - newest.last_update_time)
