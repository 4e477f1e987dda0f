"""Draws the panels as a Grafana dashboard: ``python -m`` with this module's name writes the file.

Source: Grafana, "Dashboard JSON model" (schema version 39, Grafana 11).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import DASHBOARD
from .panels import ROWS
from .queries import ALL, DURATION

if TYPE_CHECKING:
    from .queries import Panel, Query

WIDTH = 24
"""Columns of a dashboard."""
PANEL = (8, 8)
"""Columns and lines of a panel."""
OPERATIONS = f"{DURATION}_count"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
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
    return [
        {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"},
        # By these Prometheus distinguishes processes: the same server and client in each of them.
        _variable("job", OPERATIONS, "job"),
        _variable("instance", OPERATIONS + '{job=~"$job"}', "instance"),
        # A client is a number in the names of its pools.
        _variable(
            "client",
            f"db_client_connection_count{ALL}",
            "db_client_connection_pool_name",
            "/#([0-9]+)$/",
        ),
        _variable("server", f"pymongo_resilience_server_state{ALL}", "server_address"),
        _variable("namespace", OPERATIONS + ALL, "db_namespace"),
    ]


def _variable(name: str, series: str, label: str, regex: str = "") -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "regex": regex,
        "refresh": 2,  # whenever the time range changes
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
    columns, lines = PANEL
    for title, panels in ROWS.items():
        drawn.append(
            {
                "id": next(ids),
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for start in range(0, len(panels), WIDTH // columns):
            for number, panel in enumerate(panels[start : start + WIDTH // columns]):
                drawn.append(_panel(panel, next(ids), number * columns, y))
            y += lines
    return drawn


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": PANEL[0], "h": PANEL[1]},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            _target(query, letter) for query, letter in zip(panel.queries, "ABCDEF", strict=False)
        ],
    }


def _target(query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "exemplar": query.exemplars,
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name(DASHBOARD).write_text(text(), encoding="utf-8")
