"""Why a server is, or is not, one that an operation may go to; and what a failed selection was
waiting for. pymongo's own selectors decide.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymongo.read_preferences import make_read_preference
from pymongo.server_selectors import writable_server_selector

from pymongo_resilience.breakers import Snapshot
from pymongo_resilience.client_status import SelectionRule, ServerVerdict
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.causes import (
    Diagnosis,
    ObservedServer,
    cause_of,
    diagnose,
    is_rejection,
    symptom_at,
)
from pymongo_resilience_instrumentation.failures.error_texts import local_text, safe_message
from pymongo_resilience_instrumentation.failures.symptoms import Symptom

from . import second_look

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import (
        Client,
        ReadPreference,
        Selector,
        ServerFilter,
        Servers,
        Topology,
    )

ALONE = frozenset({"Single", "LoadBalanced"})
"""Topologies for which the driver calls no selector."""
REPLICA_SETS = frozenset({"ReplicaSetWithPrimary", "ReplicaSetNoPrimary"})
UNREACHABLE = "No server can be reached"
TOPOLOGY = ", Topology Description: "
"""What pymongo puts between the text of a failed selection and all servers once more."""
TIMEOUT = ", Timeout: "
"""What it puts before that."""
OWN_WORDS = ("No ", "Could not reach any servers")
"""How pymongo's own sentences begin; else the text is the errors of servers."""
HANDSHAKE = "SSL handshake failed"
"""How its text for an error in a TLS handshake begins."""
MAX_ERROR_LENGTH = 200
"""Characters of one server's error."""
AFTER = re.compile(r" \(configured timeouts: .*| \([^()]*\b\d+ attempts?(?:; .*)?\)$", re.DOTALL)
"""What stands behind the cause in an error of the driver's: the timeouts, its origin."""
NUMBER = re.compile(r"^\[Errno (-?\d+)\] ")
"""The operating system's errors begin so; those of name resolution are negative."""
Why = Callable[[Any], str]
"""Describes a server that a rule leaves out."""


def explain_selection(
    client: Client,
    read_preference: ReadPreference | None,
    breakers: Mapping[Address, Snapshot],
    *,
    writes: bool,
) -> tuple[ServerVerdict, ...]:
    """Implements :func:`pymongo_resilience.explain_selection`; ``breakers``: those in use, by
    server."""
    described = client.topology_description
    described.check_compatible()
    preference = client.read_preference if read_preference is None else read_preference
    if not hasattr(preference, "mongos_mode"):
        raise TypeError(f"an object of type {type(preference).__name__} is no read preference")
    waits = {at: each.next_probe_in for at, each in breakers.items() if each.next_probe_in > 0}
    return _verdicts(
        described,
        driver.clients.topology_of(client),
        writable_server_selector if writes else preference,
        own=driver.selection.application_selector(client),
        breakers=waits,
        threshold=client.options.local_threshold_ms / 1000,
    )


def explain(error: Exception, attempts: DriverAttempts) -> None:
    """Say of each server why an attempt did not select it, in place of the driver's description of
    them all, and the likely cause as the last sentence. The driver's log keeps its own text."""
    if not (error.args and isinstance(error.args[0], str)):
        return
    client, selector = driver.selection.selecting(attempts)
    topology = driver.clients.topology_of(client)
    words, comma, timeout = error.args[0].partition(TOPOLOGY)[0].rpartition(TIMEOUT)
    if not words.startswith(OWN_WORDS):
        words = UNREACHABLE
    own = driver.selection.application_selector(client)
    # It is not called once more. What the rules have left is what it has refused.
    refuses = None if own is None else lambda _servers: ()
    verdicts = _verdicts(topology.description, topology, selector, own=refuses)
    why = "; ".join(map(str, verdicts)) or "no server is known"
    cause = diagnosis(client, selector)
    with suppress(ValueError):  # what is left of a deadline has many digits, and may be negative
        timeout = f"{max(0.0, float(timeout.removesuffix('s'))):.3g}s"
    text = f"{words} ({why}){comma}{timeout}"
    error.args = (text if cause is None else f"{text}. {cause}", *error.args[1:])


