# Needs python3 (3.11 or newer) and make; everything else is installed into .venv and its like.
#
#   make demo ARGS="--seconds 30"   one workload through scripted faults, four sides compared; build/demo.svg
#   make test                       what a change can break, in five minutes
#   make check                      every check of the project: make test, and all that takes longer
#   make failed                     once more what failed in the last of them
#   make chaos SEED=7               ledger, failover, memory and hostile input at full length
#   make check-mongod SERVER=PATH   integration tests, MongoDB's own, ledger and demo on a mongod of yours
#   make conformance                MongoDB's own tests, from the checkout that MONGODB_SPECIFICATIONS names
#   make compatibility              Motor, MongoEngine, Beanie and Django, the newest of each
#   make pymongo-tests             pymongo's own tests, with plain pymongo and with the library
#   make examples                   the examples of frameworks: each loses replies, and shows the retries
#   make bench                      what a healthy operation costs, beside pymongo and others
#   make report                     all that the documents quote: measured, kept, written into them
#   make bench-failing-server       what a failing server costs, with circuit breakers and without
#   make bench-recovery             how fast operations go on after a fault, beside plain pymongo
#   make bench-overload             what an overloaded server gets done, by how its clients retry
#   make docs                       the documents as a site: build/site/index.html
#   make check-docs                 the site, its search, and each page in a browser: build/screenshots
#   make fleet                      simulated fleets under overload: a table and a figure of bench/overload.md
#   make package                    sdist and wheel: metadata, tests from the sdist, types by mypy and pyright
#   make clean                      remove what the other targets made

PYTHON ?= python3
# Python compiles what is imported, and pip would compile all of it.
PIP_INSTALL = bin/python -m pip install --quiet --no-compile --disable-pip-version-check

PIP_INTO = $(MAIN)/bin/python -m pip --disable-pip-version-check --python
PURELIB = $(MAIN)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

MAIN := .venv
OLDEST := .venv-oldest
WHEEL := .venv-wheel
COMPATIBILITY := .venv-compatibility
EXAMPLES := .venv-examples
PYMONGO_TESTS := .venv-pymongo-tests
PACKAGE := .venv-package
DOCS := .venv-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check check-mongod rest failed counts chaos conformance compatibility pymongo-tests bench bench-failing-server bench-hedging bench-recovery bench-overload fleet report docs check-docs examples package clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(MAIN)/demo.stamp
	@mkdir -p build
	@$(MAIN)/bin/pymongo-resilience demo --svg build/demo.svg $(ARGS)
	@echo "The same for a browser: build/demo.svg"

test rest failed counts:
	@$(PYTHON) .ci/steps.py $@

check:
	@failed=0; for part in test rest; do \
	  $(MAKE) --no-print-directory $$part || failed=1; done; exit $$failed

# Some of its steps: ARGS="demo".
check-mongod: $(MAIN)/dev.stamp
	@$(MAIN)/bin/python .ci/check_mongod.py $(or $(SERVER),$(error SERVER=/path/to/mongod)) $(ARGS)

# A seed that is not given is thrown; every run prints its own. One part alone: ARGS=tests/chaos/test_ledger.py.
SEED ?= $(shell $(PYTHON) -c 'import secrets; print(secrets.randbelow(100000))')
DURATION ?= 60
OPERATIONS ?= 200000
chaos: SEED := $(SEED)
chaos: $(MAIN)/dev.stamp
	@echo "seed $(SEED): make chaos SEED=$(SEED) repeats it"
	@CHAOS_SEED=$(SEED) CHAOS_SECONDS=$(DURATION) CHAOS_OPERATIONS=$(OPERATIONS) \
	  HYPOTHESIS_PROFILE=chaos $(MAIN)/bin/pytest -o faulthandler_timeout=3600 \
	  $(or $(ARGS),tests/chaos tests/unit/test_hostile_*)

conformance: $(MAIN)/dev.stamp
	@$(MAIN)/bin/pytest tests/conformance

# Each in a process of its own; all of them, whatever becomes of the first.
compatibility: $(COMPATIBILITY)/stamp
	@failed=0; for each in tests/compatibility/try_*.py; do \
	  $(COMPATIBILITY)/bin/python $$each || failed=1; done; exit $$failed

