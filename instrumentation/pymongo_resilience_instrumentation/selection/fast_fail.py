"""Ends a selection that waits while every server has a terminal cause.

For the strategy ``fast_fail`` only, before each of the driver's waits for a server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pymongo.errors import OperationFailure

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.rules.explanations import Symptom
from pymongo_resilience.rules.strategy import FastFail
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import Address
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.failures import causes
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)

CHECKS = 2
"""Checks in a row that must find a terminal cause; for a password, refused logins."""
UNCHANGED_S = 0.5
"""Seconds after which a set name counts as checked twice: streamed hellos return on changes
alone."""
PROBE_EVERY = 1.0
"""Seconds between two tries of a password that was refused."""
NO_PRIMARY = "ReplicaSetNoPrimary"
PRIMARY, SECONDARY, ARBITER = "RSPrimary", "RSSecondary", "RSArbiter"


class Found(NamedTuple):
    """A server as a selection found it. Immutable."""

    description: Any
    cause: Symptom | None
    times: int
    """For how many checks in a row."""
    since: float
    """When the last of them was seen first, in seconds."""

    def is_terminal(self, now: float) -> bool:
        if self.cause is Symptom.SET_NAME and now - self.since >= UNCHANGED_S:
            return True
        return self.cause is not None and self.times >= CHECKS


@dataclass(slots=True, repr=False, kw_only=True)
class TerminalDetector:
    """What one selection found about the servers while it waits. Not thread-safe."""

    applies: bool
    """The operation's strategy gives up on terminal errors."""
    found: dict[Address, Found] = field(default_factory=dict)
    """The servers of which nothing is known but their last error."""
    probing: Exception | None = None
    """The refusal that this selection is to try anew."""

    def look(self, topology: Any, now: float, refusals: Callable[[Address], int]) -> Symptom | None:
        """The terminal cause that all servers that could serve have in common; else None. ``now``:
        in seconds; ``refusals``: how many logins in a row a server has refused."""
        servers = topology.server_descriptions()
        before, self.found = self.found, {}
        for address, description in servers.items():
            if not description.is_server_type_known:
                seen = before.get(address)
                self.found[address] = _look_at(description, seen, now, refusals)
        if not servers and topology.topology_type_name == NO_PRIMARY:
            # pymongo has dropped every server for being none of the set, and checks none any more.
            return Symptom.SET_NAME
        if not all(each.is_terminal(now) for each in self.found.values()):
            return None
        common = {each.cause for each in self.found.values()}
        electing = topology.topology_type_name == NO_PRIMARY
        reached = [each for each in servers.values() if each.is_server_type_known]
        if len(common) != 1 or any(self._may_serve(each, electing) for each in reached):
            return None
        return common.pop()

    def _may_serve(self, description: Any, electing: bool) -> bool:
        """A server that is reached, and does not serve, may recover, catch up or be elected, unless
        the primary that it names has an error."""
        kind = description.server_type_name
        if electing and kind in (SECONDARY, ARBITER):
            return description.primary not in self.found
        return kind not in (PRIMARY, ARBITER)


def _look_at(
    description: Any, before: Found | None, now: float, refusals: Callable[[Address], int]
) -> Found:
    cause = causes.cause_of(description.error)
    if cause is Symptom.PASSWORD:
        return Found(description, cause, refusals(description.address), now)
    if before is not None and before.description is description:
        return before
    times = 1 if before is None or before.cause is not cause else before.times + 1
    return Found(description, cause, times, now)


class RefusedLogins(Interceptor):
    """How many logins in a row each pool saw refused: around where it makes a connection.
    Thread-safe: of two concurrent refusals at least one counts."""

    def __init__(self) -> None:
        self._refused: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def refusals(self, client: object, address: Address) -> int:
        pool = driver.connections.pool_of(client, address)
        return 0 if pool is None else self._refused.get(pool, 0)

    def succeeded(self, entered: Entered, result: object) -> Any:
        if self._refused:
            self._refused.pop(entered.instance, None)
        return result

    def failed(self, entered: Entered | None, error: BaseException, *_: Any) -> BaseException:
        if entered is None or not isinstance(error, OperationFailure):
            return error
        if causes.cause_of(error) is Symptom.PASSWORD:
            self._refused[entered.instance] = self._refused.get(entered.instance, 0) + 1
        return error