def diagnosis(client: Client, selector: Selector | None, *, looks: bool = True) -> Diagnosis | None:
    """Return the likely cause of a failed selection; None if nothing is known. ``looks``: a server
    that hangs up may be looked at once more, in the background."""
    topology = driver.clients.topology_of(client)
    described = topology.description
    if driver.selection.is_no_selector(selector):
        return None
    return diagnose(
        [
            ObservedServer(
                address_text(each.address),
                _symptom(each, client, looks=looks),
                is_primary=each.server_type_name == "RSPrimary",
                is_member=each.is_server_type_known,
            )
            for each in servers_of(described)
        ],
        seeds=[address_text(each) for each in driver.selection.seeds(topology)],
        replica_set=described.topology_type_name.startswith("ReplicaSet"),
        wants_primary=getattr(selector, "mode", driver.selection.PRIMARY)
        == driver.selection.PRIMARY,
    )


def servers_of(described: TopologyDescription) -> list[ServerDescription]:
    """In the order of their addresses, as the driver shows them."""
    return sorted(described.server_descriptions().values(), key=lambda each: each.address)


def _verdicts(
    described: TopologyDescription,
    topology: Topology,
    selector: Selector | None,
    *,
    own: ServerFilter | None,
    breakers: Mapping[Address, float] | None = None,
    threshold: float = math.inf,
) -> tuple[ServerVerdict, ...]:
    """``own``: the application's selector; ``breakers``: those that are open, with the seconds to
    the next probe; ``threshold``: of the latency window, in seconds."""
    servers = servers_of(described)
    excluded: dict[Address, tuple[SelectionRule, Why]] = {}
    steps = _steps(
        described, topology, selector, own=own, breakers=breakers or {}, threshold=threshold
    )
    for rule, left, why in steps:
        kept = {each.address for each in left}
        for at in (each.address for each in servers):
            if at in kept:
                excluded.pop(at, None)  # the primary, where no secondary suits
            else:
                excluded.setdefault(at, (rule, why))
    return tuple(_verdict(each, *excluded.get(each.address, (None, None))) for each in servers)


def _verdict(
    server: ServerDescription, rule: SelectionRule | None, why: Why | None
) -> ServerVerdict:
    address = address_text(server.address)
    # "PossiblePrimary" is a possible primary, "RSPrimary" a primary.
    words = re.findall("[A-Z][a-z]+", server.server_type_name.removeprefix("RS"))
    text = f"{address} {' '.join(words).lower()}"
    if why is None:
        return ServerVerdict(address, None, f"{text}, eligible")
    then = ": " if rule is SelectionRule.AVAILABILITY else ", excluded: "
    return ServerVerdict(address, rule, f"{text}{then}{why(server)}")


def _steps(
    described: TopologyDescription,
    topology: Topology,
    selector: Selector | None,
    *,
    own: ServerFilter | None,
    breakers: Mapping[Address, float],
    threshold: float,
) -> Iterator[tuple[SelectionRule, Servers, Why]]:
    """What each rule of Server Selection leaves, in order. A later step may bring a server back."""
    # For pymongo's types, a server that was reached may still lack its times; it never does.
    left: Sequence[Any] = described.known_servers
    kind = described.topology_type_name
    yield SelectionRule.AVAILABILITY, left, lambda each: _error(each, topology)
    if kind in ALONE:
        return
    if driver.selection.is_no_selector(selector):
        left = []
        yield SelectionRule.BOUND, left, lambda _: "the operation is bound to another server"
    elif kind not in REPLICA_SETS:
        left = left if kind == "Sharded" else []
        yield SelectionRule.MODE, left, lambda _: f"the deployment is {kind}"
    else:
        for rule, narrower, says in _by_preference(described, selector):
            left = narrower(driver.selection.all_servers(described)).server_descriptions
            yield rule, left, says
    if own is not None and left:
        accepted = {each.address for each in own(list(left))}
        left = [each for each in left if each.address in accepted]
        why = "removed by the application's server selector"
        yield SelectionRule.APPLICATION, left, lambda _: why
    # Open breakers exclude no server where every breaker is open.
    left = [each for each in left if each.address not in breakers] or left
    yield (
        SelectionRule.CIRCUIT_BREAKER,
        left,
        lambda each: f"circuit breaker open, next probe in {_tenths(breakers[each.address])} s",
    )
    if left:
        end = min(each.round_trip_time for each in left) + threshold
        yield (
            SelectionRule.LATENCY,
            [each for each in left if each.round_trip_time <= end],
            lambda each: (
                f"round-trip time {_tenths(each.round_trip_time * 1000)} ms, "
                f"the latency window ends at {_tenths(end * 1000)} ms"
            ),
        )


