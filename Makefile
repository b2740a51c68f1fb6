# Tasks of this project; `make help` lists them. All of them create and fill .venv as far as they
# need it, and a second call installs nothing again: a stamp inside .venv is newer than
# pyproject.toml. PYTHON chooses the interpreter a new .venv is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2

# What is installed: the broker alone, what develops it, and Spark on top.
FOR_RUN := $(VENV)/.installed-for-run
FOR_DEV := $(VENV)/.installed-for-dev
FOR_ALL := $(VENV)/.installed-for-all
FOR_TORTURE := $(VENV)/.installed-for-torture
SEMGREP := $(VENV)/semgrep/bin/semgrep

.DEFAULT_GOAL := check
.PHONY: check help setup run test test-random coverage clients deploy-check lint format bench torture torture-spark ui docs docs-check readme wheel clean

check: lint test  ## Lint, types and tests (the default)

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	    awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

setup: $(FOR_ALL) ui  ## Create .venv with everything that tests and lint need
	@tools/system-part java
	@tools/system-part chromium
	@tools/system-part strace
	@tools/system-part fuse
	@tools/system-part openssl
	@tools/system-part systemd
	@tools/system-part rabbitmq
	@$(BIN)/python -m tools.node_client

run: $(FOR_RUN)  ## Start a broker (only its own dependencies are installed); ARGS="--memory ..."
	@$(BIN)/python tools/build_ui.py --fetch-node || \
	    echo "Starting without the web UI; the HTTP API is not affected."
	@exec $(BIN)/leveret serve $(ARGS)

# Tests of Spark and of Chromium stay in one process each (tests/conftest.py).
test: setup  ## Run the tests; K=expression chooses some, WORKERS=0 runs them in one process
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder \
	    $(if $(K),-k "$(K)") $(ARGS)

clients: $(FOR_DEV)  ## Try clients of other languages (Go, Ruby, Java, PHP, C, Node); installs them
	@tools/system-part clients
	@$(BIN)/python -m tools.node_client
	$(BIN)/python -m pytest -m "clients or not clients" tests/clients $(ARGS)

deploy-check: $(FOR_DEV) ui  ## Do what the pages say of installing: make run, pip, systemd, podman; as root
	@tools/system-part systemd
	@tools/system-part network
	@tools/system-part podman
	$(BIN)/python -m pytest -m "deploy or not deploy" tests/packaging/test_systemd.py \
	    tests/packaging/test_container.py tests/packaging/test_first_steps.py $(ARGS)

test-random: setup  ## Run the tests in random order, properties with new examples; SEED=number repeats one
	RANDOM_EXAMPLES=1 $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -p randomly \
	    $(if $(SEED),--randomly-seed=$(SEED)) $(if $(K),-k "$(K)") $(ARGS)

coverage: setup  ## Run the tests and say which lines and branches they reach; build/coverage
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --cov --cov-report=term:skip-covered \
	    --cov-report=html:build/coverage --cov-report=json:build/coverage.json $(ARGS)
	$(BIN)/python tools/coverage_figure.py build/coverage.json

lint: $(FOR_ALL)  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(FOR_DEV)  ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(FOR_DEV)  ## Compare with RabbitMQ, side by side; ARGS="--json ..."
	$(BIN)/python -m benchmarks $(ARGS)

torture: $(FOR_TORTURE) $(SEMGREP)  ## Kill, starve, damage and attack a broker, check what it does; ARGS="--only R-02"
	@tools/system-part strace
	@tools/system-part fuse
	@tools/system-part faketime
	@tools/system-part network
	@tools/system-part testssl
	@tools/system-part rabbitmq
	$(BIN)/python -m tests.torture $(ARGS)

torture-spark: setup  ## Export random histories of killed brokers, and on local-cluster
	$(BIN)/python -m pytest -n 0 -m torture tests/spark $(ARGS)

ui: $(FOR_RUN)  ## Build the web UI if its sources changed
	@$(BIN)/python tools/build_ui.py --fetch-node

docs: $(FOR_DEV)  ## Build the documentation as a site into build/site; a warning is an error
	$(BIN)/python -m mkdocs build --strict

docs-check: $(FOR_DEV)  ## Check that the documentation agrees with the code, and that its code runs
	$(BIN)/python -m pytest -q tests/docs tests/test_docs.py tests/unit/test_config.py \
	    -k "docs or reference"

readme: $(FOR_DEV)  ## Copy the main figures of docs/performance.md into README.md
	$(BIN)/python tools/readme_figures.py

wheel: $(FOR_DEV) ui  ## Build sdist and wheel, web UI included, into dist/
	$(BIN)/python -m hatchling build -t sdist -t wheel

clean:  ## Remove builds and caches; .venv and data stay
	rm -rf build dist http_admin/ui/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path '*/node_modules/*' \
	    -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Leveret needs Python 3.11 or later; make PYTHON=... chooses one." >&2; exit 1; }
	@tools/system-part venv $(PYTHON)
	@echo "Creating $(VENV)."
	@$(PYTHON) -m venv --upgrade-deps $(VENV) >/dev/null

$(FOR_RUN): pyproject.toml | $(BIN)/python
	@echo "Installing what the broker needs into $(VENV)."
	@$(PIP) --editable .
	@touch $@

$(FOR_DEV): pyproject.toml | $(BIN)/python
	@echo "Installing what developing needs into $(VENV)."
	@$(PIP) --editable '.[dev]'
	@touch $(FOR_RUN) $@

$(FOR_TORTURE): pyproject.toml | $(BIN)/python
	@echo "Installing what developing and attacking need into $(VENV)."
	@$(PIP) --editable '.[dev,torture]'
	@touch $(FOR_RUN) $(FOR_DEV) $@

# It wants older versions of what others here use.
$(SEMGREP): | $(BIN)/python
	@echo "Installing semgrep into an environment of its own."
	@$(BIN)/python -m venv --upgrade-deps $(VENV)/semgrep >/dev/null
	@$(VENV)/semgrep/bin/python -m pip install --quiet --disable-pip-version-check 'semgrep>=1.182.0'

$(FOR_ALL): pyproject.toml | $(BIN)/python
	@echo "Installing what all tests need into $(VENV); Spark alone is half a gigabyte."
	@$(PIP) --editable '.[dev,spark]'
	@touch $(FOR_RUN) $(FOR_DEV) $@
