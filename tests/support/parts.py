"""Which tests ``make test`` runs, and which ``make check`` adds: the one place that says so.

``make test`` takes, on the newest pymongo, every test but

- chaos and MongoDB's own tests;
- those marked ``thorough``, with the reason: Prometheus, and what takes long;
- those marked ``alone``, with the reason: they run after all others, one after the other;
- of a table whose rows run sync and async, every row on one of the two sides only, in turn. The
  other half is thorough.

Properties are tried with few examples there, and with all of them in ``make check``.

On the oldest pymongo, and on every other Python, it takes the ``core``: of each test function that
is marked ``oldest`` and not ``thorough``, one case. What ``make check`` adds on the oldest pymongo
has each row of a table on one of the two sides as well: their difference is tried on the newest.
"""

from __future__ import annotations

import os
from collections import defaultdict
from enum import StrEnum

import pytest
from support import examples

SIDES = ("sync", "async")
TABLE = 2
"""Rows that make a table."""
THOROUGH = ("tests/chaos/", "tests/conformance/")


class Part(StrEnum):
    """What ``--part`` knows."""

    QUICK = "quick"
    THOROUGH = "thorough"
    CORE = "core"
    BEYOND_CORE = "beyond-core"
    """What is marked ``oldest`` and no part of the core, each row of a table on one side."""


class Parts:
    """The hooks: deselect what is in another part."""

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        parser.addoption("--part", type=Part, choices=list(Part), help="see tests/support/parts.py")

    def pytest_configure(self, config: pytest.Config) -> None:
        """Before any module of tests is imported."""
        if config.getoption("--part") in {Part.QUICK, Part.CORE}:
            os.environ.setdefault(examples.PROFILE, examples.QUICK)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        part = config.getoption("--part")
        if part is None:
            return
        kept = chosen(items, part)
        left_out = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept


def chosen(items: list[pytest.Item], part: Part) -> list[pytest.Item]:
    """Those of one part, in the same order."""
    if part in {Part.QUICK, Part.THOROUGH}:
        quick = in_turn([item for item in items if not is_thorough(item)])
        return [item for item in items if (item in quick) == (part == Part.QUICK)]
    oldest = [item for item in items if item.get_closest_marker("oldest")]
    core = one_each([item for item in oldest if not is_thorough(item)])
    wanted = core if part == Part.CORE else in_turn(oldest) - core
    return [item for item in items if item in wanted]


def is_thorough(item: pytest.Item) -> bool:
    """Whatever its parameters."""
    return item.nodeid.startswith(THOROUGH) or any(
        item.get_closest_marker(name) for name in ("thorough", "alone")
    )


def one_each(items: list[pytest.Item]) -> set[pytest.Item]:
    """One case of each function, sync in one function and async in the next."""
    core = set()
    for number, cases in enumerate(_by_function(items).values()):
        wanted = SIDES[number % 2]
        core.add(next((case for case in cases if side(case) == wanted), cases[0]))
    return core


def in_turn(items: list[pytest.Item]) -> set[pytest.Item]:
    """All but what a table of both sides has on the other side."""
    quick = set()
    for cases in _by_function(items).values():
        rows: dict[tuple[str, ...], int] = {}
        for case in cases:
            rows.setdefault(row(case), len(rows))
        for case in cases:
            if side(case) in {None, SIDES[rows[row(case)] % 2]} or len(rows) < TABLE:
                quick.add(case)
    return quick


def side(item: pytest.Item) -> str | None:
    """The half of pymongo that a case is about, if its parameters say so."""
    return next((part for part in _parameters(item) if part in SIDES), None)


def row(item: pytest.Item) -> tuple[str, ...]:
    """All parameters but the side."""
    return tuple(part for part in _parameters(item) if part not in SIDES)


def _parameters(item: pytest.Item) -> list[str]:
    callspec = getattr(item, "callspec", None)
    return [] if callspec is None else callspec.id.split("-")


def _by_function(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    functions = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    return functions
