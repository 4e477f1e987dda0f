"""hatch_build.py: what a package index shows follows from one setting of pyproject.toml."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ADDRESS = "https://code.example/owner/name"


@pytest.fixture(scope="module")
def metadata() -> Any:
    """``metadata(repository)``, as the build makes it."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def made(repository: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        module.CustomMetadataHook(str(ROOT), {"repository": repository}).update(found)
        return found

    return made


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("#")]


def test_with_an_address_every_link_is_absolute_and_leads_to_a_file(metadata: Any) -> None:
    found = metadata(ADDRESS)
    shown = found["readme"]["text"]

    assert found["readme"]["content-type"] == "text/markdown"
    assert len(links(shown)) == len(links(README)) > 10
    for link in [*links(shown), *found["urls"].values()]:
        path = re.fullmatch(rf"{ADDRESS}(?:/(?:blob|raw)/main/(.*?)(?:#.*)?|/issues)?", link)
        assert path, link
        assert path[1] is None or (ROOT / path[1]).exists()
    assert f"]({ADDRESS}/raw/main/docs/trace.svg)" in shown


def test_without_one_no_link_leads_nowhere(metadata: Any) -> None:
    found = metadata("")

    assert links(found["readme"]["text"]) == []
    assert "timeouts (`docs/timeouts.md`)" in found["readme"]["text"]
    assert found["urls"] == {}
