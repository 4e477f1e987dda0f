"""Forks while another thread holds every lock that the library has. Arguments: URI, database."""

from __future__ import annotations

import gc
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from common import Child, Telemetry, client, say

import pymongo_resilience
from pymongo_resilience import Config

LOCKS = (type(threading.Lock()), type(threading.RLock()))
OURS = ("pymongo_resilience.", "pymongo_resilience_instrumentation.")


def values_of(thing: Any) -> Iterator[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for cls in type(thing).__mro__:
        for slot in getattr(cls, "__slots__", ()):
            yield getattr(thing, slot, None)


def locks_in(thing: Any) -> Iterator[Any]:
    for value in values_of(thing):
        if isinstance(value, LOCKS):
            yield value
        elif type(value).__module__ in (threading.__name__, queue.__name__):
            yield from locks_in(value)


def locks_of_the_library() -> list[Any]:
    """In whatever modules and objects of ours there are: those still to be written included."""
    found = [each for name, each in sys.modules.items() if f"{name}.".startswith(OURS)]
    found += [each for each in gc.get_objects() if f"{type(each).__module__}.".startswith(OURS)]
    return list({id(lock): lock for thing in found for lock in locks_in(thing)}.values())


def child(inherited: Any, uri: str, database: str) -> dict[str, Any]:
    telemetry = Telemetry()
    new = client(uri)
    for one in (new, inherited):
        one[database].coll.find_one()
    connections = telemetry.by("db.client.connection.state", "db.client.connection.count")
    pymongo_resilience.uninstrument()
    pymongo_resilience.instrument()
    client(uri)[database].coll.find_one()
    return {
        "finds": len(telemetry.described(f"find {database}.coll")),
        "connections": connections,
    }


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument(Config(circuit_breaker="always"))
    ours = client(uri)
    ours[database].coll.insert_one({})
    locks = locks_of_the_library()
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        forked.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    forking = Child("fork", child, ours, uri, database)
    forked.set()
    holder.join()
    ours[database].coll.insert_one({})
    say({"locks": len(locks), "child": forking.answer()})
    ours.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
