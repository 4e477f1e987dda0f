"""The public names: a dozen for every application, the others in modules by what they are for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import pymongo_resilience

PACKAGE = Path(pymongo_resilience.__file__).parent
MODULES = ("errors", "events", "strategies", "client_status")


def test_no_module_has_the_name_of_a_function() -> None:
    """Once it was imported, it would stand in the place of the function."""
    modules = {module.stem for module in PACKAGE.iterdir()}
    assert modules & set(pymongo_resilience.__all__) == set()


def test_there_are_a_dozen() -> None:
    assert len(set(pymongo_resilience.__all__) - {"__version__"}) <= 12


@pytest.mark.parametrize("module", MODULES)
def test_each_of_the_others_is_in_one_module(module: str) -> None:
    others = [each for each in MODULES if each != module]
    elsewhere = {
        name for each in others for name in import_module(f"pymongo_resilience.{each}").__all__
    }
    assert set(import_module(f"pymongo_resilience.{module}").__all__) & elsewhere == set()
