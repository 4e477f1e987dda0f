"""Links that leave docs/ have no page on the site: their text stays, their target is named."""

from __future__ import annotations

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:  # noqa: ARG001 - mkdocs' names
    folder = posixpath.dirname(page.file.src_uri)

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        if "://" in target or not path.startswith("../"):
            return link[0]
        name = path.removeprefix("../")
        return text if name in text else f"{text} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", named, markdown)
