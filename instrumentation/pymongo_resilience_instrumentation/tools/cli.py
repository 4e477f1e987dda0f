"""The command ``pymongo-resilience``: demo, test bed, doctor, dashboards, options."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pymongo_resilience
from pymongo_resilience.config import OPTIONS, SERVER_VARIABLE, Option, load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import as_text
from pymongo_resilience.policies.policy import Policy
from pymongo_resilience.rules.strategy import NAMED

from . import dashboards

PROGRAM: Final = "pymongo-resilience"
FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
URI_VARIABLE: Final = "MONGODB_URI"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 for a failure, 2 for wrong arguments, 141
    where the output is not read to its end, as in ``pymongo-resilience config | head``."""
    try:
        options = _parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Or the interpreter would fail once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _parser() -> argparse.ArgumentParser:  # noqa: PLR0915 - about one for each argument
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Safe retries, deadlines and telemetry for pymongo."
    )
    parser.add_argument("--version", action="version", version=pymongo_resilience.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], int], description: str) -> Callable[..., Any]:
        """Named like its function; its help is the description's first sentence. Returns what adds
        an argument: its help, its names, and what else argparse takes."""
        first, _, _ = description.partition(". ")
        name = run.__name__[1:]
        made = commands.add_parser(name, help=first.rstrip("."), description=description)
        made.set_defaults(run=run)

        def add(text: str, *names: str, **how: Any) -> None:
            default = " (default: %(default)s)" if "default" in how else ""
            made.add_argument(*names, help=text + default, **how)

        return add

    file: dict[str, Any] = {"type": _file, "metavar": "FILE"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    flag: dict[str, Any] = {"action": "store_true"}
    server = f"mongod, from the PATH, or mongod=/path, in place of SecantusDB, or {SERVER_VARIABLE}"
    demo = command(
        _demo,
        "Run one workload through scripted faults in four ways: plain pymongo, pymongo with "
        "timeoutMS, a naive retry loop, and this library. Then compare each database with the "
        "writes that were acknowledged. The exit status is 0 only if this library lost nothing, "
        "duplicated nothing, and showed no error.",
    )
    seconds = _number(float, 1, 3600)
    demo("how long, about", "--seconds", type=seconds, default=20.0, metavar="N")
    demo("random seed", "--seed", type=int, default=1)
    demo("write the figures to this file, as JSON", "--json", **file)
    demo("draw the report to this file", "--svg", **file)
    demo(server, "--server", metavar="mongod[=PATH]")
    endpoint = "OTLP/HTTP collector for the library's spans and metrics: http://127.0.0.1:4318"
    demo(endpoint, "--otlp", type=_endpoint, metavar="ENDPOINT")
    testbed = command(
        _testbed,
        "Start a deployment to try an application on, with faults if you like. Prints the URI to "
        "connect to on standard output. Ctrl-C or SIGTERM ends it, and deletes the data.",
    )
    topologies = ("replica-set", "real-replica-set", "sharded", "standalone")
    kind = "real-replica-set is a mongod for each member, and needs --server"
    testbed(kind, "--topology", choices=topologies, default="replica-set")
    testbed(
        "how many members (default: 3) or routers (default: 2), 50 at most", "--members", **number
    )
    testbed(
        "port of the first member, the others take the next ones (default: free ones)",
        "--port",
        **number,
    )
    testbed("random faults, about one a second, reported on standard error", "--chaos", **flag)
    testbed("random seed of --chaos (default: 1)", "--seed", **number)
    control = "HTTP control on 127.0.0.1: POST a fault to /faults, GET or DELETE them; 0: any port"
    testbed(control, "--control", **number | {"metavar": "PORT"})
    drills = "rolling-maintenance, regional-black-hole, overload-pulse or flapping-member"
    testbed(drills, "--drill", metavar="NAME")
    testbed(server, "--server", metavar="mongod[=PATH]")
    before = "start proxies before this deployment, and no server; clients log in through them"
    testbed(before, "--in-front-of", metavar="URI")
    doctor = command(
        _doctor,
        "Connect as the application would, and say what to change. Checks the URI, DNS, "
        "connections, TLS, the servers, the login and this installation, in five seconds at most. "
        "Prints no credential. Exit status 1 where something is wrong.",
    )
    doctor(
        f"default: {URI_VARIABLE}, which other users cannot see", "uri", nargs="?", metavar="URI"
    )
    doctor("all findings as JSON", "--json", **flag)
    doctor("wait longer and check idle connections: ten seconds", "--deep", **flag)
    idle = "leave connections idle for so long, then use them: firewalls may drop them"
    at_most_a_day = _number(float, 0.1, 86_400)
    doctor(idle, "--idle", type=at_most_a_day, default=0.0, metavar="SECONDS")
    several = "processes of the application, to check the limit of connections"
    doctor(several, "--processes", type=_number(int, 1, 1_000_000), default=1, metavar="N")
    files = command(
        _dashboards,
        "Write a Grafana dashboard and Prometheus rules into a directory. It is created if its "
        "parent exists. Files with other content are not overwritten: exit status 1.",
    )
    files("where to write them", "directory", type=Path, metavar="DIR")
    files("overwrite existing files", "--force", **flag)
    config = command(_config, "Show every option, its legal range and its present value.")
    config("only what variables or the file set", "--changed", **flag)
    return parser


def _number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number from {least:g} to {most:,g}"
            )
        return value

    return parse


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in an existing directory")
    return path


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        # A URL may have a password in it.
        given = "this value" if "@" in text else repr(text)
        raise argparse.ArgumentTypeError(f"{given} is not a URL such as http://127.0.0.1:4318")
    return text


