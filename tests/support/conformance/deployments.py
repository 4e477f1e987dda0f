"""What the cases run on: the test bed's deployments, each started when the first case needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pymongo
from support.conformance.matching import only_known

from pymongo_resilience.testbed import Deployment, EmbeddedServer, ReplicaSet, ShardedCluster

Requirement = Mapping[str, Any]
USER: Final = {"username": "root", "password": "only-for-the-tests"}


@dataclass(frozen=True)
class Bed:
    """One deployment that runs, and a client that looks past the library."""

    topology: str
    version: tuple[int, ...]
    deployment: Deployment
    control: pymongo.MongoClient[Any]
    credentials: dict[str, str] = field(default_factory=dict)

    def uri(self, *, all_routers: bool = True) -> str:
        """What a client connects to; of a sharded cluster one router, where all are too many."""
        if self.topology == "sharded" and not all_routers:
            return f"mongodb://{self.deployment.members[0].host_and_port}/"
        return self.deployment.uri

    def meets(self, alternatives: Sequence[Requirement]) -> bool:
        """Whether one of several ``runOnRequirements`` holds; none at all always do."""
        return not alternatives or any(map(self._meets_all_of, alternatives))

    def _meets_all_of(self, requirement: Requirement) -> bool:
        only_known(requirement, _REQUIREMENTS, "runOnRequirements")
        return all(_REQUIREMENTS[name](self, value) for name, value in requirement.items())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


_REQUIREMENTS: Final[dict[str, Callable[[Bed, Any], bool]]] = {
    "auth": lambda bed, expected: expected == bool(bed.credentials),
    "maxServerVersion": lambda bed, expected: bed.version <= _version(expected),
    "minServerVersion": lambda bed, expected: bed.version >= _version(expected),
    "serverless": lambda bed, expected: expected in {"allow", "forbid"},
    "topologies": lambda bed, expected: bed.topology in expected,
}


class Beds:
    """All deployments there are, in the order of preference; ends them with its ``with`` block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._starters: list[Callable[[], contextlib.AbstractContextManager[Bed]]] = [
            lambda: _running("replicaset"),
            lambda: _running("replicaset", USER),
            lambda: _running("sharded"),
        ]
        self._started: list[Bed] = []

    def that_meets(self, *groups: Sequence[Requirement]) -> Bed:
        """The first that meets all groups of requirements.

        Where none does, the first of all: what it lacks, plain pymongo shows as well.
        """
        for bed in self:
            if all(map(bed.meets, groups)):
                return bed
        return self._started[0]

    def __iter__(self) -> Iterator[Bed]:
        for index, start in enumerate(self._starters):
            if index == len(self._started):
                self._started.append(self._stack.enter_context(start()))
            yield self._started[index]

    def __enter__(self) -> Beds:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def _running(topology: str, user: Mapping[str, str] | None = None) -> Iterator[Bed]:
    named = {} if user is None else {"user": user["username"], "password": user["password"]}
    with EmbeddedServer(**named) as server:
        # One member: every failure meets the server that the retry goes to as well.
        deployment: Deployment = (
            ReplicaSet(server.address, members=1)
            if topology == "replicaset"
            else ShardedCluster(server.address)
        )
        with deployment, pymongo.MongoClient[Any](server.uri, appname="control") as control:
            # The text of a pre-release is not only numbers: 9.0.0-alpha0.
            version = tuple(control.server_info()["versionArray"][:3])
            yield Bed(topology, version, deployment, control, dict(user or {}))