def _by_preference(
    described: TopologyDescription, selector: Any
) -> Iterator[tuple[SelectionRule, Any, Why]]:
    """The rules of a replica set, each with a selector of pymongo's that applies the former too."""
    if selector is writable_server_selector:
        yield SelectionRule.MODE, selector, lambda _: "writes go to the primary"
        return
    mode, limit = selector.mode, selector.max_staleness
    yield (
        SelectionRule.MODE, make_read_preference(mode, None),
        lambda _: f"mode {selector.mongos_mode}",
    )  # fmt: skip
    if limit != driver.attempts.NO_LIMIT:
        yield (
            SelectionRule.STALENESS,
            make_read_preference(mode, None, limit),
            lambda each: f"stale by {_tenths(_staleness(each, described))} s, allowed {limit} s",
        )
    sets = ", else ".join(map(_tag_set, selector.tag_sets))
    yield SelectionRule.TAGS, selector, lambda each: f"tags {_tag_set(each.tags)}, wanted {sets}"


def _staleness(server: Any, described: TopologyDescription) -> float:
    """Seconds that a secondary is behind, at worst. Source: Max Staleness, "Client"."""
    # A secondary that was reached has a last write, and so has its primary.
    whole: Any = driver.selection.all_servers(described)
    behind: float = described.heartbeat_frequency - server.last_write_date
    if whole.primary is None:
        newest: float = whole.secondary_with_max_last_write_date().last_write_date
        return behind + newest
    lead: float = whole.primary.last_update_time - whole.primary.last_write_date
    return behind + float(server.last_update_time) - lead


def _tag_set(tags: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in tags.items()) + "}"


def _tenths(value: float) -> str:
    """Rounded up, so that what is a little over a limit does not read as equal to it."""
    return f"{math.ceil(round(value, 3) * 10) / 10:.1f}".removesuffix(".0")


def _error(server: ServerDescription, topology: Topology) -> str:
    """What an unavailable server's last check has found."""
    age = max(0.0, driver.csot.now() - server.last_update_time)
    if server.error is not None:
        return f"{error_text(server.error, server.address)} {age:.1f} s ago"
    if driver.clients.server_at(topology, server.address) is None:
        return "not checked yet"
    # The age of the description, which a client has from before its first operation.
    return f"no check answered since the client knows it, {age:.1f} s (firewall, address, TLS?)"


def _symptom(server: ServerDescription, client: Client, *, looks: bool) -> Symptom | None:
    """Return what is wrong with a server; None if it is reached."""
    topology = driver.clients.topology_of(client)
    if server.is_server_type_known:
        return None
    if server.error is None:
        has_begun = driver.clients.server_at(topology, server.address) is not None
        return Symptom.NO_ANSWER if has_begun else None
    if is_rejection(server.error):
        return Symptom.OVERLOADED
    text = error_text(server.error, server.address)
    found = cause_of(server.error) or symptom_at(
        text,
        server.address,
        tls=driver.clients.uses_tls(client),
        handshake=text.startswith(HANDSHAKE),
    )
    if found not in (Symptom.HANGS_UP, Symptom.CLOSES_AFTER_TLS):
        return found
    finding = second_look.finding if looks else second_look.known_finding
    return finding(client, server.address) or found


def error_text(error: Exception, address: Address) -> str:
    """Return what this machine reports about a connection that failed. For an error that a server
    wrote, return only the class and the code, since a server's text quotes values."""
    text = local_text(error)
    if text is None:
        return safe_message(error)
    text = AFTER.sub("", text.removeprefix(f"{address_text(address)}: "))
    number = NUMBER.match(text)
    if number is not None:
        # asyncio has words of its own, with the address in it once more.
        known = int(number[1]) in errno.errorcode
        text = os.strerror(int(number[1])) if known else text[number.end() :]
    return " ".join(text.split())[:MAX_ERROR_LENGTH] or safe_message(error)


def original_error(client: Client) -> Exception | None:
    """Return the error of a client's only failed server, or a group of several servers' errors.

    pymongo quotes them in its text and keeps the exceptions to itself. Must be called only for the
    error that the application gets: any other one may be in the context of these.
    """
    found = [each.error for each in servers_of(client.topology_description) if each.error]
    if len(found) > 1:
        return ExceptionGroup("the last error of each server", found)
    return found[0] if found else None
