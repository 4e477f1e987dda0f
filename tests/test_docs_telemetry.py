"""docs/telemetry.md: every operation and every attribute is in it, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation import public_operations
from pymongo_resilience_instrumentation.telemetry.client_tracing import (
    ENABLED_VARIABLE,
    LENGTH_VARIABLE,
)
from support.operations_table import rows, section
from support.telemetry_names import NAMES

DOCUMENT = (Path(__file__).parent.parent / "docs" / "telemetry.md").read_text()
WITHOUT_A_METHOD = {
    "getMore",
    "killCursors",
    "endSessions",
    "commitTransaction",
    "abortTransaction",
}

COMMANDS = ("db.mongodb.", "db.query.", "db.command.", "network.", "exception.")


def _named(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_operations_are_those_of_the_methods() -> None:
    listed = _named(
        [row[0] for row in rows(section(DOCUMENT, "Operations").split("| attribute")[0])]
    )
    tables = (public_operations.COLLECTION, public_operations.DATABASE, public_operations.CLIENT)
    assert listed == {each.name for table in tables for each in table.values()} | WITHOUT_A_METHOD


@pytest.mark.parametrize("layer", ["Operations", "Commands"])
def test_the_attributes_have_the_names_of_the_contract(layer: str) -> None:
    table = "| attribute" + section(DOCUMENT, layer).split("| attribute")[1]
    listed = _named([row[0] for row in rows(table)])
    assert listed <= NAMES
    beginnings = {"Operations": ("db.operation.", "exception."), "Commands": COMMANDS}[layer]
    assert {name for name in NAMES if name.startswith(beginnings)} <= listed


def test_the_variables_are_named() -> None:
    assert f"`{ENABLED_VARIABLE}`" in DOCUMENT
    assert f"`{LENGTH_VARIABLE}`" in DOCUMENT
