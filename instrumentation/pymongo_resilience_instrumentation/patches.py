"""Puts wrappers around pymongo's methods, and takes them off again."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.cursor import Cursor
from pymongo.synchronous.database import Database

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.policies.first_use import ATOMIC_WRITES, HEDGED_READS, POLICIES
from pymongo_resilience_instrumentation.cleanup import background, cleanup_commands
from pymongo_resilience_instrumentation.clients import closings
from pymongo_resilience_instrumentation.cursors import batches, cursor_creation
from pymongo_resilience_instrumentation.features import single_documents
from pymongo_resilience_instrumentation.features.atomic_writes.send_on_first_use import (
    AtomicMethods,
)
from pymongo_resilience_instrumentation.features.gridfs import import_hook
from pymongo_resilience_instrumentation.features.hedged_reads import on_first_use
from pymongo_resilience_instrumentation.features.resumable_finds import scan
from pymongo_resilience_instrumentation.interception.interceptor import (
    Interceptor,
    Owner,
    Replacement,
    Wrapped,
)
from pymongo_resilience_instrumentation.interception.method_in_context import Within
from pymongo_resilience_instrumentation.interception.methods import Need, is_async
from pymongo_resilience_instrumentation.operations import public_operations
from pymongo_resilience_instrumentation.public_api import client_constructor, public_methods
from pymongo_resilience_instrumentation.recovery import (
    lost_connections,
    lost_primaries,
    woken_monitors,
)
from pymongo_resilience_instrumentation.retries import deprioritized, loop_subclass, stopped_bulks
from pymongo_resilience_instrumentation.selection import fast_fail, selection_errors
from pymongo_resilience_instrumentation.self_check import Feature
from pymongo_resilience_instrumentation.telemetry import interrupted_commands, transaction_spans
from pymongo_resilience_instrumentation.timeouts import (
    attempt_timeouts,
    bounded_waits,
    kept_cancellations,
    max_time_ms,
)
from pymongo_resilience_instrumentation.transactions import call_sessions, session_methods

from . import driver

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection as Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from pymongo_resilience_instrumentation.operations.public_operations import PublicOperation
    from pymongo_resilience_instrumentation.runtime import Runtime


PUBLIC: tuple[tuple[type, Mapping[str, PublicOperation]], ...] = (
    (Collection, public_operations.COLLECTION),
    (AsyncCollection, public_operations.COLLECTION),
    (Database, public_operations.DATABASE),
    (AsyncDatabase, public_operations.DATABASE),
    (MongoClient, public_operations.CLIENT),
    (AsyncMongoClient, public_operations.CLIENT),
)
CLIENTS: tuple[type, ...] = (MongoClient, AsyncMongoClient)


class Patch(NamedTuple):
    """One attribute of one class or module: what was there, and what we put there."""

    owner: Owner
    name: str
    original: Any
    wrapper: Any
    around: Replacement
    """What ``wrapper`` was made of."""


class Patches:
    """Applied and removed by one thread at a time. In between any thread may add what it has
    imported, or what was not needed until then."""

    def __init__(self) -> None:
        self.applied: list[Patch] = []
        self._late: dict[Need, Sequence[Patch]] = {}
        self._removed = False

    def apply(self, runtime: Runtime, *, without: Container[Feature]) -> None:
        """All patches but those whose feature the installed pymongo cannot have."""
        self._flag = runtime.enabled_flag
        runtime.need = self.need
        for owner, name, wrapper in _of_the_public_api(runtime):
            self._wrap(owner, name, wrapper)
        for owner in CLIENTS:
            self._wrap(owner, "__init__", client_constructor.constructor(runtime))
        for features, patches in _BY_FEATURES:
            if not any(feature in without for feature in features):
                for owner, name, wrapper in patches(runtime):
                    self._wrap(owner, name, wrapper)
        for need, features, patches in _LATE:
            if not any(feature in without for feature in features):
                made = [self._prepare(*each) for each in patches(runtime)]
                self._late[need] = (*self._late.get(need, ()), *filter(None, made))
        if not runtime.no_configured_timeout:
            self.need("timeout")
        scan.plug_in(runtime, without)
        on_first_use.wrap_when_used(runtime, without, self._add)
        POLICIES.prepare_with(partial(self.need, "policy"))
        if Feature.TIMEOUT not in without:
            import_hook.wrap_when_imported(runtime, self._add)

    def need(self, need: Need) -> None:
        """Put on patches that were not needed until now. Idempotent; several threads may call it at
        once, and none waits for another."""
        for patch in self._late.get(need, ()):
            now = vars(patch.owner).get(patch.name)
            if now is patch.original:
                self._put(patch)
            elif now is not patch.wrapper:
                # Another library has wrapped it meanwhile.
                self._wrap(patch.owner, patch.name, patch.around)
        self._late[need] = ()
        if self._removed:
            self._take_off()

    def _add(self, wrapped: Iterable[Wrapped]) -> None:
        # All or nothing; and without a lock, which a forked child could find locked for ever.
        for owner, name, wrapper in list(wrapped):
            self._wrap(owner, name, wrapper)
        if self._removed:
            self._take_off()

    def remove(self) -> None:
        """Restore every attribute that still is our wrapper.

        Where another library wrapped ours, its wrapper stays: one warning, and ours passes through.
        """
        self._removed = True
        import_hook.forget()
        HEDGED_READS.forget()
        ATOMIC_WRITES.forget()
        POLICIES.forget()
        self._take_off()

    def _take_off(self) -> None:
        covered = []
        with suppress(IndexError):  # all are taken off, by this thread or by another one as well
            while True:
                patch = self.applied.pop()
                if not _restore(patch):
                    covered.append(patch)
        if covered:
            logger.warning(
                "also wrapped by another library, so our wrappers stay in place and do nothing: %s",
                ", ".join(f"{patch.owner.__name__}.{patch.name}" for patch in covered),
            )

    def _wrap(self, owner: Owner, name: str, around: Replacement) -> None:
        patch = self._prepare(owner, name, around)
        if patch is not None:
            self._put(patch)

    def _put(self, patch: Patch) -> None:
        setattr(patch.owner, patch.name, patch.wrapper)
        self.applied.append(patch)

    def _prepare(self, owner: Owner, name: str, around: Replacement) -> Patch | None:
        # The attribute itself, without the descriptor's binding; a newer pymongo may lack one.
        original = vars(owner).get(name)
        if original is None:
            logger.warning("pymongo's %s has no %s of its own: not wrapped", owner.__name__, name)
            return None
        if isinstance(around, Interceptor):
            around = around.method(self._flag, is_async(original))
        made: Any = around.in_place_of(original)
        if made is None:
            logger.warning("pymongo's %s.%s takes other arguments: not wrapped", owner, name)
            return None
        return Patch(owner, name, original, made, around)


def _of_the_public_api(runtime: Runtime) -> Iterator[Wrapped]:
    atomic = AtomicMethods(runtime)
    for owner, table in PUBLIC:
        originals = dict(vars(owner))
        for name, operation in table.items():
            original = originals.get(name)
            made = public_methods.CursorMaker if operation.gives else public_methods.PublicMethod
            session_at, asynchronous = call_sessions.position(original), is_async(original)
            public = made(runtime, operation, asynchronous, session_at)
            atomic.add(public, name, original)
            method = public.method(runtime.enabled_flag, asynchronous)
            yield owner, name, single_documents.around(runtime, method, name, originals)
    atomic.send_when_used()
    for owner in CLIENTS:
        yield owner, "start_session", session_methods.start_session()


def _of_cursors(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in CLIENTS:
        yield owner, driver.cursors.RUN_OPERATION, batches.Batch(runtime)
    for owner in _where_defined(driver.cursors.cursor_classes(), driver.cursors.CLONE):
        yield owner, driver.cursors.CLONE, cursor_creation.clone(runtime)
    if not runtime.no_configured_timeout:
        yield from _of_lists(runtime)


def _of_cursors_with_policies(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in _where_defined((Cursor, AsyncCursor), "__init__"):
        yield owner, "__init__", cursor_creation.made(runtime)
    if runtime.no_configured_timeout:
        yield from _of_lists(runtime)


def _of_lists(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in _where_defined(driver.cursors.cursor_classes(), "to_list"):
        asynchronous = is_async(vars(owner)["to_list"])
        yield owner, "to_list", batches.to_list(runtime, asynchronous)


def _of_change_streams(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in driver.cursors.stream_classes():
        yield owner, driver.cursors.AGGREGATE, batches.Resume(runtime)
        step = "__anext__" if is_async(vars(owner)["next"]) else "__next__"
        for name in ("next", "try_next", step):
            yield owner, name, Within(batches.next_of_stream)


def _of_closing(_: Runtime) -> Iterator[Wrapped]:
    cursors = (*driver.cursors.cursor_classes(), *driver.cursors.stream_classes())
    for owner in _where_defined(cursors, "close"):
        yield owner, "close", batches.Close()


def _where_defined(classes: Iterable[type], name: str) -> Iterator[type]:
    """The classes whose own attribute each of these has, which differs between versions."""
    found = (next((c for c in cls.__mro__ if name in vars(c)), None) for cls in classes)
    return iter(dict.fromkeys(cls for cls in found if cls is not None))


def _of_cleanup(runtime: Runtime) -> Iterator[Wrapped]:
    for owner, asynchronous in zip(CLIENTS, (False, True), strict=True):
        for name, session_at in driver.clients.KILLS.items():
            kill = cleanup_commands.KillCursors(runtime, asynchronous, session_at)
            yield owner, name, kill
        yield owner, driver.clients.KILL, background.KillsInBackground(runtime)
        yield owner, driver.clients.BACKGROUND, background.BackgroundRun(asynchronous)
        ending = cleanup_commands.EndSessions(runtime, asynchronous)
        yield owner, driver.clients.END_SESSIONS, ending


def _of_closed_clients(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in CLIENTS:
        close = closings.CloseAsync if is_async(vars(owner)["close"]) else closings.Close
        for name in {"close", "aclose"} & vars(owner).keys():
            yield owner, name, close(runtime.closings)


def _of_selection(_: Runtime) -> Iterator[Wrapped]:
    yield driver.clients.topology_description(), driver.clients.LOOK, deprioritized.select


def _of_failed_selections(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in driver.waits.topology_owners(driver.selection.ERROR_MESSAGE):
        yield (
            owner,
            driver.selection.ERROR_MESSAGE,
            selection_errors.error_message(runtime.enabled_flag),
        )


def _of_waits(runtime: Runtime) -> Iterator[Wrapped]:
    waiting = runtime.clients.waiting if runtime.shows_calls else None
    return bounded_waits.wrapped(runtime.enabled_flag, waiting)


def _of_time_limits(runtime: Runtime) -> Iterator[Wrapped]:
    for owner in driver.commands.connections_with(driver.commands.LIMITED):
        yield owner, driver.commands.LIMITED, max_time_ms.limit(runtime.enabled_flag)


def _of_comments(runtime: Runtime) -> Iterator[Wrapped]:
    if runtime.config.command_comment:
        from pymongo_resilience_instrumentation.telemetry.commands import command_comments  # noqa: PLC0415 - off by default

        for owner in driver.commands.connections_with(driver.commands.PASSED):
            yield owner, driver.commands.PASSED, command_comments.comment(runtime.enabled_flag)


def _of_interruptions(runtime: Runtime) -> Iterator[Wrapped]:
    for owner, _ in driver.topologies.topologies():
        yield (
            owner,
            driver.interruptions.HANDLED,
            interrupted_commands.connection_error(runtime.enabled_flag),
        )


def _of_sessions(runtime: Runtime) -> Iterator[Wrapped]:
    for owner, asynchronous in driver.sessions.session_classes():
        for name, wrapper in session_methods.of_a_session(runtime, asynchronous):
            yield owner, name, wrapper
    for module in driver.sessions.session_modules():
        yield module, driver.sessions.WITHIN_TIME_LIMIT, session_methods.within_time_limit(runtime)


def _of_ended_sessions(runtime: Runtime) -> Iterator[Wrapped]:
    if runtime.transaction_spans is not None:
        for owner, _ in driver.sessions.session_classes():
            yield owner, driver.sessions.END_SESSION, transaction_spans.EndSession()


def _of_the_loops(runtime: Runtime) -> Iterator[Wrapped]:
    for module, asynchronous in driver.retry_loop.loop_modules():
        yield module, driver.retry_loop.LOOP, loop_subclass.subclass(runtime, asynchronous)


_BY_FEATURES: tuple[tuple[tuple[Feature, ...], Callable[[Runtime], Iterator[Wrapped]]], ...] = (
    ((Feature.CURSORS,), _of_cursors),
    ((Feature.CURSORS,), _of_change_streams),
    ((Feature.RETRIES,), _of_the_loops),
    ((Feature.RETRIES, Feature.BULKS), stopped_bulks.wrapped),
    ((Feature.RETRIES, Feature.FAST_FAIL), _of_closed_clients),
    ((Feature.WHY_NOT,), _of_failed_selections),
    ((Feature.CLEANUP,), _of_cleanup),
    ((Feature.WAITS,), _of_waits),
    ((Feature.WAITS,), lambda runtime: kept_cancellations.wrapped(runtime.enabled_flag)),
    (
        (Feature.RETRIES, Feature.WAITS, Feature.FAST_FAIL),
        lambda runtime: fast_fail.wrapped(runtime.enabled_flag, runtime.rules),
    ),
    ((Feature.TIMEOUT, Feature.WHOLE_TIMEOUTS), _of_sessions),
    ((Feature.INTERRUPTIONS,), _of_interruptions),
    ((Feature.COMMENTS,), _of_comments),
    ((Feature.RECOVERY,), woken_monitors.wrapped),
    ((Feature.DEAD_PEERS,), lost_connections.wrapped),
    ((Feature.DEAD_PEERS, Feature.RETRIES, Feature.LOST_PRIMARIES), lost_primaries.wrapped),
)
"""What is wrapped where the installed pymongo can have all of the features."""
_LATE: tuple[tuple[Need, tuple[Feature, ...], Callable[[Runtime], Iterator[Wrapped]]], ...] = (
    ("avoided server", (Feature.RETRIES, Feature.RETARGETING), _of_selection),
    ("policy", (Feature.CURSORS,), _of_cursors_with_policies),
    ("attempt timeout", (Feature.TIME_LIMITS, Feature.WAITS), lambda _: attempt_timeouts.wrapped()),
    ("timeout", (Feature.WAITS,), lambda runtime: bounded_waits.selections(runtime.enabled_flag)),
    ("timeout", (Feature.TIME_LIMITS,), _of_time_limits),
    ("timeout", (Feature.CLEANUP, Feature.CURSORS), _of_closing),
    ("transaction", (Feature.END_SESSION,), _of_ended_sessions),
)
"""The same, for what is on the way of healthy operations and does nothing for most of them."""


def _restore(patch: Patch) -> bool:
    now = vars(patch.owner).get(patch.name)
    if now is not patch.wrapper:
        return now is patch.original
    setattr(patch.owner, patch.name, patch.original)
    return True
