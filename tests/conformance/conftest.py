"""One test for every case of the specifications, on both sides of pymongo, and their count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
from support.conformance import verdicts
from support.conformance.deployments import Beds
from support.conformance.runner import Case
from support.conformance.selection_cases import SelectionCase, selects_as_told
from support.conformance.verdicts import Verdict
from support.fixtures import quick_monitors
from support.gathered import gather


@pytest.fixture(scope="session")
def beds() -> Iterator[Beds]:
    with Beds() as started:
        yield started


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> str:
    """The side of pymongo, by its name: a case makes its clients itself."""
    return str(request.param)


@pytest.fixture
def conforms(beds: Beds, api: str, pytestconfig: pytest.Config) -> Callable[[Case], None]:
    """``conforms(case)``: passes, fails, or skips what plain pymongo fails as well."""

    def check(case: Case) -> None:
        bed = beds.that_meets(*case.requirements)
        verdict = verdicts.judge(case, bed, api)
        gather(pytestconfig, "conformance", asdict(verdict))
        if verdict.result == "not runnable":
            pytest.skip(f"plain pymongo fails too: {verdict.plain}")
        assert verdict.result == "passed", str(verdict)

    return check


@pytest.fixture
def engine_conforms(pytestconfig: pytest.Config) -> Callable[[SelectionCase], None]:
    """``engine_conforms(case)``: passes or fails; what has no server cannot lack one."""

    def check(case: SelectionCase) -> None:
        failure = None
        try:
            selects_as_told(case.document)
        except Exception as error:  # noqa: BLE001 - whatever it is, the case has failed by it
            failure = f"{type(error).__name__}: {error}"
        verdict = Verdict(
            case.suite, case.file, str(case), "engine", "failed" if failure else "passed", failure
        )
        gather(pytestconfig, "conformance", asdict(verdict))
        assert verdict.result == "passed", failure

    return check
