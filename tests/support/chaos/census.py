"""What is in use in this process right now, kind by kind.

A kind is a dictionary: what tells one thing from the next, and its name for people. Nothing here
keeps anything alive that was not there before.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

from pymongo.asynchronous.monitor import MonitorBase as AsyncMonitor
from pymongo.synchronous.monitor import MonitorBase
from pymongo_resilience_instrumentation.driver.monitors import AwaitedReply
from pymongo_resilience_instrumentation.interceptor import Entered
from pymongo_resilience_instrumentation.recovery.woken_monitors import CheckIntervals

Things = dict[Hashable, str]
Inventory = dict[str, Things]

OURS = ("pymongo_resilience", "pymongo_resilience_instrumentation")
TOOLS = "pymongo_resilience_instrumentation.tools."
"""Not the library: what the test bed remembers is its purpose. Its sockets and tasks count."""
FILLED_ONCE = frozenset({
    "pymongo_resilience_instrumentation.timeouts.timeout_errors._classes",
})  # fmt: skip
"""As much as the driver has, for good: one class for each of its exception classes, and a variable
for each of its APIs."""
CONTAINERS = (
    dict, list, set, deque,
    weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
)  # fmt: skip


def take(context: Context, spans: Iterable[tuple[int, str]]) -> Inventory:
    """Everything in use, by kind; of context variables, those of ``context``."""
    # What nobody refers to any more is not in use.
    gc.collect()
    objects = gc.get_objects()
    # By type(), never isinstance(): a proxy answers for what it stands for.
    types = set(map(type, objects))
    task_types = {cls for cls in types if issubclass(cls, asyncio.Task)}
    our_types = {cls for cls in types if _is_ours(cls)}
    ours = [each for each in objects if type(each) in our_types and not _of_a_monitor(each)]
    return {
        "thread": {thread: thread.name for thread in threading.enumerate()},
        "task": {
            task: f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}"
            for task in objects
            if type(task) in task_types and not task.done()
        },
        "descriptor": _descriptors(),
        "open span": dict(spans),
        "context variable": _variables(context),
        "object": _by_number(Counter(_type_name(type(each)) for each in ours)),
        "entry": _by_number(_entries(ours)),
    }


def _of_a_monitor(each: Any) -> bool:
    """In use while a living client's monitor waits for its next check."""
    match each:
        case CheckIntervals() | AwaitedReply():
            return True
        case Entered():
            return isinstance(each.instance, MonitorBase | AsyncMonitor)
    return False


def _by_number(counter: Counter[str]) -> Things:
    """Things of which only the number matters."""
    return {(name, i): name for name, count in counter.items() for i in range(count)}


def _is_ours(cls: type) -> bool:
    module = cls.__module__
    return isinstance(module, str) and _is_our_module(module)


def _is_our_module(name: str) -> bool:
    return name.partition(".")[0] in OURS and not name.startswith(TOOLS)


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _descriptors() -> Things:
    """File descriptors with what each refers to; Linux only, elsewhere none."""
    found: Things = {}
    for path in Path("/proc/self/fd").glob("*"):
        try:
            target = str(path.readlink())
            name = _addresses(int(path.name)) if target.startswith("socket:") else target
        except OSError:  # closed by now, as the one that listed them is
            continue
        # A number is soon used again, but never for the same socket.
        found[path.name, target] = name
    return found


def _addresses(descriptor: int) -> str:
    with socket.socket(fileno=os.dup(descriptor)) as same:
        local = same.getsockname()
        try:
            return f"socket {local} to {same.getpeername()}"
        except OSError:
            return f"socket {local} to nobody"


def _variables(context: Context) -> Things:
    """Context variables that are set to something else than their default."""
    nothing = Context()
    found: Things = {}
    for variable, value in context.items():
        try:
            default = nothing.run(variable.get)
        except LookupError:
            default = None
        if value is not default and value != default:
            found[variable, id(value)] = f"{variable.name} = {value!r:.60}"
    return found


def _entries(ours: list[Any]) -> Counter[str]:
    """What the containers hold in all that belong to a module, a class or an object of ours."""
    sizes: Counter[str] = Counter()
    for place, value in _attributes(ours):
        if place in FILLED_ONCE:
            continue
        if issubclass(type(value), CONTAINERS):
            sizes[place] += len(value)
        elif type(value) is functools._lru_cache_wrapper and value.cache_info().maxsize is None:
            # Others have their bound, and are meant to be filled.
            sizes[place] += value.cache_info().currsize
    return sizes


def _attributes(ours: list[Any]) -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if not _is_our_module(name):
            continue
        for attribute, value in vars(module).items():
            if attribute.startswith("__"):  # the import system's
                continue
            yield f"{name}.{attribute}", value
            if issubclass(type(value), type) and value.__module__ == name:
                for inner, member in vars(value).items():
                    yield f"{_type_name(value)}.{inner}", member
    for each in ours:
        place = _type_name(type(each))
        for attribute, value in getattr(each, "__dict__", {}).items():
            yield f"{place}.{attribute}", value
        for cls in type(each).__mro__:
            for slot in vars(cls).get("__slots__", ()):
                yield f"{place}.{slot}", getattr(each, slot, None)
