"""A Grafana dashboard and Prometheus rules over the library's metrics, as files to take along.

Queries and rules use the names that OpenTelemetry's exporters to Prometheus give the metrics.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

DASHBOARD: Final = "pymongo-resilience.grafana.json"
RULES: Final = "pymongo-resilience.rules.yml"
FILES: Final = (DASHBOARD, RULES)


class ExistingFilesError(Exception):
    """Files in the way, whose content is another one."""


def content(name: str) -> str:
    """The text of one of ``FILES``."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def write(directory: Path, *, force: bool = False) -> list[Path]:
    """Write all of ``FILES``, and answer with their paths; the directory is made if its parent is
    there.

    Nothing is written, and ExistingFilesError raised, where a file of that name has another
    content, unless ``force`` says to overwrite it. Raises OSError where it cannot be written.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError("not a directory")
    directory.mkdir(exist_ok=True)
    wanted = {directory / name: content(name) for name in FILES}
    in_the_way = [path for path, text in wanted.items() if not force and _differs(path, text)]
    if in_the_way:
        raise ExistingFilesError(", ".join(str(path) for path in in_the_way))
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return list(wanted)


def _differs(path: Path, text: str) -> bool:
    if not path.is_file():
        return path.exists()
    return path.read_bytes() != text.encode()
