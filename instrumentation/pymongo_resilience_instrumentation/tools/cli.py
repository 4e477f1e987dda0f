"""The command ``pymongo-resilience`` with its subcommands: demo, testbed, doctor, dashboards,
config.
"""

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
    """Run the command line.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for wrong arguments, 130 after Ctrl-C,
        and 141 if the output was not read to its end, as in ``pymongo-resilience config | head``.
    """
    try:
        options = _parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the interpreter would raise the same error again when it flushes standard output
        # at exit.
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
        """Add a subcommand named after its function; return a function that adds arguments.

        Its short help is the first sentence of the description. The returned function takes the
        argument's help, its names, and further options of argparse.
        """
        first, _, _ = description.partition(". ")
        name = run.__name__[1:]
        subparser = commands.add_parser(name, help=first.rstrip("."), description=description)
        subparser.set_defaults(run=run)

        def add(text: str, *names: str, **how: Any) -> None:
            default = " (default: %(default)s)" if "default" in how else ""
            subparser.add_argument(*names, help=text + default, **how)

        return add

    file: dict[str, Any] = {"type": _file, "metavar": "FILE"}
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    flag: dict[str, Any] = {"action": "store_true"}
    server = (
        "server to use instead of the built-in SecantusDB: mongod (from the PATH) or mongod=/path; "
        f"also set by {SERVER_VARIABLE}"
    )
    demo = command(
        _demo,
        "Run one workload through scripted faults in four ways: plain pymongo, pymongo with "
        "timeoutMS, a naive retry loop, and this library. Then compare each database with the "
        "writes that were acknowledged. The exit status is 0 only if this library lost nothing, "
        "duplicated nothing, and showed no error.",
    )
    seconds = _number(float, 1, 3600)
    demo("approximate duration", "--seconds", type=seconds, default=20.0, metavar="N")
    demo("random seed", "--seed", type=int, default=1)
    demo("write the results to this file as JSON", "--json", **file)
    demo("write the report to this file as SVG", "--svg", **file)
    demo(server, "--server", metavar="mongod[=PATH]")
    endpoint = "send spans and metrics to this OTLP/HTTP collector, such as http://127.0.0.1:4318"
    demo(endpoint, "--otlp", type=_endpoint, metavar="ENDPOINT")
    testbed = command(
        _testbed,
        "Start a MongoDB deployment for trying out an application, optionally with faults. Writes "
        "its URI to standard output. Ctrl-C or SIGTERM stops it and deletes the data.",
    )
    topologies = ("replica-set", "real-replica-set", "sharded", "standalone")
    kind = "kind of deployment; real-replica-set runs one mongod per member and needs --server"
    testbed(kind, "--topology", choices=topologies, default="replica-set")
    testbed(
        "number of members (default: 3) or routers (default: 2), at most 50", "--members", **number
    )
    testbed(
        "port of the first member; the others use the next ports (default: any free ports)",
        "--port",
        **number,
    )
    testbed(
        "inject about one random fault per second and report it on standard error",
        "--chaos",
        **flag,
    )
    testbed("random seed for --chaos (default: 1)", "--seed", **number)
    control = (
        "port on 127.0.0.1 for controlling faults by HTTP: POST a fault to /faults, GET or DELETE "
        "them; 0 uses any free port"
    )
    testbed(control, "--control", **number | {"metavar": "PORT"})
    drills = (
        "run a drill: rolling-maintenance, regional-black-hole, overload-pulse, flapping-member"
    )
    testbed(drills, "--drill", metavar="NAME")
    testbed(server, "--server", metavar="mongod[=PATH]")
    before = "put proxies in front of this existing deployment instead of starting a server"
    testbed(before, "--in-front-of", metavar="URI")
    doctor = command(
        _doctor,
        "Connect as the application would, and report what to change. Checks the URI, DNS, "
        "connections, TLS, the servers, the login and this installation within five seconds. "
        "Never prints credentials. The exit status is 1 if something is wrong.",
    )
    doctor(
        f"connection string (default: the variable {URI_VARIABLE}, which other users cannot see)",
        "uri",
        nargs="?",
        metavar="URI",
    )
    doctor("print all findings as JSON", "--json", **flag)
    doctor("take up to ten seconds, and also check idle connections", "--deep", **flag)
    idle = (
        "leave connections idle for this long, then use them, to find firewalls that drop idle "
        "connections"
    )
    at_most_a_day = _number(float, 0.1, 86_400)
    doctor(idle, "--idle", type=at_most_a_day, default=0.0, metavar="SECONDS")
    several = "number of application processes, for checking the server's connection limit"
    doctor(several, "--processes", type=_number(int, 1, 1_000_000), default=1, metavar="N")
    files = command(
        _dashboards,
        "Write a Grafana dashboard and Prometheus rules to a directory. The directory is created "
        "if its parent exists. Existing files with other content are kept, and the exit status is "
        "1.",
    )
    files("the directory", "directory", type=Path, metavar="DIR")
    files("overwrite existing files", "--force", **flag)
    config = command(_config, "Show every option with its value, source and allowed values.")
    config("show only options that are set by a variable or the file", "--changed", **flag)
    return parser


def _number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            # Not a number: report it together with numbers out of range.
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
        # A URL may contain a password.
        given = "this value" if "@" in text else repr(text)
        raise argparse.ArgumentTypeError(f"{given} is not a URL such as http://127.0.0.1:4318")
    return text


def _demo(options: argparse.Namespace) -> int:
    try:
        from .demo.demonstration import run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as exc:
        needed = f"the demo needs {exc.name}, which is not installed"
        return _print_error(f'{needed}. Run: pip install "pymongo-resilience[demo]"', USAGE)
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
    # Imported here, because the other commands do not need pymongo.
    from .doctor.examination import as_json, as_text, examine  # noqa: PLC0415

    uri = options.uri or os.environ.get(URI_VARIABLE)
    if not uri:
        return _print_error(
            f"no connection string: pass a URI, or set the variable {URI_VARIABLE}", USAGE
        )
    with warnings.catch_warnings():
        # The doctor reports options itself. pymongo's warnings may contain secrets.
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
        return _print_error(
            f"not overwritten, because the content differs: {exc}. Use --force to overwrite",
            FAILURE,
        )
    except (OSError, ValueError) as exc:
        # A null character in a path raises ValueError.
        why = getattr(exc, "strerror", None) or exc
        return _print_error(f"cannot write to {str(options.directory)!r}: {why}", FAILURE)
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
        f"    allowed: {option.kind.allowed}\n"
    )


def _rule(pattern: str, policy: Policy) -> str:
    lines = [f"[policies.{pattern!r}]"]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        # Fields that are not in the repr are confidential, and None means "inherited".
        if value is not None:
            names = [name for name, strategy in NAMED.items() if strategy is value]
            text = (names or [as_text(value)])[0] if field.repr else "not shown"
            lines.append(f"    {field.name} = {text}")
    return "\n".join(lines) + "\n"


def _print_error(sentence: str, status: int) -> int:
    print(f"{PROGRAM}: error: {sentence}", file=sys.stderr)
    return status
