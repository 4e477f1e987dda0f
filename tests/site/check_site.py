"""The built site, from the disk: its search finds every name, and each page is readable.

`make check-docs` builds it and runs this. Screenshots are kept in build/screenshots.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo.errors
import pytest
from support.browser import PROGRAMS, Browser, find_browser
from support.metrics_table import metrics_table
from support.telemetry_names import NAMES

from pymongo_resilience import errors
from pymongo_resilience.config import OPTIONS

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PAGES = sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))
WIDTH = 1280
SEARCHED = {
    "exceptions": [
        each.__name__
        for module in (errors, pymongo.errors)
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Exception)
        and each.__module__.startswith(("pymongo.", "pymongo_resilience."))
        and not each.__name__.startswith("_")
    ],
    "options": [each.name for each in OPTIONS],
    "metrics": list(metrics_table()),
    "attributes": sorted(name for name in NAMES if not name.startswith("opentelemetry.")),
}


def name_of(page: Path) -> str:
    return "-".join(page.relative_to(SITE).with_suffix("").parts)


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_the_reference_has_every_public_name(page: Path) -> None:
    (name,) = re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    public = set(importlib.import_module(name).__all__) - {"__version__"}
    html = (SITE / "api" / f"{page.stem}.html").read_text()
    missing = [each for each in sorted(public) if f'id="{name}.{each}"' not in html]
    assert missing == []


@pytest.fixture(scope="module")
def index() -> str:
    entries: list[dict[str, str]] = json.loads((SITE / "search" / "search_index.json").read_text())[
        "docs"
    ]
    return " ".join(re.sub(r"<[^>]+>", "", each["title"] + " " + each["text"]) for each in entries)


@pytest.mark.parametrize("kind", SEARCHED)
def test_the_search_knows_every_name(index: str, kind: str) -> None:
    missing = [each for each in SEARCHED[kind] if not re.search(rf"\b{re.escape(each)}\b", index)]
    assert missing == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


PROBLEMS = (Path(__file__).parent / "problems.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_readable(browser: Browser, page: Path, scheme: str) -> None:
    browser.show(page, width=WIDTH, scheme=scheme)
    browser.screenshot(ROOT / "build" / "screenshots" / f"{name_of(page)}-{scheme}.png")
    found: dict[str, Any] = browser.run(PROBLEMS)

    assert found["problems"] == []
    assert (found["background"] > 0.5) == (scheme == "light")


@pytest.mark.parametrize("name", ["DuplicateKeyError", "retry_budget", "db.response.status_code"])
def test_the_search_works_from_the_disk(browser: Browser, name: str) -> None:
    browser.show(SITE / "index.html", query=f"?q={name}", width=WIDTH, scheme="light")
    found: list[str] = browser.run(
        """
        new Promise((done) => {
          const look = () => {
            const links = [...document.querySelectorAll("a.md-search-result__link")];
            links.length ? done(links.map((each) => each.innerText)) : setTimeout(look, 20);
          };
          look();
        })
        """
    )
    assert [each for each in found if "Missing:" not in each]


def test_the_pages_are_there() -> None:
    documents = ROOT / "docs"
    assert {page.relative_to(SITE).with_suffix("") for page in PAGES} == {
        page.relative_to(documents).with_suffix("") for page in documents.rglob("*.md")
    }
