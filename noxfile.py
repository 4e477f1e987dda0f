"""Every check of the project, as sessions of nox. ``nox -l`` lists them.

``make test`` runs the sessions of the tag ``test``, and ``make check`` also those of the tag
``check``. Sessions that need the newest pymongo on this Python run in ``.venv``, the environment to
work in, which the session ``dev`` makes. Each of the others has an environment below ``.nox``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
OTHER_PYTHONS = [each for each in PYTHONS if each != THIS_PYTHON]
SERVER_PYTHONS = ("3.13", "3.12", "3.11")
"""Pythons for which the server of the test bed (SecantusDB) has a wheel, the preferred one first.
With another Python, a separate process with one of these runs the server.
"""
SERVER_VENV = ROOT / ".nox" / "server"
SERVER_VARIABLES = ("PYMONGO_RESILIENCE_TESTBED_PYTHON", "PYMONGO_RESILIENCE_TESTBED_SERVER")
OLDEST_PYMONGO = "pymongo==4.19.*"

# Tests that run on the oldest pymongo and on each Python are in these folders alone.
CORE_FOLDERS = ("tests/integration", "tests/unit")
NOT_ALONE = "not wheel and not alone"

nox.needs_version = ">=2026.10"
nox.options.tags = ["test"]
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.allow_parallel = True
# A Python that this machine does not have is skipped, and the summary names it.
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False

# pyenv's commands on the path refuse to start a version that is not switched on.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
os.environ["PATH"] = os.pathsep.join(
    [os.environ["PATH"], *map(str, sorted(PYENV.glob("versions/3.*/bin")))]
)
# Many processes import the same modules: keep what one of them has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Building the test bed's server takes minutes, and tools that few machines have. If there is no
# wheel for this system, the installer reports that in a few lines instead. To build it, set this to
# an empty string.
os.environ.setdefault("UV_NO_BUILD_PACKAGE", "secantusdb")


def in_venv(*tags: str, alone: bool = False, requires: tuple[str, ...] = ()) -> Callable[..., Any]:
    """A session that runs in ``.venv``; ``alone``: while no other session runs."""
    return nox.session(
        venv_backend="none",
        requires=["dev", *requires],
        tags=list(tags),
        allow_parallel=False if alone else None,
    )


def tool(name: str) -> str:
    """A command of ``.venv``."""
    return str(BIN / name)


def pytest(
    session: nox.Session, *arguments: str, paths: tuple[str, ...] = (), workers: int = 0
) -> None:
    """Run the tests in ``paths``, or those that the command line names. If some fail, show how to
    run them again."""
    if any((ROOT / each.partition("::")[0]).exists() for each in session.posargs):
        paths = ()
    # More workers than cores, because most tests wait.
    parallel = ("-n", str(workers), "--dist", "worksteal") if workers else ()
    # Sessions run at the same time, and each remembers what failed in it.
    cache = f"cache_dir={ROOT / '.nox' / 'pytest' / session.name}"
    options = ("-q", "--no-header", "--durations=5", "-o", cache, *parallel)
    python = tool("python") if session.virtualenv.venv_backend == "none" else "python"
    try:
        session.run(python, "-m", "pytest", *options, *arguments, *paths, *session.posargs)
    except CommandFailed:
        nox_command = Path(sys.executable).parent / "nox"
        session.error(f"to run what failed again: {nox_command} -s {session.name} -- --last-failed")


def uv_command(session: nox.Session) -> str:
    """The path of uv, which is installed together with nox."""
    beside_nox = str(Path(sys.executable).parent)
    uv = shutil.which("uv", path=os.pathsep.join([beside_nox, os.environ["PATH"]]))
    if uv is None:
        session.error("uv is not installed: install nox with it (pip install 'nox[uv]')")
    return uv


def use_server(session: nox.Session) -> None:
    """Let the Python of the session ``server`` run the server, if the session's own one cannot.
    Tests find it themselves (tests/support/servers.py).
    """
    python = session.python if isinstance(session.python, str) else THIS_PYTHON
    if python not in SERVER_PYTHONS:
        session.env.setdefault(SERVER_VARIABLES[0], str(SERVER_VENV / BIN.name / "python"))


# The environment to work in


@nox.session(venv_backend="none")
def server(session: nox.Session) -> None:
    """The Python that runs the test bed's server, if this one cannot: .nox/server."""
    here = [THIS_PYTHON, *(each for each in OTHER_PYTHONS if shutil.which(f"python{each}"))]
    without = [each for each in here if each not in SERVER_PYTHONS]
    if not without or any(os.environ.get(each) for each in SERVER_VARIABLES):
        return
    uv = uv_command(session)
    find = (uv, "python", "find", "--system", "--no-python-downloads")
    for each in SERVER_PYTHONS:
        found = session.run(*find, each, silent=True, success_codes=[0, 2], log=False)
        if Path(str(found).strip() or ".").is_file():
            break
    else:
        session.error(
            f"SecantusDB, the server of the tests, has no wheel for Python {without[0]}: install "
            f"Python {', '.join(SERVER_PYTHONS[:-1])} or {SERVER_PYTHONS[-1]} as well (only the "
            f"server uses it), for example with `{uv} python install {SERVER_PYTHONS[0]}`"
        )
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    if not (SERVER_VENV / "pyvenv.cfg").exists():
        python = str(found).strip()
        session.run(uv, "venv", "--quiet", f"--python={python}", str(SERVER_VENV))
    install = (uv, "pip", "install", "--quiet", f"--python={SERVER_VENV}")
    session.run(*install, *project["optional-dependencies"]["testbed"])