def _demo(options: argparse.Namespace) -> int:
    try:
        from .demo.demonstration import run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as exc:
        needed = f"the demo needs what is not installed here ({exc.name})"
        return _print_error(f'{needed}: pip install "pymongo-resilience[demo]"', USAGE)
    return _served(run, options)


def _testbed(options: argparse.Namespace) -> int:
    from .testbed.testbed_command import run  # noqa: PLC0415 - an extra

    return _served(run, options)


def _served(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    from .testbed import TestbedError  # noqa: PLC0415 - an extra

    try:
        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except ValueError as exc:
        return _print_error(str(exc), USAGE)
    except (TestbedError, OSError) as exc:
        return _print_error(str(exc), FAILURE)


def _doctor(options: argparse.Namespace) -> int:
    # Other commands do without pymongo.
    from .doctor.examination import as_json, as_text, examine  # noqa: PLC0415

    uri = options.uri or os.environ.get(URI_VARIABLE)
    if not uri:
        return _print_error(f"no URI: give one, or set {URI_VARIABLE}", USAGE)
    with warnings.catch_warnings():
        # pymongo's about options, whose texts are not ours.
        warnings.simplefilter("ignore")
        found = examine(
            uri, deep=options.deep, idle_seconds=options.idle, processes=options.processes
        )
    print(as_json(found) if options.json else as_text(found))
    return 0 if found.verdict.well else FAILURE


def _dashboards(options: argparse.Namespace) -> int:
    try:
        written = dashboards.write(options.directory, force=options.force)
    except dashboards.ExistingFilesError as exc:
        return _print_error(f"{exc}: exists with other content; --force overwrites", FAILURE)
    except (OSError, ValueError) as exc:  # a null character in a path is a ValueError
        why = getattr(exc, "strerror", None) or exc
        return _print_error(f"cannot write into {str(options.directory)!r}: {why}", FAILURE)
    for path in written:
        print(path)
    return 0


def _config(arguments: argparse.Namespace) -> int:
    try:
        loaded = load()
    except ConfigurationError as exc:
        return _print_error(str(exc), USAGE)
    for option in OPTIONS:
        source = loaded.sources.get(option.name)
        if arguments.changed and source is None:
            continue
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
        f"{option.variable if option.has_variable else option.name} = {as_text(value)}\n"
        f"    {option.sentence}\n"
        f"    from: {place}\n"
        f"    option: {option.name}, default: {as_text(option.default)}\n"
        f"    legal: {option.kind.allowed}\n"
    )


def _rule(pattern: str, policy: Policy) -> str:
    lines = [f"[policies.{pattern!r}]"]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        # A field without a repr is confidential, and None inherits.
        if value is not None:
            names = [name for name, strategy in NAMED.items() if strategy is value]
            text = (names or [as_text(value)])[0] if field.repr else "not shown"
            lines.append(f"    {field.name} = {text}")
    return "\n".join(lines) + "\n"


def _print_error(sentence: str, status: int) -> int:
    print(f"{PROGRAM}: error: {sentence}", file=sys.stderr)
    return status
