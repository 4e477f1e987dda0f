"""What is marked is where it is looked for."""

from __future__ import annotations

import pytest


def test_what_is_marked_oldest_is_where_it_is_looked_for(request: pytest.FixtureRequest) -> None:
    """noxfile.py collects no more than these folders on the oldest pymongo."""
    marked = [item for item in request.session.items if item.get_closest_marker("oldest")]
    folders = {item.nodeid.rpartition("/test_")[0] for item in marked}
    assert folders <= {"tests/integration", "tests/unit"}


def test_what_runs_alone_is_not_marked_oldest(request: pytest.FixtureRequest) -> None:
    """On the oldest pymongo, nothing runs alone."""
    both = [
        item.nodeid
        for item in request.session.items
        if item.get_closest_marker("alone") and item.get_closest_marker("oldest")
    ]
    assert both == []
