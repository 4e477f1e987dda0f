"""Explains why servers can or cannot be selected, and what a failed selection was waiting for.

pymongo's own selectors decide, so an explanation cannot differ from pymongo's decision.
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
"""Topology types for which pymongo calls no selector."""
REPLICA_SETS = frozenset({"ReplicaSetWithPrimary", "ReplicaSetNoPrimary"})
UNREACHABLE = "No server can be reached"
TOPOLOGY = ", Topology Description: "
"""Text that pymongo puts between its message and a description of all servers."""
TIMEOUT = ", Timeout: "
"""Text that pymongo puts between its message and the timeout."""
OWN_WORDS = ("No ", "Could not reach any servers")
"""Beginnings of pymongo's own messages. Otherwise, the message consists of the servers' errors."""
HANDSHAKE = "SSL handshake failed"
"""Beginning of pymongo's message for an error in a TLS handshake."""
MAX_ERROR_LENGTH = 200
"""Maximum length of one server's error, in characters."""
AFTER = re.compile(r" \(configured timeouts: .*| \([^()]*\b\d+ attempts?(?:; .*)?\)$", re.DOTALL)
"""Text that follows the cause in an error: pymongo's timeouts, or the origin that the library
adds.
"""
NUMBER = re.compile(r"^\[Errno (-?\d+)\] ")
"""Beginning of errors of the operating system. Errors of name resolution have negative numbers."""
Why = Callable[[Any], str]
"""A function that describes why a rule excludes a server."""


def explain_selection(
    client: Client,
    read_preference: ReadPreference | None,
    breakers: Mapping[Address, Snapshot],
    *,
    writes: bool,
) -> tuple[ServerVerdict, ...]:
    """Implementation of ``pymongo_resilience.explain_selection``.

    Args:
        client: The client.
        read_preference: A read preference, or None for the client's.
        breakers: The client's circuit breakers by address.
        writes: Whether to explain the selection for a write.
    """
    description = client.topology_description
    description.check_compatible()
    preference = client.read_preference if read_preference is None else read_preference
    # Every read preference of pymongo has this attribute, including subclasses of the application.
    if not hasattr(preference, "mongos_mode"):
        raise TypeError(
            f"explain_selection(): an object of type {type(preference).__name__} is not a read "
            "preference. Use one from pymongo.read_preferences"
        )
    waits = {
        at: snapshot.next_probe_in
        for at, snapshot in breakers.items()
        if snapshot.next_probe_in > 0
    }
    return _verdicts(
        description,
        driver.clients.topology_of(client),
        writable_server_selector if writes else preference,
        own=driver.selection.application_selector(client),
        breakers=waits,
        threshold=client.options.local_threshold_ms / 1000,
    )


def explain(error: Exception, attempts: DriverAttempts) -> None:
    """Replace pymongo's list of servers in an error by the reason why each was not selected.

    The likely cause follows as the last sentence. pymongo's own log message is not changed.
    """
    if not (error.args and isinstance(error.args[0], str)):
        return
    client, selector = driver.selection.selecting(attempts)
    topology = driver.clients.topology_of(client)
    message, comma, timeout = error.args[0].partition(TOPOLOGY)[0].rpartition(TIMEOUT)
    # The message lists the servers' errors, which the explanation contains as well.
    if not message.startswith(OWN_WORDS):
        message = UNREACHABLE
    application_selector = driver.selection.application_selector(client)
    # Do not call the application's selector again. The servers that passed the other rules are
    # those it has refused.
    refuses = None if application_selector is None else lambda _servers: ()
    verdicts = _verdicts(topology.description, topology, selector, own=refuses)
    why = "; ".join(map(str, verdicts)) or "the client knows no server"
    likely_cause = diagnosis(client, selector)
    # The rest of a deadline has many digits, and may be negative.
    with suppress(ValueError):
        timeout = f"{max(0.0, float(timeout.removesuffix('s'))):.3g}s"
    text = f"{message} ({why}){comma}{timeout}"
    error.args = (text if likely_cause is None else f"{text}. {likely_cause}", *error.args[1:])


def diagnosis(client: Client, selector: Selector | None, *, looks: bool = True) -> Diagnosis | None:
    """Return the likely cause of a failed selection, or None if it is unknown.

    With ``looks``, the library may open a second connection in the background to a server that
    closes connections.
    """
    topology = driver.clients.topology_of(client)
    description = topology.description
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
            for each in servers_of(description)
        ],
        seeds=[address_text(each) for each in driver.selection.seeds(topology)],
        replica_set=description.topology_type_name.startswith("ReplicaSet"),
        wants_primary=getattr(selector, "mode", driver.selection.PRIMARY)
        == driver.selection.PRIMARY,
    )


