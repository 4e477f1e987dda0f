"""The installed pymongo has each private name that the library uses, with the same parameters.

On a new pymongo, what fails here says what to look at. That each name still does what the library
relies on is held by the integration tests of what uses it.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pymongo
import pytest
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.self_check import Part, missing

pytestmark = pytest.mark.oldest
DRIVER = Path(driver.__file__).parent
PARTS = [
    *driver.private_names.parts(),
    *driver.private_names.parts_of_gridfs(),
    *driver.private_names.parts_of_inserts(),
]
NAMES = [(part.place, name) for part in PARTS for name in part.names]


def found_instead(place: str, name: str) -> str:
    """Return what the installed pymongo has in the place of the name."""
    module_name, _, inner = place.partition(":")
    try:
        owner = import_module(module_name)
        owner = getattr(owner, inner) if inner else owner
    except (ImportError, AttributeError):
        return "the place is gone"
    found = getattr(owner, name, None)
    return "the name is gone" if found is None else f"it has {inspect.signature(found)}"


def used_in(name: str) -> str:
    """Return the modules of ``driver`` that have the name, as a word."""
    modules = sorted(DRIVER.glob("*.py"))
    found = [each.name for each in modules if re.search(rf"\b{name}\b", each.read_text())]
    return ", ".join(found)


@pytest.mark.parametrize(("place", "name"), NAMES, ids=[f"{a}.{b}"[-90:] for a, b in NAMES])
def test_pymongo_has(place: str, name: str) -> None:
    bare = re.split(r"[(\[]", name)[0]
    assert missing([Part(place, (name,))]) == {}, (
        f"pymongo {pymongo.version} has no {place}.{name}: {found_instead(place, bare)}. "
        f"Look at {used_in(bare)} in {DRIVER}, and at docs/traps.md."
    )


def test_a_closure_that_lacks_a_variable_is_missing() -> None:
    place = "pymongo.synchronous.collection:Collection"
    for name in ("_insert_one[gone]", "no_such_function[self]"):
        assert missing([Part(place, (name,))]) != {}


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place, name = "pymongo.synchronous.mongo_client:MongoClient", "_checkout(self, server, session)"
    monkeypatch.setattr("pymongo.synchronous.mongo_client.MongoClient._checkout", lambda self: 1)
    with pytest.raises(AssertionError, match=r"_checkout.*it has \(self\).* private_names\.py"):
        test_pymongo_has(place, name)
