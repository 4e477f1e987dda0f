"""The census sees what is left: one thing of each kind, left on purpose, fails it by name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo_resilience_instrumentation import call, operation
from pymongo_resilience_instrumentation.clients import client_registry
from support.chaos.residue import ResidueError, no_residue

from pymongo_resilience import override

pytestmark = pytest.mark.usefixtures("quick_census")

Undo = ExitStack
Leak = Callable[[Undo], Any]


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def _task(undo: Undo) -> None:
    loop = asyncio.new_event_loop()
    undo.callback(loop.close)
    task = loop.create_task(_for_ever(), name="forgotten")

    @undo.callback
    def _() -> None:
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))


def _connection(undo: Undo) -> None:
    for each in socket.socketpair():
        undo.enter_context(each)


def _policy(undo: Undo) -> None:
    undo.enter_context(override(idempotent=True))


def _call(undo: Undo) -> Any:
    return operation.Operation(call.ENDED)


def _registered_client(undo: Undo) -> Any:
    known = client_registry.Clients()
    known.of(known).kill_later(1, None)
    return known


def _module_entry(undo: Undo) -> None:
    client_registry.forgotten = {1: 2}  # type: ignore[attr-defined]  # a registry that is not there
    undo.callback(delattr, client_registry, "forgotten")


OURS = "pymongo_resilience_instrumentation"
LEAKS: dict[str, Leak] = {
    "1 x task: forgotten _for_ever": _task,
    "2 x descriptor: socket  to ": _connection,
    "1 x context variable: pymongo_resilience_policy": _policy,
    f"1 x object: {OURS}.operation.Operation": _call,
    f"1 x entry: {OURS}.clients.client_registry.ClientState.lost_cursors": _registered_client,
    f"1 x entry: {OURS}.clients.client_registry.forgotten": _module_entry,
}


@pytest.mark.parametrize("line", LEAKS)
def test_what_is_left_is_named(line: str) -> None:
    with ExitStack() as undo, pytest.raises(ResidueError, match=rf"(?m)^  {line}"):
        with no_residue(within=0.05):
            kept = LEAKS[line](undo)
    del kept
