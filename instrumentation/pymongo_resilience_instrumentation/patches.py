"""Wraps pymongo's methods, and removes the wrappers again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import wrapt
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.cursor import Cursor
from pymongo.synchronous.database import Database

from pymongo_resilience.first_use import FirstUse, Step
from pymongo_resilience.internal_errors import contain_internal_errors, logger
from pymongo_resilience.policies.blocks import policies_used
from pymongo_resilience_instrumentation import cursor_methods, public_operations
from pymongo_resilience_instrumentation.clients import client_registry
from pymongo_resilience_instrumentation.interceptor import (
    Interceptor,
    Owner,
    Replacement,
    Row,
    Subclass,
    is_async,
)
from pymongo_resilience_instrumentation.public_api import client_setup, public_methods, readiness
from pymongo_resilience_instrumentation.public_operations import PublicOperation
from pymongo_resilience_instrumentation.recovery import (
    lost_connections,
    paused_dialing,
    rejections,
    silent_servers,
    woken_monitors,
)
from pymongo_resilience_instrumentation.retries import loop_subclass, stopped_bulks
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.selection import fast_fail
from pymongo_resilience_instrumentation.self_check import State
from pymongo_resilience_instrumentation.telemetry import pool_metrics
from pymongo_resilience_instrumentation.telemetry.transaction_spans import sessions_used
from pymongo_resilience_instrumentation.timeouts import bounded_waits, command_limits
from pymongo_resilience_instrumentation.timeouts.precedence import cursor_timeouts_used
from pymongo_resilience_instrumentation.transactions import session_methods

from . import cleanup, driver

PUBLIC: tuple[tuple[type, Mapping[str, PublicOperation]], ...] = (
    (Collection, public_operations.COLLECTION),
    (AsyncCollection, public_operations.COLLECTION),
    (Database, public_operations.DATABASE),
    (AsyncDatabase, public_operations.DATABASE),
    (MongoClient, public_operations.CLIENT),
    (AsyncMongoClient, public_operations.CLIENT),
)
CLIENTS: tuple[type, ...] = (MongoClient, AsyncMongoClient)


FEATURES = (
    "atomic_writes", "command_comments", "gridfs", "hedged_reads", "resumable_finds",
    "single_documents",
)  # fmt: skip
"""The modules of the folder ``features``. Nothing else imports them.

