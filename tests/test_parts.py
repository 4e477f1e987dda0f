"""What `make test` runs and what `make check` adds are all tests, and none of them twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.parts import Part, chosen


@dataclass(frozen=True)
class Item:
    """As much of a pytest.Item as is looked at."""

    nodeid: str
    marks: frozenset[str] = field(default=frozenset())

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    @property
    def callspec(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.nodeid.partition("[")[2].rstrip("]"))


"""Characters, behind the file."""

OLDEST = frozenset({"oldest"})
TABLE = [
    Item(f"tests/integration/test_a.py::test_table[{name}-{api}]", OLDEST)
    for name in ("cut", "refused", "slow")
    for api in ("sync", "async")
]
BOTH = [Item(f"tests/integration/test_a.py::test_both[{api}]", OLDEST) for api in ("sync", "async")]
PLAIN = Item("tests/unit/test_b.py::test_plain[]")
CHAOS = Item("tests/chaos/test_c.py::test_plays[sync]", OLDEST)
LONG = Item("tests/test_d.py::test_long[]", frozenset({"thorough"}))
LONELY = Item("tests/test_d.py::test_lonely[]", frozenset({"alone"}))
ITEMS: Any = [*TABLE, *BOTH, PLAIN, CHAOS, LONG, LONELY]


def ids(part: Part) -> list[str]:
    return [item.nodeid.rpartition("::")[2] for item in chosen(ITEMS, part)]


def test_rows_of_a_table_take_turns_between_sync_and_async() -> None:
    assert ids(Part.QUICK) == [
        *("test_table[cut-sync]", "test_table[refused-async]", "test_table[slow-sync]"),
        *("test_both[sync]", "test_both[async]", "test_plain[]"),
    ]


def test_the_core_is_one_case_of_each_function() -> None:
    assert ids(Part.CORE) == ["test_table[cut-sync]", "test_both[async]"]


def test_quick_and_thorough_tests_are_the_whole() -> None:
    halves = [*chosen(ITEMS, Part.QUICK), *chosen(ITEMS, Part.THOROUGH)]
    assert len(halves) == len(ITEMS)
    assert set(halves) == set(ITEMS)


def test_beyond_the_core_each_other_row_is_there_on_one_side() -> None:
    assert ids(Part.BEYOND_CORE) == [
        *("test_table[refused-async]", "test_table[slow-sync]", "test_both[sync]"),
        "test_plays[sync]",
    ]


def test_what_is_marked_oldest_is_where_it_is_looked_for(request: pytest.FixtureRequest) -> None:
    """.ci/steps.py collects no more than these folders on the oldest pymongo."""
    marked = [item for item in request.session.items if item.get_closest_marker("oldest")]
    folders = {item.nodeid.rpartition("/test_")[0] for item in marked}
    assert folders <= {"tests/integration", "tests/unit"}


def test_what_runs_alone_is_not_marked_oldest(request: pytest.FixtureRequest) -> None:
    """On the oldest pymongo, nothing runs alone."""
    both = [
        item.nodeid
        for item in request.session.items
        if item.get_closest_marker("alone") and item.get_closest_marker("oldest")
    ]
    assert both == []