@nox.session(venv_backend="none", requires=["server"])
def dev(session: nox.Session) -> None:
    """Make or update .venv, the environment to work in."""
    uv = uv_command(session)
    if not (VENV / "pyvenv.cfg").exists():
        session.run(uv, "venv", "--quiet", "--seed", f"--python={sys.executable}", str(VENV))
    session.run(uv, "pip", "install", "--quiet", f"--python={VENV}", "--editable", ".[dev,bench]")


@nox.session(requires=["server"])
def demo(session: nox.Session) -> None:
    """One workload through scripted faults: plain pymongo, a naive retry loop, and the library."""
    session.install("--editable", ".[demo]")
    use_server(session)
    (ROOT / "build").mkdir(exist_ok=True)
    session.run("pymongo-resilience", "demo", "--svg", "build/demo.svg", *session.posargs)
    session.log("the same for a browser: build/demo.svg")


# What `make test` runs


@in_venv("test")
def tests(session: nox.Session) -> None:
    """What a change can break, on this Python and the newest pymongo."""
    # Not even collected, because nothing in these folders belongs to this part.
    ignored = ("--ignore=tests/chaos", "--ignore=tests/conformance")
    pytest(session, "--part=quick", *ignored, "-m", NOT_ALONE, workers=5)


@in_venv("test")
def lint(session: nox.Session) -> None:
    """ruff, formatting, which module may import which, and the workflows of hosted CI."""
    session.run(tool("ruff"), "check", ".")
    session.run(tool("ruff"), "format", "--check", ".")
    session.run(tool("lint-imports"))
    session.run(tool("zizmor"), "--offline", "--quiet", ".github/workflows")


@in_venv("test")
def types(session: nox.Session) -> None:
    """mypy on everything, pyright on the engine, both strict."""
    session.run(tool("mypy"))
    session.run(tool("basedpyright"))


@nox.session(tags=["test"], requires=["server"])
def oldest(session: nox.Session) -> None:
    """The core of the tests, on the oldest pymongo."""
    session.install("--editable", ".[test]", OLDEST_PYMONGO)
    pytest(session, "--part=core", "-m", NOT_ALONE, paths=CORE_FOLDERS, workers=2)


@nox.session(tags=["test"], requires=["server"])
def wheel(session: nox.Session) -> None:
    """The built wheel, outside of the source tree and without the packages of the tests."""
    check_wheel(session)


def check_wheel(session: nox.Session) -> None:
    """Test the wheel in a folder that is not part of the repository, with no configuration."""
    use_server(session)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session.run("uv", "build", "--quiet", "--wheel", f"--out-dir={folder}", external=True)
        (built,) = folder.glob("*.whl")
        requirement = f"pymongo-resilience[testbed] @ {built.as_uri()}"
        # One of the same version may be installed already.
        again = ("--reinstall-package=pymongo-resilience", "--only-binary=:all:")
        session.install(*again, requirement, "pytest>=9")
        shutil.copy(ROOT / "tests" / "test_wheel.py", folder)
        session.chdir(folder)
        options = ("-p", "no:cacheprovider", "--rootdir=.", "-o", "markers=wheel")
        session.run("python", "-I", "-m", "pytest", "-q", "--no-header", *options, "test_wheel.py")


