# Two commands: `make demo` and `make test`. Both make a virtual environment first, once. `make test-all` is what a
# change must pass; `make fuzz` and `make chaos` try bad input and faults of the system, as many as CASES and FAULTS say.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
DEV_STAMP = $(VENV)/.installed-dev
# Silence progress and version notices; the pinned torch is a CPU build where the index has one.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Packages of their own beside the core: each adds a command.
PACKAGES = packages/inference packages/tables packages/views packages/field packages/studies packages/advice packages/attacks packages/recipes packages/bench packages/conformance packages/board
WITH_PACKAGES = $(foreach package,$(PACKAGES),--editable $(package))

CASES ?= 1000
FAULTS ?= 100
MUTANTS ?= 200
SEED ?= 0

# Tests that are not of the core: whole stories, bad input, faults of the system and the packages, beside single tests
# with the marker `long`.
BEYOND = tests/stories tests/fuzz tests/chaos $(wildcard packages/*/tests)
CORE = tests --ignore=tests/docs $(BEYOND:%=--ignore=%)
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile

.PHONY: demo test test-all test-beyond coverage test-flower fuzz chaos mutants lint format docs notebooks dist hooks clean

demo: $(STAMP)
	$(BIN)/coterie run

# The core, to trust an install: deterministic, in minutes. Three processes for two cores: some tests wait for others
# of the system.
test: $(DEV_STAMP)
	$(PYTEST) -n 3 -m "not long" $(CORE)

# Everything there is.
test-all: test test-beyond docs test-flower

test-beyond: $(DEV_STAMP)
	$(PYTEST) -n 3 $(BEYOND)
	$(PYTEST) -n 2 -m long $(CORE)

# The same with the lines that no test reaches; apart, because counting them takes half as long again.
coverage: $(DEV_STAMP)
	$(PYTEST) -n 2 --cov --cov-report=term:skip-covered

# A real SuperLink with its SuperNodes on this machine; apart from `test` because it takes minutes.
test-flower: $(DEV_STAMP)
	$(PYTEST) -n 2 \
		--override-ini="addopts=--strict-markers -p no:cacheprovider" tests/network

fuzz: $(DEV_STAMP)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --cases $(CASES) --seed $(SEED)

chaos: $(DEV_STAMP)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m chaos --faults $(FAULTS) --seed $(SEED)

# Changes of the code that its tests do not notice; an hour, and so no part of what a change must pass.
mutants: $(DEV_STAMP)
	$(BIN)/python scripts/mutants.py --count $(MUTANTS) --seed $(SEED)

lint: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/import_cycles.py
	$(BIN)/mypy

format: $(DEV_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Source archives and wheels of all packages in dist/, checked for what an index asks of them. hatchling is pinned:
# some versions write metadata that twine does not know yet. COTERIE_URL=https://… names the project's page in them.
dist: $(DEV_STAMP)
	rm -rf dist
	for package in . $(PACKAGES); do \
		PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist $$package || exit 1; done
	$(BIN)/python -m twine check --strict dist/*

# ruff and mypy before every commit, from this virtual environment: nothing is downloaded.
hooks: $(DEV_STAMP)
	$(BIN)/pre-commit install

# The manual, in site/. A broken link, a missing anchor and a page that is not in the menu are errors; then every
# snippet and notebook is run as printed.
docs: $(DEV_STAMP)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist load tests/docs

# Run the notebooks anew and keep what they print.
notebooks: $(DEV_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/notebooks.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: with it in place nothing later can pull another build.
$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt $(PACKAGES:%=%/pyproject.toml)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --constraint constraints.txt --editable . $(WITH_PACKAGES)
	touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP) --constraint constraints.txt --editable '.[dev]' $(WITH_PACKAGES)
	touch $@

clean:
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov
