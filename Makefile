# Needs python3 (3.11 or newer) and make; everything else is installed into .venv and .nox.
#
#   make demo ARGS="--seconds 30"   one workload through scripted faults, four sides compared; build/demo.svg
#   make test                       what a change can break, in five minutes
#   make check                      every check of the project: make test, and all that takes longer
#   make sessions                   list the checks; each has a name: make lint, make docs, make package
#   make clean                      remove what the other commands made
#
# Checks that are run by hand:
#
#   make chaos SEED=7               ledger, failover, memory and hostile input at full length
#   make check-mongod SERVER=PATH   integration tests, MongoDB's own, ledger and demo on a mongod of yours
#   make conformance                MongoDB's own tests, from the checkout that MONGODB_SPECIFICATIONS names
#   make compatibility              Motor, MongoEngine, Beanie and Django, the newest of each
#   make pymongo-tests              pymongo's own tests, with plain pymongo and with the library
#   make latest                     the core of the tests on the newest of every dependency, and on pre-releases
#   make coverage                   which lines and branches the tests reach
#   make mutation                   whether the unit tests notice small changes to the code that decides
#   make figures                    both, and how large the tests are: all figures by one command
#   make release                    what a release consists of, in build/release
#
# Measurements:
#
#   make report                     everything that the documents quote: measured, kept, and written into them
#   make bench                      what a healthy operation costs, beside pymongo and others
#   make bench-failing-server       what a failing server costs, with circuit breakers and without
#   make bench-hedging              what hedged reads cost and save
#   make bench-recovery             how fast operations continue after a fault, beside plain pymongo
#   make bench-overload             what an overloaded server gets done, by how its clients retry
#   make fleet                      simulated fleets under overload: a table and a figure of bench/overload.md

PYTHON ?= python3
JOBS ?= 2
TOOLS := .venv-nox
NOX := $(TOOLS)/bin/nox
BENCH := .venv/bin/python

SESSIONS := lint types tests oldest wheel thorough properties oldest-thorough core docs site examples \
  package alone wheels conformance compatibility latest coverage mutation figures release prose
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test rest check sessions dev chaos check-mongod check-docs pymongo-tests clean $(SESSIONS) \
  report bench bench-failing-server bench-hedging bench-recovery bench-overload fleet

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(NOX)
	@$(NOX) -s demo -- $(ARGS)

test: $(NOX)
	@$(NOX) -j $(JOBS) -t test

rest: $(NOX)
	@$(NOX) -j $(JOBS) -t check

check: $(NOX)
	@$(NOX) -j $(JOBS) -t test check

sessions: $(NOX)
	@$(NOX) -l

# One session by its name. Arguments of pytest: make tests ARGS="-k budget".
dev $(SESSIONS): $(NOX)
	@$(NOX) -s $(subst -,_,$@) -- $(ARGS)

check-docs: site

# Without SEED a random one is used; every run prints its own. One part alone: ARGS=tests/chaos/test_ledger.py.
chaos: $(NOX)
	@$(if $(SEED),CHAOS_SEED=$(SEED)) $(if $(DURATION),CHAOS_SECONDS=$(DURATION)) \
	  $(if $(OPERATIONS),CHAOS_OPERATIONS=$(OPERATIONS)) $(NOX) -s chaos -- $(ARGS)

# Some of its steps: ARGS="demo".
check-mongod: $(NOX)
	@$(NOX) -s check_mongod -- $(or $(SERVER),$(error SERVER=/path/to/mongod)) $(ARGS)

# An hour or more on the emulator, and on a mongod with SERVER=PATH. Some modules: ARGS="test_session".
pymongo-tests: $(NOX)
	@$(NOX) -s pymongo_tests -- $(if $(SERVER),--server mongod=$(SERVER)) $(ARGS)

clean:
	rm -rf .venv .nox $(TOOLS) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# bench/report.json and the tables and figures of docs/performance.md, bench/overload.md and bench/recovery.md. All but
# overload; one section anew: ARGS="--only footprint"; the documents alone: ARGS=--documents; more: ARGS=--help.
report: dev build/canned_server
	@$(BENCH) bench/make_report.py $(ARGS)

# CPU of a healthy find_one, as ratios within one run. Takes a minute or two.
bench: dev build/canned_server
	@$(BENCH) bench/healthy.py $(ARGS)

# How long the server fails, in seconds: ARGS=30.
bench-failing-server: dev
	@$(BENCH) bench/failing_server.py $(ARGS)

# Five minutes. How long each phase is, in seconds: ARGS=30. What the client alone takes at a
# thousand reads a second: ARGS="--canned --rate 1000".
bench-hedging: dev build/canned_server
	@$(BENCH) bench/hedging.py $(ARGS)

# Five minutes. One fault alone: ARGS="--only cut".
bench-recovery: dev
	@$(BENCH) bench/recovery.py $(ARGS)

# Takes a quarter of an hour. ARGS="--seed 9" for other arrivals, ARGS="--json list.json" for the numbers. The
# documents take them from there: make report ARGS="--overload list.json".
bench-overload: dev
	@$(BENCH) bench/overload.py $(ARGS)

# Virtual time: a minute, the same numbers everywhere. Other sizes of the budget: bench/fleet.py --candidates.
fleet: dev
	@$(BENCH) bench/make_report.py --only fleet

build/canned_server: bench/canned_server.c
	@mkdir -p build
	@command -v $(CC) > /dev/null || \
	  { echo "there is no C compiler ($(CC)): Debian: apt-get install gcc libc6-dev"; exit 1; }
	$(CC) -O2 -o $@ $<

$(NOX):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -m venv $(TOOLS) || { rm -rf $(TOOLS); \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)"; exit 1; }
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check "nox[uv]>=2026.10" || { rm -rf $(TOOLS); exit 1; }
