# Tasks of this project; `make help` lists them. Each of them creates .venv and installs what it
# needs, in the versions of requirements/*.lock; a second call installs nothing, because a stamp in
# .venv is newer than the lock file.
# PYTHON chooses the interpreter for a new .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2

# What is installed: the broker alone, the development tools, and Spark.
FOR_RUN := $(VENV)/.installed-for-run
FOR_DEV := $(VENV)/.installed-for-dev
FOR_ALL := $(VENV)/.installed-for-all
SEMGREP := $(VENV)/semgrep/bin/semgrep
UV := $(VENV)/uv/bin/uv
LOWEST := $(VENV)/lowest
# mypyc, which compiles the hot path; not in .venv itself, where `make run` needs no such tools.
MYPYC := $(VENV)/compile/bin/mypyc
# The fast tests that run in the compiled form, too.
COMPILED_TESTS := tests/unit/amqp_server tests/unit/model tests/unit/queues tests/unit/storage \
    tests/unit/log tests/unit/test_form.py tests/semantics tests/contract \
    tests/integration/test_runs.py tests/packaging/test_compiled_wheel.py
# Pins of an application from a year ago that uses the pytest plugin.
YEAR_OLD := fastapi==0.121.3 sqlalchemy==2.0.44
# Tools of the tests that must run with any version of the dependencies.
LOWEST_TOOLS := aio-pika amqpstorm blockbuster hypothesis kombu packaging pika pyarrow pyrabbit2 pytest \
    pytest-asyncio pytest-timeout pyyaml trustme
# New versions of indirect dependencies deprecate what old versions of the direct ones use; flower
# and Spark are not installed.
LOWEST_OPTIONS := -p no:cacheprovider -W ignore::DeprecationWarning -k "not flower and not test_export_"
LOWEST_TESTS := tests/plugin tests/contract tests/unit/amqp_server tests/unit/storage \
    tests/unit/queues tests/unit/move tests/http/manage tests/http/test_overview.py \
    tests/http/test_metrics.py tests/features tests/log tests/semantics tests/cli \
    tests/integration/test_pika.py tests/integration/test_aio_pika.py tests/integration/test_runs.py

.DEFAULT_GOAL := check
.PHONY: check help setup run compile test test-compiled test-random test-lowest lock coverage clients deploy-check lint format bench torture torture-spark ui docs docs-check readme wheel clean

check: lint test  ## Lint, types and tests (the default)

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	    awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

setup: $(FOR_ALL) ui  ## Create .venv with everything for tests and lint
	@tools/system-part java
	@tools/system-part chromium
	@tools/system-part strace
	@tools/system-part fuse
	@tools/system-part openssl
	@tools/system-part systemd
	@tools/system-part jemalloc
	@tools/system-part rabbitmq
	@$(BIN)/python -m tools.node_client

run: $(FOR_RUN)  ## Start a broker (installs only its own dependencies); ARGS="--memory ..."
	@$(BIN)/python tools/build_ui.py --fetch-node || \
	    echo "Starting without the web UI; the HTTP API is not affected."
	@tools/compile-later "$(MAKE)"
	@exec $(BIN)/leveret serve $(ARGS)

compile: $(FOR_RUN) $(MYPYC)  ## Compile the hot path into build/compiled, which `make run` then uses
	@$(VENV)/compile/bin/python tools/compile_modules.py

# Spark and Chromium tests each stay in one process (tests/conftest.py).
test: setup  ## Run the tests; K=expression selects some, WORKERS=0 uses one process
	LEVERET_COMPILED=0 $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder \
	    $(if $(K),-k "$(K)") $(ARGS)

test-compiled: $(FOR_DEV) ui compile  ## Run the fast tests with the compiled hot path
	LEVERET_COMPILED=1 $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder $(COMPILED_TESTS) $(ARGS)

clients: $(FOR_DEV)  ## Test clients in other languages (Go, Ruby, Java, PHP, C, Node); installs them
	@tools/system-part clients
	@$(BIN)/python -m tools.node_client
	$(BIN)/python -m pytest -m "clients or not clients" tests/clients $(ARGS)

deploy-check: $(FOR_DEV) ui  ## Test the documented installations (make run, pip, systemd, podman) as root
	@tools/system-part systemd
	@tools/system-part network
	@tools/system-part podman
	$(BIN)/python -m pytest -m "deploy or not deploy" tests/packaging/test_systemd.py \
	    tests/packaging/test_container.py tests/packaging/test_first_steps.py $(ARGS)

test-random: setup  ## Run the tests in random order with new Hypothesis examples; SEED=number repeats a run
	LEVERET_COMPILED=0 RANDOM_EXAMPLES=1 $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -p randomly \
	    $(if $(SEED),--randomly-seed=$(SEED)) $(if $(K),-k "$(K)") $(ARGS)

coverage: setup  ## Run the tests and report line and branch coverage; build/coverage
	LEVERET_COMPILED=0 $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --cov --cov-report=term:skip-covered \
	    --cov-report=html:build/coverage --cov-report=json:build/coverage.json $(ARGS)
	$(BIN)/python tools/coverage_figure.py build/coverage.json

