"""The command ``pymongo-resilience``: a demo, a test bed, a doctor, the options, and dashboards."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pymongo_resilience
from pymongo_resilience.config import OPTIONS, load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.strategy import NAMED

from . import dashboards
from .doctor import command as doctor
from .report import command as report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience.config import Option
    from pymongo_resilience.policy import Policy

PROGRAM: Final = "pymongo-resilience"
TOOLS: Final = {"doctor": doctor.run, "report": report.run}
FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_DEMO_MODULES: Final = (
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.sdk",
    "rich",
    "secantus",
    "tenacity",
)
_TESTBED_MODULES: Final = ("secantus",)
_SHORTEST_DEMO: Final = 1.0
_LONGEST_DEMO: Final = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 for a failure, 2 for a wrong usage, 141
    where the output is not read to its end, as in ``pymongo-resilience config | head``."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Or the interpreter would fail once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _run(arguments: Sequence[str] | None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "config":
        return _config()
    if options.command in TOOLS:
        return TOOLS[options.command](options)
    if options.command == "testbed":
        return _testbed(options)
    if options.command == "dashboards":
        return _dashboards(options)
    return _demo(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Safe retries, deadlines and telemetry for pymongo."
    )
    parser.add_argument("--version", action="version", version=pymongo_resilience.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="run one workload through scripted faults: plain, in a naive loop, and with us",
        description="Runs one workload on three sides through the same faults, on a real server "
        "on this machine, and compares the databases with what was acknowledged. Exit status 0 "
        "only if our side lost nothing, duplicated nothing and saw no error.",
    )
    demo.add_argument(
        "--seconds",
        type=_seconds,
        default=20.0,
        metavar="N",
        help="how long, about (default: 20); every fault happens at least once, whatever N is",
    )
    demo.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    demo.add_argument("--json", type=_file, metavar="FILE", help="write the numbers here")
    demo.add_argument("--svg", type=_file, metavar="FILE", help="draw the report here")
    demo.add_argument(
        "--record", type=_file, metavar="FILE", help="write every operation, for `report`"
    )
    demo.add_argument(
        "--otlp",
        type=_endpoint,
        metavar="ENDPOINT",
        help="send our side's spans and metrics to this OTLP/HTTP collector, for example "
        "http://127.0.0.1:4318",
    )
    testbed = commands.add_parser(
        "testbed",
        help="start a deployment to try an application on, with faults if you like",
        description="Starts a real server on this machine with a deployment in front of it, and "
        "prints the URI to connect to: one line on standard output, nothing else. Runs until "
        "Ctrl-C or SIGTERM, then ends with exit status 0. The data is gone then.",
    )
    testbed.add_argument(
        "--topology",
        choices=("replica-set", "sharded", "standalone"),
        default="replica-set",
        help="what it presents (default: replica-set)",
    )
    testbed.add_argument(
        "--members",
        type=int,
        metavar="N",
        help="how many members the replica set has (default: 3), or routers the cluster (default: "
        "2), 50 at most; a standalone has one",
    )
    testbed.add_argument(
        "--port",
        type=int,
        metavar="P",
        help="of the first member; the others take the ports after it (default: free ones)",
    )
    testbed.add_argument(
        "--chaos",
        action="store_true",
        help="strike it with random faults for ever, about one in a second, each reported on "
        "standard error",
    )
    testbed.add_argument(
        "--seed", type=int, metavar="N", help="random seed of --chaos (default: 1)"
    )
    testbed.add_argument(
        "--control",
        type=int,
        metavar="PORT",
        help="serve an HTTP control on 127.0.0.1: POST a fault to /faults, GET what struck, DELETE "
        "to clear; 0 for a free port",
    )
    testbed.add_argument(
        "--drill",
        metavar="NAME",
        help="play a scenario: rolling-maintenance, regional-black-hole, overload-pulse or "
        "flapping-member",
    )
    testbed.add_argument(
        "--record", type=_file, metavar="FILE", help="write every fault, for `report`"
    )
    doctor.add_parser(commands)
    report.add_parser(commands)
    files = commands.add_parser(
        "dashboards",
        help="write a Grafana dashboard and Prometheus rules into a directory",
        description="Writes " + " and ".join(dashboards.FILES) + " into a directory, which is made "
        "if its parent is there, and prints their paths. Existing files of other content are left "
        "alone, and that is exit status 1.",
    )
    files.add_argument("directory", type=Path, metavar="DIR")
    files.add_argument("--force", action="store_true", help="overwrite existing files")
    commands.add_parser("config", help="show every option, its legal range and its present value")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_DEMO <= seconds <= _LONGEST_DEMO:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {_SHORTEST_DEMO:g} to {_LONGEST_DEMO:g}"
        )
    return seconds


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in an existing directory")
    return path


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        # A URL may have a password in it.
        given = "what was given" if "@" in text else repr(text)
        raise argparse.ArgumentTypeError(f"{given} is not a URL such as http://127.0.0.1:4318")
    return text


def _demo(options: argparse.Namespace) -> int:
    missing = _missing("demo", _DEMO_MODULES)
    if missing:
        return _complain(missing, USAGE)
    from pymongo_resilience_instrumentation.demo.process_pool import DemoError  # noqa: PLC0415 - an extra
    from pymongo_resilience_instrumentation.demo.run import Options, run  # noqa: PLC0415 - an extra
    from pymongo_resilience_instrumentation.testbed import TestbedError  # noqa: PLC0415 - an extra

    wanted = Options(
        seconds=options.seconds,
        seed=options.seed,
        otlp=options.otlp,
        json=options.json,
        svg=options.svg,
        record=options.record,
    )
    try:
        return run(wanted)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (DemoError, TestbedError, OSError) as exc:
        return _complain(str(exc), FAILURE)


def _testbed(options: argparse.Namespace) -> int:
    missing = _missing("testbed", _TESTBED_MODULES)
    if missing:
        return _complain(missing, USAGE)
    from pymongo_resilience_instrumentation.testbed import TestbedError, command  # noqa: PLC0415 - an extra

    wanted = command.Options(
        topology=options.topology,
        members=options.members,
        port=options.port,
        chaos=options.chaos,
        seed=options.seed,
        control=options.control,
        drill=options.drill,
        record=options.record,
    )
    try:
        command.run(wanted)
    except ValueError as exc:
        return _complain(str(exc), USAGE)
    except (TestbedError, OSError) as exc:
        return _complain(str(exc), FAILURE)
    return 0


def _dashboards(options: argparse.Namespace) -> int:
    try:
        written = dashboards.write(options.directory, force=options.force)
    except dashboards.ExistingFilesError as exc:
        return _complain(f"{exc}: there, with other content; --force overwrites", FAILURE)
    except (OSError, ValueError) as exc:  # a null character in a path is a ValueError
        why = getattr(exc, "strerror", None) or exc
        return _complain(f"cannot write into {str(options.directory)!r}: {why}", FAILURE)
    for path in written:
        print(path)
    return 0


def _missing(extra: str, modules: Sequence[str]) -> str | None:
    missing = [name for name in modules if not _is_installed(name)]
    if not missing:
        return None
    return (
        f"the {extra} needs what is not installed here ({', '.join(missing)}): "
        f'pip install "pymongo-resilience[{extra}]"'
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _config() -> int:
    try:
        loaded = load()
    except ConfigurationError as exc:
        return _complain(str(exc), USAGE)
    for option in OPTIONS:
        source = loaded.sources.get(option.name)
        print(_described(option, getattr(loaded.config, option.name), _place(option, source)))
    for pattern, policy in loaded.config.policies.items():
        print(_rule(pattern, policy))
    return 0


def _place(option: Option, source: str | None) -> str:
    if source is None:
        return "the default"
    return "the variable" if source == option.variable else f"the file {source}"


def _described(option: Option, value: object, place: str) -> str:
    return (
        f"{option.variable} = {_shown(value)}\n"
        f"    {option.sentence}\n"
        f"    from: {place}\n"
        f"    option: {option.name}, type: {option.kind.name}, default: {_shown(option.default)}\n"
        f"    legal: {option.kind.allowed}\n"
    )


def _rule(pattern: str, policy: Policy) -> str:
    lines = [f"[policies.{pattern!r}]"]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        # A field without a repr is confidential, and None inherits.
        if value is not None:
            lines.append(f"    {field.name} = {_value_text(value) if field.repr else 'not shown'}")
    return "\n".join(lines) + "\n"


def _value_text(value: object) -> str:
    names = [name for name, strategy in NAMED.items() if strategy is value]
    return names[0] if names else _shown(value)


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return ",".join(value) or "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complain(sentence: str, status: int) -> int:
    print(f"{PROGRAM}: error: {sentence}", file=sys.stderr)
    return status
