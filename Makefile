# Every verb sets up what it needs. CI calls `make test`, which includes `make check`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check format clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/draftproof generate --draft ngram --k 6 --temperature 0 --max-tokens 160 --compare \
	  "Repeat this text with one change: write Paris instead of London. The train from London to the coast leaves at nine. In London it rains. I like London in the spring, when the parks of London are green, and the river runs through London to the sea."

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_imports.py

test: check
	$(BIN)/pytest

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
