"""The test bed's pytest plugin: deployments as fixtures, and faults as a marker:

    @pytest.mark.mongo_faults(CutAfter("insert"))
    def test_an_order_is_placed_once(mongo_replica_set, mongo_database):
        orders = MongoClient(mongo_replica_set.uri)[mongo_database].orders
        ...

All deployments share one server for the whole session. A test fails if one of its faults never
occurred. Needs the extra ``testbed``, which is imported only if a test uses a fixture.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import os
import random
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.tools.testbed import (
        Deployment,
        EmbeddedServer,
        ReplicaSet,
        ShardedCluster,
    )

MARKER: Final = "mongo_faults"
SCOPES: Final = ("function", "class", "module", "package", "session")
_RUNNING: Final = pytest.StashKey["list[Deployment]"]()
_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("mongodb", "MongoDB test bed").addoption(
        "--mongo-scope",
        choices=SCOPES,
        default="function",
        help="scope of mongo_replica_set and mongo_sharded_cluster (default: function)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUNNING] = []
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*faults, on='all', seed=None): inject faults when the test begins. A fault may "
        "also be a recipe from pymongo_resilience.drills or the name of a drill. The seed makes "
        "random faults and their order reproducible",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test with the marker a deployment, even if it uses no fixture."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is not None and MARKER not in names and item.get_closest_marker(MARKER):
            names.append(MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Inject the faults after all fixtures are set up, and fail the test if one never occurred."""
    deployments = item.config.stash[_RUNNING]
    passed = False
    try:
        for marker in reversed(list(item.iter_markers(MARKER))):
            _inject(item, *marker.args, **marker.kwargs)
        result = yield
        passed = True
    finally:
        unstruck = []
        for each in deployments:
            try:
                each.clear(strict=True)
            except _testbed().TestbedError as error:
                unstruck.append(str(error))
        # If the test has failed already, its own error is more informative.
        if passed and unstruck:
            pytest.fail("; ".join(unstruck), pytrace=False)
    return result


def _inject(item: pytest.Item, *faults: Any, on: Any = "all", seed: int | None = None) -> None:
    deployment: Deployment = getattr(item, "funcargs", {})[MARKER]
    rng = random.Random(seed)  # noqa: S311 - random faults, not secrets
    shuffled = rng.sample(faults, len(faults)) if seed is not None else list(faults)
    item.add_report_section("call", MARKER, f"{', '.join(map(str, shuffled))}, seed {seed}")
    for fault in shuffled:
        if isinstance(fault, str):
            from pymongo_resilience_instrumentation.tools.testbed.drills import drill  # noqa: PLC0415 - an extra

            deployment.play(drill(fault, deployment))
        elif callable(fault):
            strike = fault(rng)
            deployment.inject(strike.fault(), strike.on)
        else:
            # All parametrized tests share one marker, so each needs its own copy of the fault.
            deployment.inject(copy.deepcopy(fault), on)


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    del fixture_name
    return config.getoption("--mongo-scope")


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[EmbeddedServer]:
    """The server behind all deployments. Connections to it are not affected by faults."""
    with _testbed().EmbeddedServer() as server:
        yield server


@pytest.fixture(scope=_scope)
def mongo_replica_set(
    mongo_server: EmbeddedServer, pytestconfig: pytest.Config
) -> Iterator[ReplicaSet]:
    """A replica set with three members on this machine. Connect to ``mongo_replica_set.uri``."""
    yield from _running(pytestconfig, _testbed().ReplicaSet(mongo_server.address))


@pytest.fixture(scope=_scope)
def mongo_sharded_cluster(
    mongo_server: EmbeddedServer, pytestconfig: pytest.Config
) -> Iterator[ShardedCluster]:
    """A sharded cluster with two routers on this machine. Connect to
    ``mongo_sharded_cluster.uri``.
    """
    yield from _running(pytestconfig, _testbed().ShardedCluster(mongo_server.address))


@pytest.fixture
def mongo_database(mongo_server: EmbeddedServer) -> Iterator[str]:
    """The name of a database for this test, which is dropped afterwards."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield name
    ask = _testbed().processes.ask
    # A transaction that the test has left open would block dropping the database.
    ask(mongo_server.address, {"killAllSessions": [], "$db": "admin"})
    ask(mongo_server.address, {"dropDatabase": 1, "$db": name})


@pytest.fixture
def mongo_faults(request: pytest.FixtureRequest) -> Deployment:
    """The test's deployment: the sharded cluster if the test uses one, else the replica set."""
    cluster = "mongo_sharded_cluster"
    wanted = cluster if cluster in request.fixturenames else "mongo_replica_set"
    deployment: Deployment = request.getfixturevalue(wanted)
    return deployment


def _testbed() -> ModuleType:
    """Import the test bed, an optional extra, only when a test needs it."""
    return importlib.import_module("pymongo_resilience_instrumentation.tools.testbed")


def _running(config: pytest.Config, deployment: Deployment) -> Iterator[Any]:
    with deployment:
        config.stash[_RUNNING].append(deployment)
        yield deployment
        config.stash[_RUNNING].remove(deployment)
