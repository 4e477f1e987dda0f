"""What the texts want documented is documented, and what the documents list is whole.

The operations of docs/retries.md are compared with what the library does in
tests/integration/test_documented_operations.py, its reasons with the code in test_docs.py.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from operations_table import documented, rows, section
from pymongo_resilience_instrumentation.read_commands import ALLOWED
from pymongo_resilience_instrumentation.reasons import ROWS

from pymongo_resilience import Config, RetryReason, backoff, budget
from pymongo_resilience.config import STRATEGIES
from pymongo_resilience.orchestrator import Rule

ROOT = Path(__file__).parent.parent
RETRIES = "docs/retries.md"
DEVIATIONS = "docs/deviations.md"
BACKPRESSURE = "Client Backpressure, Documentation"
UPGRADE = "Client Backpressure, Backwards Compatibility"
READS = "Retryable Reads, Documentation"
TIMEOUTS = "Client-Side Operations Timeout"
DEADLINES = "docs/deadlines.md"
RFC = "Couchbase RFC 0049, Fail Fast (Terminal Errors)"


@dataclass(frozen=True)
class Must:
    """One sentence of a text about documentation, in our words, and what must be said where."""

    id: str
    text: str
    sentence: str
    file: str
    heading: str
    phrases: tuple[str, ...]


MUSTS = [
    Must("reads-1", READS, "all reads that are retried are named", RETRIES, "Reads",
         ("Retried unless the client says `retryReads=false`",)),
    Must("reads-2", READS, "getMore is never retried", RETRIES, "Never retried",
         ("`getMore`", "its repetition would skip documents")),
    Must("reads-3", READS, "the generic runner is never retried, even with a read", RETRIES,
         "Never retried", ("the generic runCommand", "even if it is a read")),
    Must("reads-4", READS, "mapReduce is not retried", RETRIES, "mapReduce",
         ("is run by `command`, and is not retried",)),
    Must("reads-5", READS, "what a retried runner for reads does with mapReduce", RETRIES,
         "mapReduce", ("repeat a mapReduce that it is handed", "whose list it is not on")),
    Must("reads-6", READS, "repeated, a mapReduce may degrade performance: the server does not end "
         "the first one early", RETRIES, "mapReduce",
         ("does not notice that the client of a running mapReduce has gone",
          "loads such a server twice", "`retryReads=false` is the remedy")),
    Must("reads-7", READS, "release notes: retry logic of one's own may have to be adjusted",
         "CHANGELOG.md", "Changed",
         ("Adjust retry logic of your own before you upgrade", "retrying for far too long")),
    Must("reads-8", READS, "a loop of n rounds repeats a read up to 2n times", RETRIES,
         "Take your own retry loop off", ("| n * 2 |", "it multiplies with them")),
    Must("overload-1", BACKPRESSURE, "all commands are retried on overload", RETRIES, "Overload",
         ("All commands are retried when the server is overloaded",)),
    Must("overload-2", BACKPRESSURE, "release notes: retry logic of one's own may have to be "
         "adjusted", "CHANGELOG.md", "Changed", ("n * 6 under overload",)),
    Must("overload-3", BACKPRESSURE, "the upgrade notes say so too", RETRIES, "From plain pymongo",
         ("Loops of your own multiply", "retrying for far too long")),
    Must("overload-4", UPGRADE, "users should upgrade to a driver that supports backpressure",
         RETRIES, "From an older pymongo, or to a newer server",
         ("Upgrade", "officially supports backpressure", "pymongo 4.17 or newer")),
    Must("overload-5", UPGRADE, "who does not may have to handle more overload errors", RETRIES,
         "From an older pymongo, or to a newer server",
         ("Who does not upgrade", "handles errors", "there will be more of them",
          "SystemOverloadedError")),
    Must("strategy-1", RFC, "who relies on exactly these errors copies the class", RETRIES,
         "How often, and how long between", ("copy the class",)),
    Must("strategy-2", "Couchbase RFC 0049, (No) Reordering Guarantees", "no order is kept",
         RETRIES, "How often, and how long between", ("nothing keeps them in the order",)),
    Must("timeouts-1", TIMEOUTS, "what changes where there is a timeout", DEADLINES,
         "What changes once there is one",
         ("`OperationTimeoutError`", "set aside", "as many attempts as fit", "Without a timeout")),
    Must("timeouts-2", TIMEOUTS, "which options are deprecated", DEADLINES,
         "What changes once there is one",
         ("deprecated", "`socketTimeoutMS`", "`waitQueueTimeoutMS`", "`wtimeout`", "`maxTimeMS`",
          "`maxCommitTimeMS`")),
    Must("timeouts-3", TIMEOUTS, "what a timeout does not end", DEADLINES, "What it cannot reach",
         ("Name resolution.", "OCSP.", "Kerberos and cloud logins.", "Client-side encryption.")),
    Must("timeouts-4", TIMEOUTS, "after a timeout of a change stream: next again, or a new one",
         "README.md", "Cursors and change streams",
         ("call `next()` again", "or close it and make a new one")),
    Must("timeouts-5", TIMEOUTS, "before any event: a new one with a higher timeout", "README.md",
         "Cursors and change streams",
         ("before any event was received", "make a new one with a higher timeout",
          "does not get through its existing oplog")),
    Must("timeouts-6", TIMEOUTS, "what the session keeps is not to be changed", "README.md",
         "What happens on failure",
         ("What the library keeps on a session is private", "transactions end too soon or too")),
    Must("timeouts-7", TIMEOUTS, "operations without the session are not covered", "README.md",
         "What happens on failure", ("Operations *without* the session are not covered",)),
    Must("timeouts-8", TIMEOUTS, "a timeout inside of with_transaction is an error", "README.md",
         "What happens on failure",
         ("operations *with its session* share", "cannot be given one of their own",
          "`InvalidOperation`")),
    Must("timeouts-9", TIMEOUTS, "a slow stream of one's own can take longer", "README.md",
         "What happens on failure",
         ("`upload_from_stream` and `download_to_stream` cannot interrupt your own stream",)),
    Must("timeouts-10", TIMEOUTS, "a maxTimeMS in a document for command()", "README.md",
         "What happens on failure",
         ("A `maxTimeMS` inside of a document for `command()` is overwritten without a word",)),
]  # fmt: skip


def read(file: str) -> str:
    return (ROOT / file).read_text()


def flat(text: str) -> str:
    """Without line breaks and emphasis."""
    return " ".join(text.replace("**", "").split())


@pytest.mark.parametrize("must", MUSTS, ids=lambda must: must.id)
def test_what_a_text_wants_documented_is(must: Must) -> None:
    said = flat(section(read(must.file), must.heading))
    assert [phrase for phrase in must.phrases if phrase not in said] == [], must.sentence


def test_every_must_has_a_number_of_its_own() -> None:
    assert len({must.id for must in MUSTS}) == len(MUSTS)


def test_the_read_commands_of_the_runner_are_those_listed() -> None:
    prefix = "Database.cursor_command with "
    listed = {name.removeprefix(prefix) for name in documented() if name.startswith(prefix)}
    assert listed == ALLOWED | {"any other command"}


def test_every_reason_and_every_code_is_in_the_table() -> None:
    table = rows(section(read(RETRIES), "Reasons"))
    by_reason = {cells[0].strip("`"): cells for cells in table}
    assert set(by_reason) == {reason.value for reason in RetryReason}
    for row in ROWS:
        _, causes, any_write, always, _ = by_reason[row.reason.value]
        numbers = {int(number) for number in re.findall(r"(?<=[;,] )\d+|^\d+", causes)}
        assert {code.number for code in row.codes} <= numbers
        assert any_write == ("yes" if row.reason.allows_non_idempotent_retry else "no")
        assert always == ("yes" if row.reason.always_retry else "no")


def test_every_rule_has_its_row() -> None:
    listed = rows(section(read(RETRIES), "Which error you get"))
    assert [cells[0].strip("`") for cells in listed] == [rule.value for rule in Rule]
    assert all(len(cells) == 3 and all(cells) for cells in listed)


def test_every_strategy_has_its_row() -> None:
    tables = section(read(RETRIES), "How often, and how long between").split("\n\n")
    listed = [cells[0] for table in tables if "| strategy" in table for cells in rows(table)]
    assert [re.findall(r"`(\w+)`", cell)[0] for cell in listed] == list(STRATEGIES)


def test_the_defaults_are_the_constants_of_the_text() -> None:
    """Deviation D2: options, but by default what Client Backpressure says, and so documented."""
    config = Config()
    assert (config.max_retries, config.base_backoff_ms, config.max_backoff_ms) == (5, 100, 10_000)
    assert (config.retry_token_capacity, config.adaptive_retries) == (1000, False)
    assert (budget.RETURN_RATE, budget.RETRY, budget.CAPACITY) == (0.1, 1.0, 1000.0)
    longest = [backoff.overload(attempt, lambda: 1.0) for attempt in range(1, 6)]
    assert longest == [0.1, 0.2, 0.4, 0.8, 1.6]
    said = flat(section(read(RETRIES), "Overload"))
    assert "at most 0.1, 0.2, 0.4, 0.8 and 1.6 s" in said
    assert "min(10 s, 100 ms * 2^(n-1))" in said
    assert "five retries in all" in said


PARTS = ("Text", "Here", "Why", "Switch", "Tests")


def deviations() -> dict[str, dict[str, str]]:
    """The parts of each deviation, by its number."""
    headings = re.findall(r"^## (D\d+): .+$", read(DEVIATIONS), re.MULTILINE)
    titles = re.findall(r"^## (D\d+: .+)$", read(DEVIATIONS), re.MULTILINE)
    assert headings == [f"D{number}" for number in range(1, len(headings) + 1)]
    return {
        number: dict(
            re.findall(
                r"^- \*\*(\w+)\*\*:\s(.*?)(?=\n- \*\*|\Z)",
                section(read(DEVIATIONS), title).strip(),
                re.DOTALL | re.MULTILINE,
            )
        )
        for number, title in zip(headings, titles, strict=True)
    }


def test_there_are_deviations() -> None:
    assert len(deviations()) >= 13


@pytest.mark.parametrize("number", deviations())
def test_every_deviation_says_what_why_and_how_to_switch_it_off(number: str) -> None:
    parts = deviations()[number]
    assert tuple(parts) == PARTS
    assert all(parts.values())
    assert re.search(r"Retryable|Backpressure|Timeout|RFC 0049", parts["Text"]), "which text?"


@pytest.mark.parametrize("number", deviations())
def test_every_switch_of_a_deviation_has_tests_that_exist(number: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::([^`]+)`", flat(deviations()[number]["Tests"]))
    assert named
    for file, name in named:
        assert name in names_of_tests(ROOT / file), f"{file} has no {name}"


def names_of_tests(file: Path) -> set[str]:
    """Functions; and of scenarios and sentences, their names, which are the first arguments."""
    tree = ast.parse(file.read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    in_tables = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"S", "Must"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    return functions | {str(name) for name in in_tables}


def test_the_tests_of_deviations_are_found_by_name() -> None:
    """So that the check above can fail."""
    assert "test_the_tests_of_deviations_are_found_by_name" in names_of_tests(Path(__file__))
    assert "mongodb: overload waits" in names_of_tests(ROOT / "tests/unit/scenarios.py")
    assert "test_nothing_of_the_kind" not in names_of_tests(
        Path(sys.modules[__name__].__file__ or "")
    )