class PasswordProbe:
    """One operation per second tries a refused password again; the others fail with the refusal.
    Called with the topology's lock held. An entry lives as long as its refusal."""

    def __init__(self) -> None:
        self._begun: WeakKeyDictionary[Exception, float] = WeakKeyDictionary()

    def take(self, refusal: Exception, refused_at: float, now: float) -> bool:
        """Whether the caller is the one to try; ``refused_at``: in seconds."""
        if now < self._begun.get(refusal, refused_at) + PROBE_EVERY:
            return False
        self._begun[refusal] = now
        return True

    def under_way(self, refusal: Exception, now: float) -> bool:
        """Whether a try that was begun may still come to its end."""
        begun = self._begun.get(refusal)
        return begun is not None and now < begun + PROBE_EVERY


def wrapped(enabled_flag: EnabledFlag, rules: NamespaceRules) -> Iterator[Row]:
    """A module or class, the name of its function or method, and what runs in its place."""
    logins = RefusedLogins()
    for half in (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF):
        yield half.module("topology"), half.wait, wait(enabled_flag, rules, logins)
        yield half.module("pool").Pool, driver.waits.HANDSHAKE, logins


def wait(enabled_flag: EnabledFlag, rules: NamespaceRules, logins: RefusedLogins) -> Wrapper:
    """Before a wait for a server. The async one is called here and awaited by the caller."""
    password_probe = PasswordProbe()

    def wrapper(original: Function, _module: Any, args: Any, kwargs: Any) -> Any:
        error = None
        call = calls.current() if enabled_flag.on else None
        if call is not None:
            with shielded("while a server was waited for"):
                condition = args[0] if args else kwargs["condition"]
                error = _verdict(call, condition, rules, logins, password_probe)
        if error is not None:
            raise error
        return original(*args, **kwargs)

    return wrapper


def _verdict(
    call: Call,
    condition: object,
    rules: NamespaceRules,
    logins: RefusedLogins,
    password_probe: PasswordProbe,
) -> Exception | None:
    """The error to fail with at once; None to wait."""
    client = call.client
    if not driver.waits.waits_for_server(client, condition):
        return None
    terminal_detector = call.terminal_detector
    if terminal_detector is None:
        strategy = call.policy(rules).strategy or rules.strategy
        applies = isinstance(strategy, FastFail)
        terminal_detector = call.terminal_detector = TerminalDetector(applies=applies)
    if not terminal_detector.applies:
        return None
    topology = client.topology_description
    now = driver.csot.now()
    cause = terminal_detector.look(topology, now, lambda at: logins.refusals(client, at))
    if cause is None:
        for address, found in terminal_detector.found.items():
            # Of one connection, perhaps: the next login shows whether the password is wrong, and it
            # cannot be tried before the server was checked.
            if found.cause is Symptom.PASSWORD:
                refusal = found.description.error
                if password_probe.take(refusal, -math.inf, now):
                    driver.waits.cancel_checks(client, [address])
        return None
    if cause is Symptom.PASSWORD:
        return _refusal(client, terminal_detector, password_probe, now)
    seeds = driver.waits.seeds(driver.monitors.topology_of(client))
    found = found_on(topology) or dict.fromkeys(seeds)
    return causes.selection_error(cause, found, topology.replica_set_name)


def found_on(topology: Any) -> dict[Address, Exception | str | None]:
    """What each server was found with; of one that is reached, what it is."""
    return {
        address: description.server_type_name.removeprefix("RS").lower()
        if description.is_server_type_known
        else description.error
        for address, description in topology.server_descriptions().items()
    }


def _refusal(
    client: object, terminal_detector: TerminalDetector, password_probe: PasswordProbe, now: float
) -> Exception | None:
    """The newest refusal once more; None for who is to try the password anew, and waits."""
    newest = max(
        (each.description for each in terminal_detector.found.values()),
        key=lambda description: description.last_update_time,
    )
    refusal: OperationFailure = newest.error
    if terminal_detector.probing is refusal and password_probe.under_way(refusal, now):
        return None
    if terminal_detector.probing is not refusal and password_probe.take(
        refusal, newest.last_update_time, now
    ):
        terminal_detector.probing = refusal
        # A streamed hello comes back after heartbeatFrequencyMS: no login could be tried before.
        driver.waits.cancel_checks(client, terminal_detector.found)
        return None
    return causes.refused_again(refusal, newest.address, now - newest.last_update_time)
