# `make demo` shows what it is about in a few minutes; `make serve` sets everything up and serves SmolLM2; `make test` runs the quick tests.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: setup demo serve test test-full lint clean

setup: $(STAMP)

# torch first and by itself, so that the version pinned in constraints.txt is taken and not one that is merely newer.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

demo: setup
	$(BIN)/stratakv demo

serve: setup
	$(BIN)/stratakv serve

test: setup
	$(BIN)/python -m pytest -q -m "not full"

test-full: setup
	$(BIN)/python -m pytest -q

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
