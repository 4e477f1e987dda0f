"""Writes are looked at for ``atomic`` once the first policy has it: most processes have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pymongo_resilience.policies.first_use import ATOMIC_WRITES
from pymongo_resilience_instrumentation.interception.methods import is_async

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.interceptor import Interceptor
    from pymongo_resilience_instrumentation.runtime import Runtime

METHODS = frozenset({"bulk_write", "delete_many", "update_many"})


class AtomicMethods:
    """Of one instrument()."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._found: list[tuple[Interceptor, str, Any]] = []

    def add(self, interceptor: Interceptor, name: str, found: Any) -> None:
        """Before its functions are made. ``found``: the attribute of the class, perhaps another
        library's wrapper."""
        if name in METHODS:
            interceptor.functions = WeakSet()
            self._found.append((interceptor, name, found))

    def send_when_used(self) -> None:
        """Now, where a policy has asked for it already."""
        ATOMIC_WRITES.prepare_with(self._send)

    def _send(self) -> None:
        from .atomic_methods import AtomicWrites  # noqa: PLC0415 - most processes have none

        for interceptor, name, found in self._found:
            writes = AtomicWrites(self._runtime, name, found, is_async(found))
            interceptor.send_with(writes.send)
