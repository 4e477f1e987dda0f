"""What the child programs of the tests share; each prints one JSON line, its answer to a test."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import pymongo
import pymongo.common
from telemetry import Telemetry

__all__ = ["Child", "Telemetry", "client", "fail", "say"]

HANGS_AFTER = 30
"""Seconds. A child that has not answered by then prints where it stands, and ends."""
FAILURES = 3
"""More than the driver's one retry mends."""

APP = f"program-{os.getpid()}"
"""Of its clients and their failpoints: what another program has sent may arrive after its end."""

# As in the tests' own process: after a network error the driver would wait half a second.
pymongo.common.MIN_HEARTBEAT_INTERVAL = 0.02


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def client(uri: str, kind: Any = pymongo.MongoClient, **options: Any) -> Any:
    defaults = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 500, "appname": APP}
    return kind(uri, **{**defaults, **options})


def fail(client: Any, command: str, times: int = FAILURES) -> Any:
    """The next so many of a command end with a cut connection; awaited in async clients."""
    return client.admin.command(
        {
            "configureFailPoint": "failCommand",
            "mode": {"times": times},
            "data": {"failCommands": [command], "closeConnection": True, "appName": APP},
        }
    )


class Child:
    """Another process that runs ``work(*args)``, made here and now by ``multiprocessing``."""

    def __init__(self, method: str, work: Callable[..., Any], *args: Any) -> None:
        context: Any = multiprocessing.get_context(method)
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_send, args=(sender, work, args))
        self._process.start()
        sender.close()

    def answer(self) -> Any:
        """What the work returned; None where it raised or hung: standard error says more."""
        try:
            return self._receiver.recv()
        except EOFError:
            return None
        finally:
            self._process.join()


def _send(sender: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    # Not in the parent: a watch that is armed there cannot be armed anew in a forked child.
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    sender.send(work(*args))
