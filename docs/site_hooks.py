"""What mkdocs.yml cannot say: no pages for what is outside of docs/."""

from __future__ import annotations

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:  # noqa: ARG001 - mkdocs' names
    """A link that leaves docs/: its text stays, its target is named."""
    folder = posixpath.dirname(page.file.src_uri)

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        if "://" in target or not path.startswith("../"):
            return link[0]
        name = path.removeprefix("../")
        return text if name in text else f"{text} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", named, markdown)
