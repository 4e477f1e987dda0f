"""The command ``pymongo-resilience testbed``: runs a deployment until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from .control import Control
from .deployment import Deployment
from .drills import drill, fitted, named
from .fault import whole
from .fault_catalog import FAILOVER, NETWORK, SERVER, restart
from .real_members import InFrontOf, RealReplicaSet
from .replica_set import ReplicaSet, ShardedCluster, Standalone
from .scenario import Scenario, Strike

TOPOLOGIES: Final[dict[str, Any]] = {
    "replica-set": ReplicaSet,
    "real-replica-set": RealReplicaSet,
    "sharded": ShardedCluster,
    "standalone": Standalone,
}
_DEFAULT_SEED: Final = 1
_EVERY: Final = 1.0
"""Seconds between two strikes, on average."""
_ROUND: Final = 60.0
"""Seconds of each of the consecutive scenarios."""


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Must be called in the main thread.

    Prints only the URI on standard output, in a line of its own. Information for people goes to
    standard error.

    Raises:
        ValueError: The options contradict each other.
        TestbedError: A port is in use, or the server does not start.
    """
    if options.seed is not None and not options.chaos:
        raise ValueError(
            f"seed is {options.seed!r}, but only --chaos uses it: add --chaos, or omit --seed"
        )
    seed = _DEFAULT_SEED if options.seed is None else whole("seed", options.seed, least=0)
    if options.drill is not None:
        named(options.drill)
    deployment = _deployment(options)
    control = None if options.control is None else Control(deployment, options.control)
    nothing = contextlib.nullcontext()
    with _stop_requested() as stop, deployment, control or nothing:
        sys.stdout.write(f"{deployment.uri}\n")
        sys.stdout.flush()
        _print(f"{deployment.server_description}; press Ctrl-C to end it and delete its data")
        if control is not None:
            _print(f"control: {control.url}")
        if options.drill is not None:
            _print(f"drill {options.drill}:\n{drill(options.drill, deployment)}")
            deployment.play(drill(options.drill, deployment))
        if options.chaos:
            _print(f"faults from seed {seed}, about one every {_EVERY:g} s:")
            for pause, strike in strikes(deployment, seed):
                if stop.wait(pause):
                    break
                deployment.inject(strike.fault(), strike.on)
                _print(f"{datetime.now(UTC).isoformat(timespec='milliseconds')}  {strike}")
        stop.wait()
    return 0


def strikes(deployment: Deployment, seed: int) -> Iterator[tuple[float, Strike]]:
    """Yield, without end, the seconds since the strike before and a strike that suits the
    deployment.
    """
    menu = (*NETWORK, *SERVER, *(FAILOVER if deployment.elects else [restart]))
    for number in itertools.count(seed):
        for pause, strike in Scenario.random(number, _ROUND, menu, every=_EVERY).steps:
            yield pause, fitted(strike, deployment)


def _deployment(options: argparse.Namespace) -> Deployment:
    if options.in_front_of is not None:
        return InFrontOf(options.in_front_of, port=options.port)
    kind = TOPOLOGIES[options.topology]
    made: Deployment = kind(options.server, members=options.members, port=options.port)
    return made


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """Return an event that the first SIGINT or SIGTERM sets. The second one ends the process at
    once.
    """
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
