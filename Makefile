# make quickstart: sets up and runs the main job on the embedded model.  make test: sets up, lints, types, tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install quickstart test test-slow lint typecheck bench clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/'

# torch goes first and alone, pinned: whatever build pip offers for that version here (CPU or CUDA) satisfies all the rest.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

install: $(STAMP)  ## the environment in .venv, reused when pyproject.toml and constraints.txt have not changed

quickstart: $(STAMP)  ## the main job on the embedded model
	$(BIN)/equipoise quickstart

test: lint typecheck  ## lint, types and the default tests
	$(BIN)/python -m pytest

test-slow: $(STAMP)  ## the long tests as well
	$(BIN)/python -m pytest -m "slow or not slow"

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)  ## mypy --strict over objective/ and theory/
	$(BIN)/mypy

bench: $(STAMP)  ## the benchmarks, on an idle machine; results go to benchmarks/results
	$(BIN)/python benchmarks/objective.py

clean:  ## everything that was generated
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