# An hour or more on the emulator, and on a mongod with SERVER=PATH. Some modules: ARGS="test_session".
pymongo-tests: $(PYMONGO_TESTS)/stamp
	@$(PYMONGO_TESTS)/bin/python tests/compatibility/pymongo_tests/run.py \
	  $(if $(SERVER),--server mongod=$(SERVER)) $(ARGS)

examples: $(EXAMPLES)/stamp
	@$(EXAMPLES)/bin/python -m pytest -q --no-header $(ARGS) tests/frameworks/check_*.py

# The unit tests run from the unpacked sdist; mypy and pyright see the wheel, as users have it.
# The wheel is installed with what it needs, and again in place of an older one of its version.
package: $(MAIN)/dev.stamp $(PACKAGE)/stamp
	@rm -rf build/package && mkdir -p build/package/types
	@$(MAIN)/bin/python -m build --no-isolation --outdir build/package . > build/package/log
	@$(PACKAGE)/bin/twine check --strict build/package/*.tar.gz build/package/*.whl
	@$(PACKAGE)/$(PIP_INSTALL) build/package/*.whl
	@$(PACKAGE)/$(PIP_INSTALL) --force-reinstall --no-deps build/package/*.whl
	@cp tests/typing/usage.py tests/typing/pyrightconfig.json build/package/types
	@cd build/package/types && $(CURDIR)/$(PACKAGE)/bin/mypy --strict usage.py
	@cd build/package/types && $(CURDIR)/$(PACKAGE)/bin/pyright --pythonpath $(CURDIR)/$(PACKAGE)/bin/python
	@cd build/package && tar xzf *.tar.gz && cd pymongo_resilience-*/ && \
	  PYTHONPATH=$$PWD:$$PWD/instrumentation $(CURDIR)/$(MAIN)/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider -m "not hypothesis and not thorough and not alone" $(ARGS) tests/unit

# How long the server fails, in seconds: ARGS=30.
bench-failing-server: $(MAIN)/demo.stamp
	@$(MAIN)/bin/python bench/failing_server.py $(ARGS)

# Five minutes. How long each phase is, in seconds: ARGS=30. What the client alone takes at a
# thousand reads a second: ARGS="--canned --rate 1000".
bench-hedging: $(MAIN)/demo.stamp build/canned_server
	@$(MAIN)/bin/python bench/hedging.py $(ARGS)

# Five minutes. One fault alone: ARGS="--only cut".
bench-recovery: $(MAIN)/demo.stamp
	@$(MAIN)/bin/python bench/recovery.py $(ARGS)

# CPU of a healthy find_one, as ratios within one run. Takes a minute or two.
bench: $(MAIN)/dev.stamp build/canned_server
	@$(MAIN)/bin/python bench/healthy.py $(ARGS)

# bench/report.json and the tables and figures of docs/performance.md, bench/overload.md and bench/recovery.md. All but overload;
# one section anew: ARGS="--only footprint"; the documents alone: ARGS=--documents; more: ARGS=--help.
report: $(MAIN)/bench.stamp build/canned_server
	@$(MAIN)/bin/python bench/make_report.py $(ARGS)

# Fails where a link or an anchor leads nowhere.
docs: $(DOCS)/stamp
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# Takes a Chromium, where there is one (Debian: chromium-headless-shell).
check-docs: docs $(MAIN)/dev.stamp
	@$(MAIN)/bin/python -m pytest -q --no-header $(ARGS) tests/site/check_site.py

build/canned_server: bench/canned_server.c
	@mkdir -p build
	@command -v $(CC) > /dev/null || \
	  { echo "there is no C compiler ($(CC)): Debian: apt-get install gcc libc6-dev"; exit 1; }
	$(CC) -O2 -o $@ $<

clean:
	rm -rf $(MAIN) $(OLDEST) $(WHEEL) $(COMPATIBILITY) $(PYMONGO_TESTS) $(DOCS) $(EXAMPLES) $(PACKAGE) .venv-3.* build dist .hypothesis .import_linter_cache .mypy_cache \
	  .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Takes a quarter of an hour. ARGS="--seed 9" for other arrivals, ARGS="--json list.json" for the numbers. The
