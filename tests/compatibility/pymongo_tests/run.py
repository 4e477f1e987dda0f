"""Run pymongo's own tests with plain pymongo and with the library on, and compare them.

    make pymongo-tests                          every module, on the emulator
    make pymongo-tests SERVER=/path/to/mongod   on a mongod, a replica set of one member
    make pymongo-tests ARGS="test_session.py"   the modules whose names contain a word
    make pymongo-tests SERVER=... ARGS="--kind sharded"   behind the mongos beside that mongod

The tests come from the source distribution of the installed pymongo. A test counts as a regression
if it passes with plain pymongo and fails with the library in two runs out of two.
``differences.toml`` beside this file lists those that may differ, each with its reason. The exit
code is 1 if there is any other, or if a listed one no longer differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pymongo

from pymongo_resilience.testbed import EmbeddedServer, TestbedError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "pymongo-tests"
DIFFERENCES = Path(__file__).with_name("differences.toml")
PLAIN = "plain"
SETUPS: Mapping[str, Mapping[str, object]] = {
    PLAIN: {},
    "driver": {"strategy": "driver"},
    "mongodb": {"strategy": "mongodb", "max_retries": 2},
    "bare": {},
    "timeout": {"timeout_ms": 20_000},
}
"""The arguments of ``instrument()``; ``plain`` does not call it."""
TEST_LIMIT = 120
"""Seconds for one test."""
MODULE_LIMIT = 1800
"""Seconds for one module, after which its process is killed."""
UNSUITABLE = {
    "test_auth_oidc.py": "needs an identity provider",
    "test_auth_spec.py": "parses connection strings and sends nothing",
    "test_fork.py": "forks while the test runner has threads",
    "test_kms_connect.py": "needs key management servers",
    "test_kms_connect_prose.py": "needs key management servers",
    "test_load_balancer.py": "needs a load balancer",
    "test_ocsp_cache.py": "needs no server",
    "test_on_demand_csfle.py": "needs credentials of a cloud",
    "test_sfp.py": "needs Atlas",
    "test_srv_polling.py": "needs public DNS records",
    "test_subinterpreters.py": "starts interpreters without the library",
    "test_typing.py": "checks types and sends nothing",
    "test_typing_strict.py": "checks types and sends nothing",
}
"""Modules that say nothing about the library on one server of ours, and why."""

Outcomes = dict[str, str]
"""By the id of a test: passed, failed or skipped."""
NewServer = Callable[[], EmbeddedServer]


CACHE_GB = 1.0
"""For a mongod: with less, large transactions fail with plain pymongo, too."""


@dataclass
class Comparison:
    """What one module showed."""

    module: str
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    """By setup."""
    regressions: dict[str, list[str]] = field(default_factory=dict)
    """By setup: tests that passed with plain pymongo, and failed twice with the library."""
    unsteady: dict[str, list[str]] = field(default_factory=dict)
    """By setup: tests that failed with the library once, and passed when they ran again."""


def main(arguments: Sequence[str]) -> int:
    """Return 0 if nothing differs but what is listed."""
    options = _options(arguments)
    source = unpacked_tests()
    modules = [each for each in suitable_modules(source) if _is_wanted(each, options.words)]
    if not modules:
        print(f"no module's name contains {' or '.join(options.words)}")
        return 2
    setups = [PLAIN, *options.setups]
    server = partial(EmbeddedServer, options.server, kind=options.kind, cache_gb=CACHE_GB)
    done: list[Comparison] = []
    lock = threading.Lock()

    def compare_and_show(module: str) -> None:
        comparison = compare(source, module, setups, server)
        with lock:
            done.append(comparison)
            _show(comparison, len(done), len(modules))

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(compare_and_show, modules))
    return report(done, setups, complete=not options.words)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="pymongo's own tests, plain and with the library")
    parser.add_argument("words", nargs="*", help="run the modules whose names contain one of these")
    parser.add_argument("--server", help="mongod=/path/to/mongod; the default is the emulator")
    parser.add_argument(
        "--kind",
        default="replica-set",
        choices=["replica-set", "standalone", "sharded"],
        help="what the mongod is; the emulator has one kind",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--setups",
        nargs="+",
        default=["driver", "mongodb"],
        choices=[each for each in SETUPS if each != PLAIN],
    )
    return parser.parse_args(arguments)


def _is_wanted(module: str, words: Sequence[str]) -> bool:
    return not words or any(word in module for word in words)


def unpacked_tests() -> Path:
    """Return the folder of the installed pymongo's source distribution, downloaded once."""
    name = f"pymongo-{pymongo.version}"
    folder = FOLDER / name
    if not (folder / "test").is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"),
                *("--no-deps", "--no-binary", ":all:", "-d", str(FOLDER)),
                f"pymongo=={pymongo.version}",
            ],
            check=True,
        )
        with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
        # What is tested is the installed pymongo.
        for package in ("bson", "gridfs", "pymongo"):
            (folder / package).rename(folder / f"source-of-{package}")
    return folder


def suitable_modules(source: Path) -> list[str]:
    """Return the modules of tests, relative to ``source``, the longest running first."""
    files = sorted(source.glob("test/test_*.py")) + sorted(source.glob("test/*/test_*.py"))
    suitable = [each for each in files if each.name not in UNSUITABLE]
    return [
        str(each.relative_to(source))
        for each in sorted(suitable, key=lambda file: -file.stat().st_size)
        if each.parent.name in {"test", "asynchronous"}
    ]


