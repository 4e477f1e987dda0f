"""A Grafana dashboard and Prometheus rules for the library's metrics.

Queries and rules use the names that OpenTelemetry's Prometheus exporters give the metrics. Source:
Grafana, "Dashboard JSON model" (schema version 39, Grafana 11).
"""

from __future__ import annotations

import itertools
import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from .panels import ALL, OPERATIONS, ROWS, Panel

DASHBOARD: Final = "pymongo-resilience.grafana.json"
RULES: Final = "pymongo-resilience.rules.yml"
FILES: Final = (DASHBOARD, RULES)
WIDTH: Final = 24
"""Columns of a dashboard."""
_PANEL: Final = {"w": 8, "h": 8}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class ExistingFilesError(Exception):
    """Files with other content exist already."""


def content(name: str) -> str:
    """Return the text of one of ``FILES``."""
    if name == DASHBOARD:
        return json.dumps(dashboard(), indent=2) + "\n"
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def write(directory: Path, *, force: bool = False) -> list[Path]:
    """Write all of ``FILES`` and return their paths. Creates the directory if its parent exists.

    Args:
        directory: Where to write them.
        force: Overwrite files with other content.

    Raises:
        ExistingFilesError: If files with other content exist and ``force`` is false. Nothing is
            written.
        OSError: If a file cannot be written.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError("not a directory")
    directory.mkdir(exist_ok=True)
    wanted = {directory / name: content(name) for name in FILES}
    others = [
        str(path)
        for path, text in wanted.items()
        if path.exists() and not (path.is_file() and path.read_bytes() == text.encode())
    ]
    if others and not force:
        raise ExistingFilesError(", ".join(others))
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return list(wanted)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    return {
        "uid": "pymongo-resilience",
        "title": "pymongo-resilience",
        "description": "Operations, retries, servers and pools of instrumented pymongo clients.",
        "tags": ["mongodb", "pymongo"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    operations = f"{OPERATIONS}_count"
    return [
        {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
        # Prometheus distinguishes processes by these two: the same server and client appear in each
        # of them.
        _variable("job", operations, "job"),
        _variable("instance", operations + '{job=~"$job"}', "instance"),
        _variable(
            "client",
            f"db_client_connection_count{ALL}",
            "db_client_connection_pool_name",
            "/#([0-9]+)$/",
        ),
        _variable("server", f"pymongo_resilience_server_state{ALL}", "server_address"),
        _variable("namespace", operations + ALL, "db_namespace"),
    ]


def _variable(name: str, series: str, label: str, regex: str = "") -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        # Refresh when the time range changes.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, Any]]:
    drawn: list[dict[str, Any]] = []
    ids = itertools.count(1)
    y = 0
    for title, panels in ROWS.items():
        head = {"id": next(ids), "type": "row", "title": title, "collapsed": False}
        drawn.append({**head, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []})
        y += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number, WIDTH // _PANEL["w"])
            at = {"x": column * _PANEL["w"], "y": y + line * _PANEL["h"]}
            drawn.append(_panel(panel, next(ids), at))
        y = drawn[-1]["gridPos"]["y"] + _PANEL["h"]
    return drawn


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": at | _PANEL,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": letter,
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "exemplar": query.exemplars,
            }
            for query, letter in zip(panel.queries, "ABCDEF", strict=False)
        ],
    }
