"""The README and the addresses that a package index shows, from one setting of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!#)[^):\s]+)\)")
"""A link or a picture of this repository: no address, and no anchor of the page itself."""
PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository: str = self.config["repository"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_an_index(text, repository),
        }
        metadata["urls"] = urls(repository)


def for_an_index(text: str, repository: str) -> str:
    """The README with absolute links; without an address, with names of files and no pictures."""

    def absolute(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        if repository:
            kind = "raw" if picture else "blob"
            return f"{picture}[{label}]({repository}/{kind}/main/{target})"
        if picture:
            return ""
        name = target.partition("#")[0]
        return label if name in label else f"{label} (`{name}`)"

    return LINK.sub(absolute, text)


def urls(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    pages = {name: f"{repository}/blob/main/{page}" for name, page in PAGES.items()}
    return {"Repository": repository, "Issues": f"{repository}/issues", **pages}