# What `make check` adds


@in_venv("check")
def thorough(session: nox.Session) -> None:
    """All other tests on this Python and the newest pymongo: chaos, and what takes long."""
    pytest(session, "--part=thorough", "-m", NOT_ALONE, workers=5)


@in_venv("check")
def properties(session: nox.Session) -> None:
    """Properties of Hypothesis with all of their examples."""
    selected = "hypothesis and not thorough and not alone"
    pytest(session, "-m", selected, paths=CORE_FOLDERS, workers=1)


@nox.session(tags=["check"], requires=["server"])
def oldest_thorough(session: nox.Session) -> None:
    """All other tests for the oldest pymongo."""
    session.install("--editable", ".[test]", OLDEST_PYMONGO)
    pytest(session, "--part=beyond-core", "-m", NOT_ALONE, paths=CORE_FOLDERS, workers=2)


@nox.session(tags=["check"], python=OTHER_PYTHONS, requires=["server"])
def core(session: nox.Session) -> None:
    """The core of the tests, on each other Python of this machine."""
    session.install("--editable", ".[test]")
    pytest(session, "--part=core", "-m", NOT_ALONE, paths=CORE_FOLDERS, workers=2)


@nox.session(tags=["check"])
def docs(session: nox.Session) -> None:
    """Build the site in build/site; a link or an anchor that leads nowhere fails."""
    session.install("--editable", ".[docs]")
    session.run("mkdocs", "build", "--quiet", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@in_venv("check")
def prose(session: nox.Session) -> None:
    """Spelling of everything, and the style of the documents."""
    session.run(tool("codespell"))
    pages = sorted(str(each) for each in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    session.run(tool("proselint"), "check", "--config", ".proselintrc.json", *pages)


@in_venv("check", requires=("docs",))
def site(session: nox.Session) -> None:
    """Show each page of the site to a browser; screenshots are in build/screenshots."""
    pytest(session, paths=("tests/site/check_site.py",))


@nox.session(tags=["check"], requires=["server"])
def examples(session: nox.Session) -> None:
    """The examples of frameworks: each loses replies, and shows the retries."""
    requirements = "examples/frameworks/requirements.txt"
    session.install("--editable", ".[testbed]", "pytest>=9", "--requirement", requirements)
    files = sorted(str(each) for each in ROOT.glob("tests/frameworks/check_*.py"))
    pytest(session, paths=tuple(files))


@nox.session(tags=["check"], python=OTHER_PYTHONS, requires=["server"])
def wheels(session: nox.Session) -> None:
    """The built wheel, on each other Python of this machine."""
    check_wheel(session)


@nox.session(tags=["check"], requires=["dev"])
def package(session: nox.Session) -> None:
    """What is published: metadata, types, the tests of the sdist, and the same bytes twice."""
    session.install("twine>=6", "mypy>=1.15", "pyright>=1.1.400")
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder)
    first, second, unpacked = (folder / name for name in ("first", "second", "unpacked"))
    build(session, ROOT, first)
    session.run("twine", "check", "--strict", *map(str, packages_in(first)))
    (sdist,) = first.glob("*.tar.gz")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (source,) = unpacked.iterdir()
    build(session, ROOT, second)
    compare(session, first, second)

    # As users have it: the type checkers see the installed wheel.
    (built_wheel,) = first.glob("*.whl")
    session.install(
        "--only-binary=:all:", "--reinstall-package=pymongo-resilience", str(built_wheel)
    )
    typing = folder / "typing"
    typing.mkdir()
    for name in ("usage.py", "pyrightconfig.json"):
        shutil.copy(ROOT / "tests" / "typing" / name, typing)
    session.chdir(typing)
    session.run("mypy", "--strict", "usage.py")
    session.run("pyright", "--pythonpath", str(Path(session.bin) / "python"))

    session.chdir(source)
    session.env["PYTHONPATH"] = os.pathsep.join([str(source), str(source / "instrumentation")])
    selected = ("-m", "not hypothesis and not thorough and not alone", "tests/unit")
    options = ("-q", "--no-header", "-p", "no:cacheprovider")
    session.run(tool("python"), "-m", "pytest", *options, *selected, external=True)


def build(session: nox.Session, source: Path, target: Path, moment: str = "1767225600") -> None:
    """The sdist, and the wheel from it. What they contain is dated to that moment."""
    command = ("uv", "build", "--quiet", f"--out-dir={target}", str(source))
    session.run(*command, env={"SOURCE_DATE_EPOCH": moment}, external=True)


def packages_in(folder: Path) -> list[Path]:
    """The sdist and the wheel."""
    return sorted(folder.glob("pymongo_resilience-*"))


def compare(session: nox.Session, first: Path, second: Path) -> None:
    """Fail unless both folders have the same packages, byte for byte."""
    for each in packages_in(first):
        if each.read_bytes() != (second / each.name).read_bytes():
            session.error(f"{each.name} has other bytes if it is built again")
        session.log(f"built twice with the same bytes: {each.name}")


@in_venv("check", alone=True)
def alone(session: nox.Session) -> None:
    """Tests that run while no other does, one after the other."""
    pytest(session, "-m", "alone and not wheel")


# What is run by hand


@in_venv()
def conformance(session: nox.Session) -> None:
    """MongoDB's own tests, from the checkout that MONGODB_SPECIFICATIONS names."""
    pytest(session, paths=("tests/conformance",), workers=5)


@in_venv()
def chaos(session: nox.Session) -> None:
    """Ledger, failover, memory and hostile input at full length. CHAOS_SEED=7 repeats a run."""
    seed = os.environ.get("CHAOS_SEED", str(secrets.randbelow(100_000)))
    session.env |= {
        "CHAOS_SEED": seed,
        "CHAOS_SECONDS": os.environ.get("CHAOS_SECONDS", "60"),
        "CHAOS_OPERATIONS": os.environ.get("CHAOS_OPERATIONS", "200000"),
        "HYPOTHESIS_PROFILE": "chaos",
    }
    session.log(f"seed {seed}: CHAOS_SEED={seed} repeats this run")
    hostile = sorted(str(each.relative_to(ROOT)) for each in ROOT.glob("tests/unit/test_hostile_*"))
    pytest(session, "-o", "faulthandler_timeout=3600", paths=("tests/chaos", *hostile))


@in_venv()
def check_mongod(session: nox.Session) -> None:
    """All that talks to a server, on a mongod of yours: nox -s check_mongod -- /path/to/mongod."""
    session.run(tool("python"), "tests/compatibility/check_mongod.py", *session.posargs)


@nox.session(requires=["server"])
def compatibility(session: nox.Session) -> None:
    """Motor, MongoEngine, Beanie and Django, the newest of each."""
    frameworks = ("motor", "mongoengine", "beanie", "django-mongodb-backend")
    session.install("--upgrade", "--editable", ".[testbed]", "opentelemetry-sdk", *frameworks)
    use_server(session)
    failed = []
    # Each in a process of its own, because each imports and instruments in its own order.
    for script in sorted(ROOT.glob("tests/compatibility/try_*.py")):
        try:
            session.run("python", str(script))
        except CommandFailed:
            failed.append(script.name)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(requires=["server"])
def pymongo_tests(session: nox.Session) -> None:
    """pymongo's own tests, with plain pymongo and with the library. Takes hours."""
    pytest_plugins = ("pytest>=9", "pytest-asyncio", "pytest-timeout")
    session.install("--editable", ".[testbed]", "opentelemetry-sdk", "pip", *pytest_plugins)
    use_server(session)
    session.run("python", "tests/compatibility/pymongo_tests/run.py", *session.posargs)


@nox.session(requires=["server"])
@nox.parametrize("what", ["releases", "pre-releases"])
def latest(session: nox.Session, what: str) -> None:
    """The core of the tests, and each private name, on the newest of every dependency."""
    session.install("--upgrade", "--editable", ".[test]")
    if what == "pre-releases":
        dependencies = ("pymongo", "wrapt", "opentelemetry-sdk", "opentelemetry-instrumentation")
        session.install("--upgrade", "--prerelease=allow", *dependencies)
    session.run("python", "-c", "import pymongo; print('pymongo', pymongo.version)")
    pytest(session, "tests/unit/test_private_names.py")
    pytest(session, "--part=core", "-m", NOT_ALONE, paths=CORE_FOLDERS, workers=5)


@in_venv()
def coverage(session: nox.Session) -> None:
    """Lines and branches that the tests reach, subprocesses and forks included: build/coverage."""
    folder = ROOT / "build" / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {"COVERAGE_FILE": str(folder / "data"), "COVERAGE_PROCESS_START": ""}
    arguments = session.posargs or ("--part=quick", "-m", NOT_ALONE, "-n", "5", "--dist=worksteal")
    command = ("run", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *arguments)
    # Some tests trace calls themselves, and fail beside another tracer; they count as run.
    session.run(tool("coverage"), *command, env=env, success_codes=[0, 1])
    session.run(tool("coverage"), "combine", "--quiet", env=env)
    session.run(tool("coverage"), "html", "--quiet", f"--directory={folder}", env=env)
    session.run(tool("coverage"), "json", "--quiet", f"-o{folder / 'coverage.json'}", env=env)
    session.run(tool("coverage"), "report", "--skip-covered", "--sort=miss", env=env)
    changed = changed_sources(session)
    if changed:
        session.log("the files that differ from main:")
        only = ("--show-missing", f"--include={','.join(changed)}")
        # If the tests import none of them, there is nothing to report.
        session.run(tool("coverage"), "report", *only, env=env, success_codes=[0, 1])
    if not session.posargs:
        session.run(tool("python"), "tests/figures/coverage_figure.py", f"{folder}/coverage.json")


def changed_sources(session: nox.Session) -> list[str]:
    """The modules that differ from main, committed or not; none without a branch of that name."""
    try:
        base = session.run("git", "merge-base", "main", "HEAD", silent=True, external=True)
        command = ("git", "diff", "--name-only", str(base).strip(), "--", "*.py")
        names = session.run(*command, silent=True, external=True)
    except CommandFailed:
        return []
    packages = ("pymongo_resilience/", "instrumentation/")
    return [each for each in str(names).splitlines() if each.startswith(packages)]


@in_venv()
def figures(session: nox.Session) -> None:
    """All figures of the tests: their size, `coverage`, and `mutation`."""
    session.run(tool("python"), "tests/figures/size_figures.py")
    session.notify("coverage")
    session.notify("mutation")


@nox.session
def mutation(session: nox.Session) -> None:
    """Whether the unit tests notice small changes to the code that decides."""
    session.install("--editable", ".[test]", "mutmut==3.8.*")
    session.run("python", "tests/figures/mutation_score.py", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """What a release consists of, in build/release: nox -s release -- v1.2.3 checks the version."""
    session.install("twine>=6", "cyclonedx-bom>=7", "pip-licenses>=5")
    target, folder = ROOT / "build" / "release", Path(session.create_tmp()).resolve()
    for each in (target, folder):
        shutil.rmtree(each, ignore_errors=True)
    commit = session.run("git", "show", "-s", "--format=%ct", silent=True, external=True)
    for name in ("first", "second"):
        clone = folder / name / "clone"
        session.run("git", "clone", "--quiet", str(ROOT), str(clone), external=True)
        build(session, clone, folder / name / "dist", str(commit).strip())
    dist = folder / "first" / "dist"
    compare(session, dist, folder / "second" / "dist")
    (wheel_file,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    version = sdist.name.removeprefix("pymongo_resilience-").removesuffix(".tar.gz")
    if session.posargs and session.posargs[0].removeprefix("v") != version:
        session.error(f"the tag is {session.posargs[0]}, and the version {version}")
    session.run("twine", "check", "--strict", str(wheel_file), str(sdist))

    (target / "dist").mkdir(parents=True)
    for each in packages_in(dist):
        shutil.copy(each, target / "dist")
    digests = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}"
        for each in (wheel_file, sdist)
    ]
    (target / "SHA256SUMS").write_text("\n".join(digests) + "\n")
    # What a user installs, without extras.
    users = folder / "users"
    python = str(users / BIN.name / "python")
    session.run("uv", "venv", "--quiet", str(users), external=True)
    install = ("uv", "pip", "install", "--quiet", "--only-binary=:all:", f"--python={python}")
    session.run(*install, str(wheel_file), external=True)
    sbom, licenses = str(target / "sbom.cdx.json"), str(target / "licenses.md")
    session.run("cyclonedx-py", "environment", "--output-reproducible", "-o", sbom, python)
    licenses_of_all = ("pip-licenses", f"--python={python}", "--with-urls", "--format=markdown")
    session.run(*licenses_of_all, f"--output-file={licenses}")
