"""Forks while the ``killCursors`` of a cursor's ``close()`` is in flight: it belongs to no call.

In the thread that sent it: another's number may be a child's thread's as well, but only by chance.
A task of an async client has no successor in the child. Arguments: URI, database.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from common import Telemetry, client, say
from pymongo.monitoring import CommandListener

import pymongo_resilience


class Unwound(BaseException):
    """Leaves the command in the child."""


class Forking(CommandListener):
    """Hears of the reply before the library does, so that its span has not ended."""

    def started(self, event: Any) -> None: ...

    def succeeded(self, event: Any) -> None:
        if event.command_name == "killCursors" and os.fork() == 0:
            raise Unwound

    def failed(self, event: Any) -> None: ...


def close_cursor(one: Any, database: str) -> None:
    cursor = one[database].coll.find(batch_size=1)
    cursor.next()
    cursor.close()


def main(uri: str, database: str) -> None:
    pymongo_resilience.instrument()
    telemetry = Telemetry()
    ours = client(uri, event_listeners=[Forking()])
    ours[database].coll.insert_many([{}, {}])

    def killed() -> list[int]:
        """The cursors whose end has been exported, by what tells the spans apart."""
        spans = telemetry.exporter.get_finished_spans()
        return [span.context.span_id for span in spans if span.name == "killCursors"]

    read, write = os.pipe()
    try:
        close_cursor(ours, database)
    except Unwound:
        close_cursor(client(uri), database)
        os.write(write, json.dumps(killed()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        say({"child": json.load(pipe), "parent": killed()})
    ours.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
