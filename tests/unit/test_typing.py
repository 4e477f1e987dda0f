"""The public face has types, and the uses that the session `types` checks are all of it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pymongo_resilience

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE = Path(__file__).parents[1] / "typing" / "usage.py"
ENGINE = Path(pymongo_resilience.__file__).parent


@pytest.mark.parametrize("name", pymongo_resilience.__all__)
def test_the_whole_public_face_is_used(name: str) -> None:
    uses = USAGE.read_text().partition("# Strategies")[2]
    assert re.search(rf"\b{name}\b", uses)


@pytest.mark.parametrize("face", [pymongo_resilience.instrument, pymongo_resilience.override])
def test_arguments_come_by_keyword(face: Callable[..., object]) -> None:
    """But for the configuration: what has no order can be added to without breaking anyone."""
    by_position = [
        name
        for name, parameter in inspect.signature(face).parameters.items()
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
    ]
    assert by_position in (["config"], [])


def test_the_package_says_that_it_is_typed() -> None:
    assert (ENGINE / "py.typed").is_file()
