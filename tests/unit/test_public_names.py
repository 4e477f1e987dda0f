"""The public names: thirteen for every application, the others in modules by what they are for."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pymongo_resilience

PACKAGE = Path(pymongo_resilience.__file__).parent
ROOT = Path(__file__).parents[2]
IMPORTS = re.compile(r"^from (pymongo_resilience\S*) import ([\w, ]+)$", re.MULTILINE)
MODULES = ("errors", "events", "strategies", "client_status")


def test_no_module_has_the_name_of_a_function() -> None:
    """Once it was imported, it would stand in the place of the function."""
    modules = {module.stem for module in PACKAGE.iterdir()}
    assert modules & set(pymongo_resilience.__all__) == set()


def test_there_are_few() -> None:
    assert len(set(pymongo_resilience.__all__) - {"__version__"}) <= 13


@pytest.mark.parametrize("module", MODULES)
def test_each_of_the_others_is_in_one_module(module: str) -> None:
    others = [each for each in MODULES if each != module]
    elsewhere = {
        name for each in others for name in import_module(f"pymongo_resilience.{each}").__all__
    }
    assert set(import_module(f"pymongo_resilience.{module}").__all__) & elsewhere == set()


@pytest.mark.parametrize("document", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]))
def test_documents_import_public_names_alone(document: Path) -> None:
    """What a document shows must not change in a minor version."""
    if document.name in {"architecture.md", "decisions.md", "traps.md"}:
        return  # for people who change the library
    for module, names in IMPORTS.findall(document.read_text()):
        assert not module.startswith("pymongo_resilience_instrumentation"), module
        public = set(import_module(module).__all__)
        assert {each.strip() for each in names.split(",")} <= public, module


@pytest.mark.parametrize("module", ["deadlines", "streams", "testbed", "drills", "testing"])
def test_each_public_module_lists_its_names(module: str) -> None:
    imported = import_module(f"pymongo_resilience.{module}")
    assert all(hasattr(imported, name) for name in imported.__all__)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tracer_provider": "console"}, r"instrument\(\): tracer_provider is of type str"),
        ({"meter_provider": object()}, r"instrument\(\): meter_provider is of type object"),
        ({"listeners": [print]}, r"instrument\(\): a listener is of type"),
        ({"request_hook": 1}, r"instrument\(\): request_hook is of type int"),
        ({"config": {}}, r"instrument\(\): config is of type dict"),
        ({"timeout": 1}, r"instrument\(\) has no timeout; did you mean timeout_ms\?"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_the_function(
    arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        pymongo_resilience.instrument(**arguments)