def servers_of(description: TopologyDescription) -> list[ServerDescription]:
    """Return the servers ordered by address, as pymongo lists them."""
    return sorted(description.server_descriptions().values(), key=lambda server: server.address)


def _verdicts(
    described: TopologyDescription,
    topology: Topology,
    selector: Selector | None,
    *,
    own: ServerFilter | None,
    breakers: Mapping[Address, float] | None = None,
    threshold: float = math.inf,
) -> tuple[ServerVerdict, ...]:
    """Apply the rules of server selection and return a verdict for each server.

    Args:
        described: The topology's description.
        topology: The topology.
        selector: The read preference, or pymongo's selector for writes.
        own: The application's selector.
        breakers: Seconds until the next probe, for each open circuit breaker.
        threshold: Length of the latency window in seconds.
    """
    servers = servers_of(described)
    excluded: dict[Address, tuple[SelectionRule, Why]] = {}
    steps = _steps(
        described, topology, selector, own=own, breakers=breakers or {}, threshold=threshold
    )
    for rule, remaining, why in steps:
        remaining_addresses = {each.address for each in remaining}
        for at in (each.address for each in servers):
            if at in remaining_addresses:
                # A later step may bring a server back, such as the primary if no secondary matches.
                excluded.pop(at, None)
            else:
                excluded.setdefault(at, (rule, why))
    return tuple(_verdict(each, *excluded.get(each.address, (None, None))) for each in servers)


def _verdict(
    server: ServerDescription, rule: SelectionRule | None, why: Why | None
) -> ServerVerdict:
    address = address_text(server.address)
    # Split the type into words: "PossiblePrimary" becomes "possible primary".
    words = re.findall("[A-Z][a-z]+", server.server_type_name.removeprefix("RS"))
    text = f"{address} {' '.join(words).lower()}"
    if why is None:
        return ServerVerdict(address, None, f"{text}, eligible")
    separator = ": " if rule is SelectionRule.AVAILABILITY else ", excluded: "
    return ServerVerdict(address, rule, f"{text}{separator}{why(server)}")


def _steps(
    described: TopologyDescription,
    topology: Topology,
    selector: Selector | None,
    *,
    own: ServerFilter | None,
    breakers: Mapping[Address, float],
    threshold: float,
) -> Iterator[tuple[SelectionRule, Servers, Why]]:
    """Yield each rule of Server Selection with the servers that remain after it.

    A later step may bring a server back.
    """
    # pymongo's types say that a reachable server may lack its times, but it never does.
    remaining: Sequence[Any] = described.known_servers
    topology_type = described.topology_type_name
    yield SelectionRule.AVAILABILITY, remaining, lambda server: _error(server, topology)
    if topology_type in ALONE:
        return
    if driver.selection.is_no_selector(selector):
        remaining = []
        yield SelectionRule.BOUND, remaining, lambda _: "the operation is bound to another server"
    elif topology_type not in REPLICA_SETS:
        remaining = remaining if topology_type == "Sharded" else []
        yield SelectionRule.MODE, remaining, lambda _: f"the deployment is {topology_type}"
    else:
        for rule, selector_of_rule, why_excluded in _by_preference(described, selector):
            remaining = selector_of_rule(
                driver.selection.all_servers(described)
            ).server_descriptions
            yield rule, remaining, why_excluded
    if own is not None and remaining:
        accepted = {server.address for server in own(list(remaining))}
        remaining = [server for server in remaining if server.address in accepted]
        why = "removed by the application's server selector"
        yield SelectionRule.APPLICATION, remaining, lambda _: why
    # If every breaker is open, breakers exclude no server.
    remaining = [server for server in remaining if server.address not in breakers] or remaining
    yield (
        SelectionRule.CIRCUIT_BREAKER,
        remaining,
        lambda server: f"circuit breaker open, next probe in {_tenths(breakers[server.address])} s",
    )
    if remaining:
        window_end = min(server.round_trip_time for server in remaining) + threshold
        yield (
            SelectionRule.LATENCY,
            [server for server in remaining if server.round_trip_time <= window_end],
            lambda server: (
                f"round-trip time {_tenths(server.round_trip_time * 1000)} ms, "
                f"the latency window ends at {_tenths(window_end * 1000)} ms"
            ),
        )


