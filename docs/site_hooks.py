"""What mkdocs.yml cannot say: no pages for what is outside of docs/, and room for wide tables."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
REPOSITORY: str = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
WIDE = 4
"""Columns of a table from which on its page has no table of contents beside it."""
LONG = 25
"""Characters of a name from which on a table may break it."""


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:  # noqa: ARG001 - mkdocs' names
    """A link that leaves docs/ goes to the repository, or names its file."""
    rows = re.findall(r"^\|.*\|$", markdown, re.MULTILINE)
    if any(row.count(" | ") >= WIDE - 1 for row in rows):
        page.meta.setdefault("hide", []).append("toc")
    folder = posixpath.dirname(page.file.src_uri)

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path, mark, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if "://" in target or not path.startswith("../"):
            return link[0]
        name = path.removeprefix("../")
        if REPOSITORY:
            return f"[{text}]({REPOSITORY}/blob/main/{name}{mark}{anchor})"
        return text if name in text else f"{text} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", named, markdown)


def on_post_page(output: str, **kwargs: Any) -> str:  # noqa: ARG001 - mkdocs' names
    """Long names in tables may be broken, after a dot, or else after an underscore."""

    def in_cell(cell: re.Match[str]) -> str:
        return re.sub(rf"(?<=<code>)[^<]{{{LONG},}}(?=</code>)", in_code, cell[0])

    def in_code(name: re.Match[str]) -> str:
        mark = "[.=]" if "." in name[0] else "[_=]"
        return re.sub(rf"(?<=\w)({mark})(?=\w)", r"\1<wbr>", name[0])

    return re.sub(r"<td.*?</td>", in_cell, output, flags=re.DOTALL)