def compare(source: Path, module: str, setups: Iterable[str], server: NewServer) -> Comparison:
    """Run one module in each setup, and what fails with the library once more on both sides."""
    comparison = Comparison(module)
    for setup in setups:
        comparison.outcomes[setup] = run(source, module, setup, server)
    passed = {test for test, was in comparison.outcomes[PLAIN].items() if was == "passed"}
    for setup in setups:
        outcomes = comparison.outcomes[setup]
        failed = sorted(test for test in passed if outcomes.get(test) not in {"passed", "skipped"})
        if not failed:
            continue
        plain_again = run(source, module, PLAIN, server, failed)
        again = run(source, module, setup, server, failed)
        twice = [
            test
            for test in failed
            if plain_again.get(test) == "passed" and again.get(test) not in {"passed", "skipped"}
        ]
        comparison.regressions[setup] = twice
        comparison.unsteady[setup] = sorted(set(failed) - set(twice))
    return comparison


def run(
    source: Path, module: str, setup: str, server: NewServer, tests: Sequence[str] = ()
) -> Outcomes:
    """Run one module, or some of its tests, on a server of its own, in a process of its own."""
    slug = module.replace("/", "-").removesuffix(".py")
    results = FOLDER / "results" / f"{slug}-{setup}{'-again' if tests else ''}.xml"
    results.parent.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    log = results.with_suffix(".log")
    with server() as running, log.open("w") as output:
        host, port = running.address
        variables = {
            "DB_IP": str(host),
            "DB_PORT": str(port),
            "PYMONGO_TESTS_SETUP": json.dumps(None if setup == PLAIN else SETUPS[setup]),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "switch"),
            *("-p", "no:cacheprovider", f"--junitxml={results}"),
            *("-o", "log_cli=false", "-o", "junit_family=xunit1", f"--timeout={TEST_LIMIT}"),
            # Warnings are errors there, those of a newer pytest as well.
            *("-W", "default", *(tests or [module])),
        ]
        try:
            subprocess.run(
                command,
                cwd=source,
                env=os.environ | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=MODULE_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{module} ({setup}) did not end within {MODULE_LIMIT} s", file=output)
    return outcomes_of(results, module)


def outcomes_of(results: Path, module: str) -> Outcomes:
    """Read pytest's results; tests that a killed process had not reached are missing."""
    if not results.exists():
        return {}
    outcomes: Outcomes = {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest wrote it
        kinds = {child.tag for child in case}
        cls = (case.get("classname") or "").rpartition(".")[2]
        parts = [module, cls, case.get("name") or ""]
        if cls == Path(module).stem:
            del parts[1]
        failed = kinds & {"failure", "error"}
        was = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
        outcomes["::".join(parts)] = was
    return outcomes


def _show(comparison: Comparison, number: int, of: int) -> None:
    """Print one line for the module, and one for each regression."""
    counts = []
    for setup, outcomes in comparison.outcomes.items():
        by_kind = Counter(outcomes.values())
        counts.append(f"{setup} {by_kind['passed']} passed, {by_kind['failed']} failed")
    print(f"[{number}/{of}] {comparison.module}: {'; '.join(counts)}", flush=True)
    for setup, tests in comparison.regressions.items():
        for test in tests:
            print(f"    differs with {setup}: {test}", flush=True)


def report(done: Sequence[Comparison], setups: Sequence[str], *, complete: bool) -> int:
    """Print the sums and write ``report.json``; return 1 if something differs that is not listed.

    ``complete``: every module ran, so a listed difference has to be there, unless no test of that
    name passes with plain pymongo on this server.
    """
    listed: dict[str, dict[str, str]] = tomllib.loads(DIFFERENCES.read_text())
    with_plain = _passed(done, PLAIN)
    print(f"\npymongo {pymongo.version}: {len(with_plain)} tests pass with plain pymongo")
    status = 0
    for setup in setups[1:]:
        regressions = sorted(test for each in done for test in each.regressions.get(setup, ()))
        unsteady = sorted(test for each in done for test in each.unsteady.get(setup, ()))
        reasons = {**listed.get("every setup", {}), **listed.get(setup, {})}
        unexpected = [test for test in regressions if not _reason(test, reasons)]
        print(
            f"{setup}: {len(_passed(done, setup))} pass; {len(regressions)} fail twice, "
            f"{len(unexpected)} of them not listed; {len(unsteady)} failed once"
        )
        for test in unexpected:
            print(f"    {test}")
        if unexpected:
            status = 1
        stale = [
            pattern
            for pattern in listed.get(setup, {})
            if fnmatch.filter(with_plain, pattern) and not fnmatch.filter(regressions, pattern)
        ]
        if complete and stale:
            print(f"    listed in {DIFFERENCES.name}, and no longer different: {', '.join(stale)}")
            status = 1
    rows = [
        {
            "module": each.module,
            "outcomes": {setup: Counter(found.values()) for setup, found in each.outcomes.items()},
            "regressions": each.regressions,
            "unsteady": each.unsteady,
        }
        for each in sorted(done, key=lambda each: each.module)
    ]
    (FOLDER / "report.json").write_text(json.dumps(rows, indent=1) + "\n")
    return status


def _passed(done: Iterable[Comparison], setup: str) -> set[str]:
    return {
        test
        for each in done
        for test, was in each.outcomes.get(setup, {}).items()
        if was == "passed"
    }


def _reason(test: str, reasons: Mapping[str, str]) -> str | None:
    found = (reason for pattern, reason in reasons.items() if fnmatch.fnmatch(test, pattern))
    return next(found, None)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TestbedError as error:
        sys.exit(str(error))
