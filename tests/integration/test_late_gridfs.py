"""GridFS is wrapped from when it is imported and instrumented, whichever comes first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.child_programs import ended

pytestmark = pytest.mark.oldest

HELPERS = """
import json, sys, threading
import wrapt
import pymongo_resilience
from pymongo_resilience import instrument, uninstrument

def classes():
    from gridfs.asynchronous import grid_file as asynchronous
    from gridfs.synchronous import grid_file as sync
    return [
        getattr(module, prefix + name)
        for module, prefix in ((sync, "Grid"), (asynchronous, "AsyncGrid"))
        for name in ("FS", "FSBucket", "In", "Out")
    ]

def is_ours(function):
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return isinstance(function, wrapt.FunctionWrapper) or "pymongo_resilience" in file

def wrapped():
    return [any(map(is_ours, vars(cls).values())) for cls in classes()]

def tell(value):
    print(json.dumps(value), flush=True)
"""
ORDERS = (
    HELPERS
    + """
import os
def take(steps):
    for step in steps:
        if step == "import":
            import gridfs
        elif step == "import a part":
            from gridfs.asynchronous import AsyncGridFSBucket
        elif step == "instrument":
            instrument()
        else:
            uninstrument()
    return wrapped()

def in_a_child(steps):
    ours, childs = os.pipe()
    if os.fork() == 0:
        os.write(childs, json.dumps(take(steps)).encode())
        os._exit(0)
    os.close(childs)
    with os.fdopen(ours) as answer:
        return json.loads(answer.read() or "null")

assert "gridfs" not in sys.modules
tell([in_a_child(steps.split(", ")) for steps in sys.argv[1:]])
"""
)
NOT_PLAIN, PLAIN = [True] * 8, [False] * 8


def told(program: str, *args: str) -> tuple[Any, str]:
    """What the last line of the program's output says, and its log."""
    status, output, errors = ended([sys.executable, "-c", program, *args], {})
    assert status == 0, errors
    return json.loads(output.splitlines()[-1]), errors.strip()


PLAIN_AFTER = (
    "instrument, import, uninstrument",
    "import, instrument, uninstrument",
    "instrument, uninstrument, import",
    "instrument, uninstrument, instrument, import, uninstrument",
)
NOT_PLAIN_AFTER = (
    "import, instrument",
    "instrument, import",
    "instrument, import a part",
    "instrument, uninstrument, import, instrument",
    "instrument, uninstrument, instrument, import",
    "instrument, import, uninstrument, instrument",
)


@pytest.mark.parametrize(
    ("orders", "expected"),
    [(PLAIN_AFTER, PLAIN), (NOT_PLAIN_AFTER, NOT_PLAIN)],
    ids=["plain", "wrapped"],
)
def test_in_each_order(orders: tuple[str, ...], expected: list[bool]) -> None:
    """Each in a process of its own, forked where nothing has imported GridFS yet."""
    found, log = told(ORDERS, *orders)
    assert dict(zip(orders, found, strict=True)) == dict.fromkeys(orders, expected)
    assert log == ""


@pytest.fixture
def another(tmp_path: Path) -> str:
    """The place of a gridfs that has neither the names nor the classes of pymongo's."""
    for half in ("synchronous", "asynchronous"):
        (tmp_path / "gridfs" / half).mkdir(parents=True)
        (tmp_path / "gridfs" / half / "__init__.py").touch()
        (tmp_path / "gridfs" / half / "grid_file.py").write_text("class GridFS: pass\n")
    (tmp_path / "gridfs" / "__init__.py").write_text("there = True\n")
    return str(tmp_path)


@pytest.mark.parametrize("order", ["import gridfs; instrument()", "instrument(); import gridfs"])
def test_one_that_lacks_names_loses_its_timeouts_and_nothing_else(order: str, another: str) -> None:
    program = f"{HELPERS}\nsys.path.insert(0, {another!r}); {order}; tell(gridfs.there)"
    there, log = told(program)
    assert there is True
    (line,) = log.splitlines()
    assert "no timeout covers the whole life of a GridFS stream" in line
    assert "gridfs.synchronous.grid_file.GridFSBucket" in line
    assert "gridfs.asynchronous.grid_file.AsyncGridFSBucket" in line


def test_a_fault_of_ours_does_not_reach_the_import() -> None:
    program = f"""{HELPERS}
from pymongo_resilience_instrumentation import driver
def fail():
    raise LookupError("a fault of ours")
driver.private_names.parts_of_gridfs = fail
instrument()
import gridfs
tell(wrapped())
"""
    found, log = told(program)
    assert found == PLAIN
    assert log.count("a fault of ours") == 1


def test_waiting_for_an_import_that_never_comes_keeps_nothing_alive() -> None:
    program = f"""{HELPERS}
import gc
from pymongo_resilience_instrumentation.runtime import Runtime
for _ in range(3):
    instrument()
    uninstrument()
gc.collect()
tell([sum(type(each) is Runtime for each in gc.get_objects()), "gridfs" in sys.modules])
"""
    assert told(program) == ([0, False], "")


def test_it_stays_plain_where_it_is_imported_while_all_is_taken_off() -> None:
    program = f"""{HELPERS}
from pymongo_resilience_instrumentation import driver
asked, go_on = threading.Event(), threading.Event()
def wait(parts=driver.private_names.parts_of_gridfs):
    asked.set()
    assert go_on.wait(30)
    return parts()
driver.private_names.parts_of_gridfs = wait
instrument()
importing = threading.Thread(target=__import__, args=["gridfs"])
importing.start()
assert asked.wait(30)
uninstrument()
go_on.set()
importing.join()
tell(wrapped())
"""
    assert told(program) == (PLAIN, "")


def test_one_that_is_half_imported_when_instrument_is_called_is_waited_for() -> None:
    program = f"""{HELPERS}
from pymongo_resilience_instrumentation import driver
half_way, go_on = threading.Event(), threading.Event()
def slow(event, args):
    if event == "exec" and args[0].co_filename.endswith("gridfs/synchronous/grid_file.py"):
        half_way.set()
        assert go_on.wait(30)
def go(parts=driver.private_names.parts_of_gridfs):
    go_on.set()
    return parts()
sys.addaudithook(slow)
driver.private_names.parts_of_gridfs = go
importing = threading.Thread(target=__import__, args=["gridfs"])
importing.start()
assert half_way.wait(30)
instrument()
importing.join()
tell(wrapped())
"""
    assert told(program) == (NOT_PLAIN, "")
