"""What all tests share: a count of named cases, shown at the end of the run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: pytest.StashKey[defaultdict[str, set[str]]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CASES] = defaultdict(set)


@pytest.fixture(scope="session")
def count_case(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """``count_case("scenarios", name)``: the end of the run says how many different ones ran."""

    def count(group: str, name: str) -> None:
        pytestconfig.stash[CASES][group].add(name)

    return count


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for group, names in sorted(config.stash[CASES].items()):
        terminalreporter.write_line(f"{group}: {len(names)}")
