# Everything here works with Python 3.11 or newer, its venv, pip and make; nothing else need be installed.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes

# What a server needs, and what the model that was asked for needs on top.
RUNTIME := .venv/runtime.installed
ifneq ($(filter anthropic:%,$(AGENT_MODEL)),)
RUNTIME += .venv/anthropic.installed
endif
DEV := .venv/dev.installed

.PHONY: run cluster test coverage test-services search faults kills races lives zoo bench lint format lock

# Port 8000, or the one in PORT.
run: $(RUNTIME)
	@exec $(BIN)/python manage.py quickstart

# The same with PostgreSQL, Redis, two web processes and two workers. It ends with this make, however that ends.
cluster: $(RUNTIME) .venv/cluster.installed
	@exec $(BIN)/python -I chat/cluster/end_with_parent.py $$PPID SIGTERM "" $(BIN)/python manage.py cluster

# Side by side, file by file: half of the time a test waits for something, so there are more processes than
# two cores would have. What is skipped, for want of a Chromium say, is named at the end.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test: $(DEV)
	@exec $(PYTEST) $(ARGS)

# The same, and which lines and branches it went through. Less than the floor in pyproject.toml fails.
coverage: $(DEV)
	@$(MAKE) --no-print-directory test ARGS="-p pytest_cov.plugin --cov --cov-report=term:skip-covered $(ARGS)"

# What asks for a database, once more on PostgreSQL and Redis; both are started for it.
test-services: $(DEV)
	@exec $(BIN)/python -m tests.services $(PYTEST) $(or $(ARGS),tests/runs tests/chat tests/admin tests/zoo)

# What searches by chance, and further than the tests do. Each prints its seed; to repeat it, set the variable.
search: faults kills races lives zoo

# Everything breaks for FAULT_SECONDS under a load of turns; then all of it is accounted for.
faults: export FAULT_SECONDS ?= 60
faults: export FAULT_SEED ?= random
faults: $(DEV)
	@$(BIN)/python -m pytest -m faults -s tests/processes/test_faults.py $(ARGS)

# A server is ended KILL_ROUNDS times, in the middle of turns of every kind.
kills: export KILL_ROUNDS ?= 20
kills: export KILL_SEED ?= random
kills: $(DEV)
	@$(BIN)/python -m pytest -s tests/processes/test_kill.py -k after_a_kill $(ARGS)

# Each pair of operations that can meet does so RACE_TRIES times.
races: export RACE_TRIES ?= 300
races: export RACE_SEED ?= random
races: $(DEV)
	@$(BIN)/python -m pytest -s -k against tests/runs/test_races.py tests/admin/test_races.py \
		tests/chat/api/test_turns.py tests/chat/openai/test_completions.py $(ARGS)

# STATEFUL_EXAMPLES lives of sessions, and of their checkpoints, after each step of which every invariant is checked.
lives: export STATEFUL_EXAMPLES ?= 200
lives: export STATEFUL_SEED ?= random
lives: export STATEFUL_MUTATIONS ?= all
lives: $(DEV)
	@$(BIN)/python -m pytest -s tests/runs/test_stateful.py $(ARGS)

# Each graph of the zoo, led through each kind of life, is interfered with at each moment of it.
zoo: export ZOO_POINTS ?= all
zoo: $(DEV)
	@$(PYTEST) tests/zoo $(ARGS)

bench: $(DEV)
	@exec $(BIN)/python -m tests.benchmarks $(ARGS)

# Before each commit, too, after `.venv/bin/pre-commit install`.
lint: $(DEV)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	SECRET_KEY=lint $(BIN)/mypy
	$(BIN)/lint-imports
	SECRET_KEY=lint $(BIN)/python manage.py makemigrations --check --dry-run

format: $(DEV)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The versions of everything, for all Pythons and systems, pinned by hash.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --constraints .ci/constraints.txt $(UPGRADE) pyproject.toml
lock: $(DEV)
	$(COMPILE) --output-file requirements.txt
	$(COMPILE) --constraints requirements.txt --extra anthropic --output-file requirements-anthropic.txt
	$(COMPILE) --constraints requirements.txt --extra cluster --output-file requirements-cluster.txt
	$(COMPILE) --constraints requirements.txt --group dev --output-file requirements-dev.txt

# A stamp is as new as the last installation of its lock: nothing is done while the lock is older.
.venv/runtime.installed: requirements.txt | .venv/bin/python
	@echo "Installing what the server needs; this takes a minute."
	@$(INSTALL) -r requirements.txt
	@touch $@

.venv/anthropic.installed: requirements-anthropic.txt | .venv/bin/python
	@echo "Installing what the model needs."
	@$(INSTALL) -r requirements-anthropic.txt
	@touch $@

.venv/cluster.installed: requirements-cluster.txt | .venv/bin/python
	@echo "Installing PostgreSQL and Redis."
	@$(INSTALL) -r requirements-cluster.txt
	@touch $@

.venv/dev.installed: requirements-dev.txt | .venv/bin/python
	@echo "Installing what the tests need; this takes a minute."
	@$(INSTALL) -r requirements-dev.txt
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed.")'
	@$(PYTHON) -m venv .venv