Each has ``plug_in(runtime, apply_patches)``, which is called before the core's own patches are
applied. It registers senders, or applies patches itself.
"""


class Patches:
    """The patches of one ``instrument()``.

    Applied and removed by one thread at a time; in between, any thread may add patches for what it
    has imported.
    """

    def __init__(self) -> None:
        self.applied: list[tuple[Owner, str, Any, Any]] = []
        """Owner, name, original value, and our value of each attribute."""
        self._waiting: list[tuple[FirstUse, Step]] = []
        """What applies further patches at the first use of a feature."""
        self._removed = False

    def apply(self, runtime: Runtime) -> None:
        """Apply all patches of the runtime's state, the core's around those of the features."""
        self._flag = runtime.enabled_flag
        if runtime.state is State.ALL:
            for name in FEATURES:
                feature = import_module(f".features.{name}", __package__)
                feature.plug_in(runtime, self.apply_patches)
        self.apply_patches(_for_telemetry(runtime))
        if runtime.state is State.ALL:
            self.apply_patches(_for_operations(runtime))
        if runtime.owns_retries:
            self.apply_patches(_for_retries(runtime))
        if runtime.state is State.ALL:
            for used, rows in _on_demand(runtime):
                self._apply_at_first_use(used, rows)

    def _apply_at_first_use(self, used: FirstUse, rows: Iterator[Row]) -> None:
        """Apply the patches once a feature is used, or now if it was used before."""

        def step() -> None:
            # This runs inside of an application's call, which must not fail because of it.
            with contain_internal_errors("while wrapping what a feature needs"):
                self.apply_patches(rows)

        self._waiting.append((used, step))
        used.when(step)

    def apply_patches(self, rows: Iterable[Row]) -> None:
        """Apply all patches of ``rows``, or none.

        Uses no lock, because a forked child could find it locked forever.
        """
        for owner, name, wrapper in list(rows):
            self._wrap(owner, name, wrapper)
        if self._removed:
            # ``remove`` was called by another thread in the meantime.
            self._take_off()

    def remove(self) -> None:
        """Restore every attribute that is still our wrapper.

        If another library has wrapped ours, its wrapper stays, ours passes calls through, and one
        warning is logged.
        """
        self._removed = True
        for used, step in self._waiting:
            used.forget(step)
        self._take_off()

    def _take_off(self) -> None:
        covered = []
        # The list may become empty because another thread removes patches as well.
        with suppress(IndexError):
            while True:
                owner, name, original, made = self.applied.pop()
                now = vars(owner).get(name)
                # The second case: another library has read our wrapper with getattr(), which makes
                # wrapt return a bound copy, and has put that copy back.
                if now is made or getattr(now, "_self_parent", None) is made:
                    setattr(owner, name, original)
                elif now is not original:
                    covered.append(f"{owner.__name__}.{name}")
        if covered:
            logger.warning(
                "while pymongo-resilience was turned off: another library has also wrapped %s, so "
                "our wrappers there cannot be removed. They now do nothing",
                ", ".join(covered),
            )

    def _wrap(self, owner: Owner, name: str, outer: Replacement) -> None:
        # Read the attribute itself; getattr() would bind it.
        original = vars(owner).get(name)
        if original is None:
            logger.warning(
                "pymongo's %s does not define %s, so it is not wrapped and calls of it run without "
                "pymongo-resilience",
                owner.__name__,
                name,
            )
            return
        if isinstance(outer, Interceptor):
            outer = outer.wrapper(self._flag, is_async(original))
        if not isinstance(outer, Subclass):
            wrapped: Any = wrapt.FunctionWrapper(original, outer)
        elif type(original) is type:
            wrapped = outer.derive(original)
        else:
            logger.warning(
                "another library has replaced pymongo's %s.%s, so it is not wrapped and "
                "pymongo-resilience does not retry. Call instrument() before that library",
                getattr(owner, "__name__", owner),
                name,
            )
            return
        setattr(owner, name, wrapped)
        self.applied.append((owner, name, original, wrapped))


def _for_telemetry(runtime: Runtime) -> Iterator[Row]:
    """Yield the patches that work even if the installed pymongo lacks a name that others need."""
    for owner, table in PUBLIC:
        for name, operation in table.items():
            yield owner, name, public_methods.public_method(runtime, owner, operation)
    for owner in CLIENTS:
        yield owner, "start_session", session_methods.StartSession()
        yield owner, "__init__", client_setup.Constructor(runtime)
        yield owner, driver.clients.FROM_OPTIONS, client_setup.FromOptions(runtime)


def _for_operations(runtime: Runtime) -> Iterator[Row]:
    """Yield patches for batches, transactions and waits, and for timeouts that were set through
    this library.

    Without such a timeout, none of them changes what pymongo does.
    """
    yield from _of_cursors(runtime)
    connected = None
    if (metrics := runtime.telemetry.driver_metrics) is not None:
        connected = partial(pool_metrics.connected, runtime.clients, runtime.telemetry)
        yield from pool_metrics.wrapped(runtime.clients, metrics)
    yield from session_methods.wrapped(runtime)
    yield from readiness.wrapped(runtime)
    configured = runtime.config.timeout_ms is not None or runtime.rules.have_timeouts
    # pymongo's own loop decides, so waits are only observed, and limits only follow timeouts that
    # were set through this library.
    if not runtime.owns_retries:
        yield from bounded_waits.observed(connected)
        yield from command_limits.of_pymongo(runtime.enabled_flag, configured=configured)
        return
    dead_peer_s = runtime.config.dead_peer_s if driver.connections.can_watch() else 0
    terminal_check = fast_fail.TerminalWaits(runtime.rules)
    yield from bounded_waits.wrapped(runtime.enabled_flag, dead_peer_s, terminal_check, connected)
    yield from woken_monitors.wrapped(runtime)
    yield from lost_connections.wrapped(runtime)
    yield from command_limits.wrapped(runtime.enabled_flag, configured=configured)


def _of_cursors(runtime: Runtime) -> Iterator[Row]:
    for client in CLIENTS:
        fetch = cursor_methods.batch_wrapper(runtime, client is AsyncMongoClient)
        yield client, driver.cursors.RUN_OPERATION, fetch
    for name in ("clone", "__copy__", "__deepcopy__"):
        for owner in driver.clients.defining(name, Cursor, AsyncCursor):
            yield owner, name, cursor_methods.CursorClone()
    for owner in driver.clients.defining("to_list", *driver.cursors.cursor_classes()):
        asynchronous = is_async(vars(owner)["to_list"])
        yield owner, "to_list", cursor_methods.to_list(runtime, asynchronous)
    for stream in driver.clients.classes("change_stream", "*ChangeStream"):
        yield stream, driver.cursors.AGGREGATE, cursor_methods.StreamResume(runtime)
        step = "__anext__" if is_async(vars(stream)["next"]) else "__next__"
        for name in ("next", "try_next", step):
            yield stream, name, cursor_methods.next_of_stream(runtime)


def _on_demand(runtime: Runtime) -> Iterator[tuple[FirstUse, Iterator[Row]]]:
    """Yield the patches of methods that every operation calls, each with the feature that needs it.

    Most applications use none of the features, so their operations must not pay for the wrappers.
    """
    yield policies_used, _of_new_cursors()
    yield sessions_used, session_methods.for_ended_sessions(runtime)
    if runtime.owns_retries:
        yield cursor_timeouts_used, _of_closed_cursors(runtime)
        yield command_limits.reply_limits_used, command_limits.for_replies()


def _of_new_cursors() -> Iterator[Row]:
    for owner in driver.clients.defining("__init__", Cursor, AsyncCursor):
        yield owner, "__init__", cursor_methods.CursorInit()


def _of_closed_cursors(runtime: Runtime) -> Iterator[Row]:
    streams = driver.clients.classes("change_stream", "*ChangeStream")
    for owner in driver.clients.defining("close", *driver.cursors.cursor_classes(), *streams):
        yield owner, "close", cursor_methods.close(runtime, is_async(vars(owner)["close"]))


def _for_retries(runtime: Runtime) -> Iterator[Row]:
    """Yield the patches for retries, unless pymongo's own loop decides."""
    clients = runtime.clients
    for module, asynchronous in driver.clients.each_api("mongo_client"):
        yield module, driver.attempts.LOOP, loop_subclass.subclass(runtime, asynchronous)
    yield from stopped_bulks.wrapped(runtime)
    for client in CLIENTS:
        for name in {"close", "aclose"} & vars(client).keys():
            yield client, name, client_registry.Close(clients)
        yield client, driver.clients.KILL, cleanup.KillCursors(runtime)
        yield client, driver.clients.BACKGROUND, cleanup.BackgroundRun(runtime)
        yield client, driver.clients.END_SESSIONS, cleanup.EndSessions(runtime)
    yield from silent_servers.wrapped(runtime)
    if runtime.config.dead_peer_s and driver.connections.can_watch():
        for client in CLIENTS:
            # Wraps the method after BackgroundRun, so it runs before it, and before any wait.
            dead_peers = lost_connections.DeadPeers(runtime, runtime.config.dead_peer_s)
            yield client, driver.clients.BACKGROUND, dead_peers
    yield from rejections.wrapped(runtime)
    yield from paused_dialing.wrapped(runtime)
