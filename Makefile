# One verb, one job. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help: ## list the verbs
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(READY)

dev: $(READY) ## set up the virtual environment

fmt: $(READY) ## format the code
	$(BIN)/ruff format src tests bench examples
	$(BIN)/ruff check --fix --quiet src tests bench examples

check: $(READY) ## lint, types, layers
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(READY) ## the default suite, with the checks; under 15 minutes on two cores
	$(MAKE) check
	$(BIN)/pytest -m "not slow and not gpu" -n 2 --dist loadfile $(PYTESTFLAGS)

e2e: $(READY) ## the long end-to-end tests
	$(BIN)/pytest -m "slow and not gpu" --timeout=1800

bench: $(READY) ## measure the recorder and the ledger against the alternatives
	$(BIN)/python bench/recorder.py
	$(BIN)/python bench/ledger.py

demo: $(READY) ## train DLRM on two ranks, kill it twice, resume, show the report
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

clean: ## remove the virtual environment and what tools left
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info

.PHONY: help dev fmt check test e2e bench demo clean