test-lowest: $(UV)  ## Run the fast tests with the oldest versions that pyproject.toml allows
	$(UV) venv --quiet --clear --python $(BIN)/python $(LOWEST)
	HATCH_BUILD_NO_HOOKS=true $(UV) pip install --quiet --python $(LOWEST) \
	    --resolution lowest-direct --editable '.[tls]'
	$(UV) pip install --quiet --python $(LOWEST) $(LOWEST_TOOLS)
	$(LOWEST)/bin/python -m pytest $(LOWEST_OPTIONS) $(LOWEST_TESTS) $(ARGS)
	$(UV) pip install --quiet --python $(LOWEST) $(YEAR_OLD)
	$(LOWEST)/bin/python -m pytest $(LOWEST_OPTIONS) tests/plugin $(ARGS)

lock: $(UV)  ## Write requirements/*.lock from pyproject.toml; ARGS=--upgrade takes the newest versions
	@tools/lock $(UV) $(ARGS)

lint: $(FOR_ALL)  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(FOR_DEV)  ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(FOR_DEV)  ## Compare with RabbitMQ, NATS and Redis side by side; ARGS="--json ..."
	$(BIN)/python -m benchmarks $(ARGS)

torture: $(FOR_DEV) $(SEMGREP)  ## Kill, starve, damage and attack a broker, and check the results; ARGS="--only R-02"
	@tools/system-part strace
	@tools/system-part fuse
	@tools/system-part faketime
	@tools/system-part jemalloc
	@tools/system-part network
	@tools/system-part testssl
	@tools/system-part rabbitmq
	$(BIN)/python -m tests.torture $(ARGS)

torture-spark: setup  ## Export random histories of killed brokers, also on local-cluster
	$(BIN)/python -m pytest -n 0 -m torture tests/spark $(ARGS)

ui: $(FOR_RUN)  ## Build the web UI if its sources changed
	@$(BIN)/python tools/build_ui.py --fetch-node

docs: $(FOR_DEV)  ## Build the documentation site in build/site; warnings are errors
	$(BIN)/python -m mkdocs build --strict

docs-check: $(FOR_DEV)  ## Check that the documentation matches the code and that its examples run
	$(BIN)/python -m pytest -q tests/docs tests/test_docs.py tests/unit/test_config.py \
	    -k "docs or reference"

readme: $(FOR_DEV)  ## Copy the main figures from docs/performance.md into README.md
	$(BIN)/python tools/readme_figures.py

wheel: $(FOR_DEV) ui  ## Build sdist, pure wheel and platform wheel, with the web UI, in dist/
	$(BIN)/python -m hatchling build -t sdist -t wheel
	LEVERET_BUILD_COMPILED=1 $(BIN)/python -m hatchling build -t wheel

clean:  ## Remove builds and caches, but not .venv and data
	rm -rf build dist http_admin/ui/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path '*/node_modules/*' \
	    -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Leveret needs Python 3.11 or later; choose one with make PYTHON=..." >&2; exit 1; }
	@tools/system-part venv $(PYTHON)
	@echo "Creating $(VENV)."
	@$(PYTHON) -m venv --upgrade-deps $(VENV) >/dev/null

# pip checks the hashes; then Leveret itself is installed, without a download.
install = $(PIP) --require-hashes --requirement requirements/$(1).lock && \
    $(PIP) --no-deps --no-build-isolation --editable .

$(FOR_RUN): pyproject.toml requirements/run.lock | $(BIN)/python
	@echo "Installing the dependencies of the broker into $(VENV)."
	@$(call install,run)
	@touch $@

$(FOR_DEV): pyproject.toml requirements/dev.lock | $(BIN)/python
	@echo "Installing the development dependencies into $(VENV)."
	@$(call install,dev)
	@touch $(FOR_RUN) $@

$(MYPYC): requirements/compile.lock | $(BIN)/python
	@echo "Installing mypyc into a separate environment."
	@$(BIN)/python -m venv $(VENV)/compile >/dev/null
	@$(VENV)/compile/bin/python -m pip install --quiet --disable-pip-version-check \
	    --require-hashes --requirement requirements/compile.lock
	@touch $@

# semgrep needs older versions of packages that other tools use.
$(SEMGREP): | $(BIN)/python
	@echo "Installing semgrep into a separate environment."
	@$(BIN)/python -m venv --upgrade-deps $(VENV)/semgrep >/dev/null
	@$(VENV)/semgrep/bin/python -m pip install --quiet --disable-pip-version-check 'semgrep>=1.182.0'

$(UV): | $(BIN)/python
	@echo "Installing uv into a separate environment."
	@$(BIN)/python -m venv --upgrade-deps $(VENV)/uv >/dev/null
	@$(VENV)/uv/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'

$(FOR_ALL): pyproject.toml requirements/all.lock | $(BIN)/python
	@echo "Installing the dependencies of all tests into $(VENV); Spark alone takes 500 MB."
	@$(call install,all)
	@touch $(FOR_RUN) $(FOR_DEV) $@
