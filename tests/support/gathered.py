"""What tests gather for the end of a run, added up across the processes of pytest-xdist."""

from __future__ import annotations

from typing import Any

import pytest

GATHERED: pytest.StashKey[dict[str, list[Any]]] = pytest.StashKey()


def gather(config: pytest.Config, topic: str, entry: Any) -> None:
    """Keep an entry, of what JSON knows, for the end of the run."""
    config.stash[GATHERED].setdefault(topic, []).append(entry)


class Gathering:
    """The hooks: each process sends what it has, and the one that the user started shows it."""

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[GATHERED] = {}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["gathered"] = session.config.stash[GATHERED]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A process that crashed has sent nothing.
        for topic, entries in getattr(node, "workeroutput", {}).get("gathered", {}).items():
            node.config.stash[GATHERED].setdefault(topic, []).extend(entries)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        for line in _lines(config):
            terminalreporter.write_line(line)


def _lines(config: pytest.Config) -> list[str]:
    # Imported here: only where such tests ran, what they need is there.
    gathered = config.stash[GATHERED]
    lines = []
    if "conformance" in gathered:
        from support.conformance import verdicts  # noqa: PLC0415

        found = [verdicts.Verdict(**entry) for entry in gathered["conformance"]]
        lines += verdicts.summary(found)
    return lines + gathered.get("figures", [])