# documents take them from there: make report ARGS="--overload list.json".
bench-overload: $(MAIN)/bench.stamp
	@$(MAIN)/bin/python bench/overload.py $(ARGS)

# Virtual time: a minute, the same numbers everywhere. Other sizes of the budget: bench/fleet.py --candidates.
fleet: $(MAIN)/bench.stamp
	@$(MAIN)/bin/python bench/make_report.py --only fleet

# A stamp is newer than pyproject.toml, or its environment is brought up to date first.

$(MAIN)/demo.stamp: pyproject.toml | $(MAIN)/bin/python
	$(MAIN)/$(PIP_INSTALL) --editable ".[demo]"
	@touch $@

$(MAIN)/dev.stamp: pyproject.toml | $(MAIN)/bin/python
	$(MAIN)/$(PIP_INSTALL) --editable ".[dev]"
	@touch $@ $(MAIN)/demo.stamp

$(MAIN)/bench.stamp: $(MAIN)/dev.stamp
	$(MAIN)/$(PIP_INSTALL) --editable ".[bench]"
	@touch $@

# The oldest pymongo that is supported, in front of all that the main environment has.
$(OLDEST)/stamp: pyproject.toml $(MAIN)/dev.stamp
	@test -x $(OLDEST)/bin/python || $(MAIN)/bin/python -m venv --without-pip $(OLDEST)
	$(PIP_INTO) $(OLDEST)/bin/python install --quiet --no-compile --no-deps "pymongo==4.19.*"
	@echo "import site; site.addsitedir('$$($(PURELIB))')" > \
	  "$$(echo $(OLDEST)/lib/python*/site-packages)/main_environment.pth"
	@touch $@

# Any other Python, for the core of the tests: make .venv-3.12/stamp PYTHON=python3.12
.venv-3.%/stamp: pyproject.toml | $(MAIN)/bin/python
	@test -x $(@D)/bin/python || $(PYTHON) -m venv --without-pip $(@D)
	$(PIP_INTO) $(@D)/bin/python install --quiet --no-compile --editable ".[test]"
	@touch $@

$(PYMONGO_TESTS)/stamp: pyproject.toml | $(PYMONGO_TESTS)/bin/python
	$(PYMONGO_TESTS)/$(PIP_INSTALL) --editable ".[testbed]" opentelemetry-sdk pytest pytest-asyncio pytest-timeout
	@touch $@

$(EXAMPLES)/stamp: pyproject.toml examples/frameworks/requirements.txt | $(EXAMPLES)/bin/python
	$(EXAMPLES)/$(PIP_INSTALL) --editable ".[testbed]" pytest --requirement examples/frameworks/requirements.txt
	@touch $@

# Pyright's package fetches its own part from npm, once.
$(PACKAGE)/stamp: pyproject.toml | $(PACKAGE)/bin/python
	$(PACKAGE)/$(PIP_INSTALL) "twine>=6" "mypy>=1.15" "pyright>=1.1.400"
	@touch $@

$(DOCS)/stamp: pyproject.toml | $(DOCS)/bin/python
	$(DOCS)/$(PIP_INSTALL) --editable ".[docs]"
	@touch $@

# Built on pymongo, and no dependencies of the tests. Remove it to have the newest again.
$(COMPATIBILITY)/stamp: pyproject.toml | $(COMPATIBILITY)/bin/python
	$(COMPATIBILITY)/$(PIP_INSTALL) --editable ".[testbed]" opentelemetry-sdk motor mongoengine beanie django-mongodb-backend
	@touch $@

# What a user installs. Built anew every time, and installed without the source tree.
.PHONY: $(WHEEL)/stamp
$(WHEEL)/stamp: $(MAIN)/dev.stamp
	@test -x $(WHEEL)/bin/python || $(MAIN)/bin/python -m venv --without-pip $(WHEEL)
	rm -rf dist
	$(MAIN)/bin/python -m build --no-isolation --wheel --outdir dist . > /dev/null
	$(PIP_INTO) $(WHEEL)/bin/python install --quiet --force-reinstall --no-deps dist/*.whl
	$(PIP_INTO) $(WHEEL)/bin/python install --quiet --no-compile "pymongo-resilience[testbed]" "pytest>=8.3"
	@touch $@

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -m venv $* || { rm -rf $*; \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)"; exit 1; }