def _by_preference(
    described: TopologyDescription, selector: Any
) -> Iterator[tuple[SelectionRule, Any, Why]]:
    """Yield the rules of a replica set, each with a pymongo selector that also applies the rules
    before.
    """
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
            lambda server: (
                f"stale by {_tenths(_staleness(server, described))} s, allowed {limit} s"
            ),
        )
    wanted = ", else ".join(map(_tag_set, selector.tag_sets))
    yield (
        SelectionRule.TAGS,
        selector,
        lambda server: f"tags {_tag_set(server.tags)}, wanted {wanted}",
    )


def _staleness(server: Any, described: TopologyDescription) -> float:
    """Return the staleness of a secondary in seconds, as an upper bound. Source: Max Staleness,
    "Client".
    """
    # A reachable secondary has a last write date, and so has its primary.
    selection: Any = driver.selection.all_servers(described)
    behind: float = described.heartbeat_frequency - server.last_write_date
    if selection.primary is None:
        newest: float = selection.secondary_with_max_last_write_date().last_write_date
        return behind + newest
    primary_lead: float = selection.primary.last_update_time - selection.primary.last_write_date
    return behind + float(server.last_update_time) - primary_lead


def _tag_set(tags: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in tags.items()) + "}"


def _tenths(value: float) -> str:
    """Round up to tenths, so that a value slightly over a limit is not displayed as equal to it."""
    return f"{math.ceil(round(value, 3) * 10) / 10:.1f}".removesuffix(".0")


def _error(server: ServerDescription, topology: Topology) -> str:
    """Return what the last check of an unavailable server found."""
    age = max(0.0, driver.csot.now() - server.last_update_time)
    if server.error is not None:
        return f"{error_text(server.error, server.address)} {age:.1f} s ago"
    if driver.clients.server_at(topology, server.address) is None:
        return "not checked yet"
    # The description was created when the client learned about the server, so its age is the time
    # without an answer.
    return f"no answer to any check so far, for {age:.1f} s (firewall, address, TLS?)"


def _symptom(server: ServerDescription, client: Client, *, looks: bool) -> Symptom | None:
    """Return what is wrong with a server, or None if it is reachable."""
    topology = driver.clients.topology_of(client)
    if server.is_server_type_known:
        return None
    if server.error is None:
        has_begun = driver.clients.server_at(topology, server.address) is not None
        return Symptom.NO_ANSWER if has_begun else None
    if is_rejection(server.error):
        return Symptom.OVERLOADED
    text = error_text(server.error, server.address)
    symptom = cause_of(server.error) or symptom_at(
        text,
        server.address,
        tls=driver.clients.uses_tls(client),
        handshake=text.startswith(HANDSHAKE),
    )
    if symptom not in (Symptom.HANGS_UP, Symptom.CLOSES_AFTER_TLS):
        return symptom
    # Both symptoms may have another cause, which a second connection can find.
    finding = second_look.finding if looks else second_look.known_finding
    return finding(client, server.address) or symptom


def error_text(error: Exception, address: Address) -> str:
    """Return this machine's own text about a failed connection.

    If a server wrote the error, return only class and code, because a server's text quotes values.
    """
    text = local_text(error)
    if text is None:
        return safe_message(error)
    # Remove what pymongo or the library has appended, such as timeouts and attempts.
    text = AFTER.sub("", text.removeprefix(f"{address_text(address)}: "))
    number = NUMBER.match(text)
    if number is not None:
        # asyncio uses its own words and repeats the address. Use the operating system's text
        # instead.
        known = int(number[1]) in errno.errorcode
        text = os.strerror(int(number[1])) if known else text[number.end() :]
    return " ".join(text.split())[:MAX_ERROR_LENGTH] or safe_message(error)


def original_error(client: Client) -> Exception | None:
    """Return the error of a client's only failed server, or a group of the errors of several
    servers.

    pymongo quotes these errors in its text but does not attach them. Call this only for the error
    that the application gets, because any other error may be in the context of these.
    """
    server_errors = [
        server.error for server in servers_of(client.topology_description) if server.error
    ]
    if len(server_errors) > 1:
        return ExceptionGroup("the last error of each server", server_errors)
    return server_errors[0] if server_errors else None
