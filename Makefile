# Every verb sets up what it needs. CI calls `make test`, which includes `make check`, and then `make test-slow`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTING := $(VENV)/.testing
# A process a core; tests of the default model have all cores to themselves.
SPREAD := --numprocesses auto --dist worksteal

.PHONY: setup demo test test-slow check format clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(TESTING): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,genai,torch,train]'
	touch $@

define DEMO_PROMPT
Repeat this text with one change: write Paris instead of London.

The train from London to the coast leaves at nine. In London it rains. I like London in the spring, when the parks of \
London are green, and the river runs through London to the sea.
endef
export DEMO_PROMPT

demo: setup
	@$(BIN)/draftproof generate --k 8 --temperature 0 --max-tokens 160 --compare "$$DEMO_PROMPT"

check: $(TESTING)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_imports.py

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest $(SPREAD) -m "not slow and not model"
	$(BIN)/pytest -m "not slow and model"

test-slow: $(TESTING)
	OMP_NUM_THREADS=1 $(BIN)/pytest $(SPREAD) -m "slow and not model"
	$(BIN)/pytest -m "slow and model"

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
