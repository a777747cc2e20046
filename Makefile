# make demo: the main job with the built-in checkpoint.   make check: what CI runs.   make check-all: that, and the sweeps.
# Both make .venv and install what they need on the first run; most of it is PyTorch.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
export PYTHONUNBUFFERED := 1

.PHONY: demo wheel release docs test test-all test-failed lint format types imports check check-all clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo     set up .venv and let the built-in model describe pictures"
	@echo "make wheel    build a wheel in dist/"
	@echo "make release  build wheel and sdist, check them, and run seesay demo from the wheel in an empty environment"
	@echo "make docs     build the site of the documentation in site/"
	@echo "make test     set up .venv with the test extras and run the tests, without those marked slow"
	@echo "make test-all run all tests"
	@echo "make test-failed run the tests that failed last, one after another"
	@echo "make check    lint, types, import rules and the tests that make test runs: what CI runs for every change"
	@echo "make check-all the same with all tests: CI's second path, before a release"
	@echo "make format   rewrite the code in the project's format"
	@echo "make clean    remove .venv and caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "seesay needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	@echo "Installing seesay into $(VENV): about 3.1 GB to download and 5.6 GB on disk, mostly PyTorch with its CUDA"
	@echo "libraries. That takes about 3 minutes at 50 MB/s, 12 at 5 MB/s; the next time nothing is installed."
	@$(INSTALL) .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.base
	@echo "Installing the test extras into $(VENV): about 270 MB more, about 2 minutes"
	@$(INSTALL) '.[dev]'
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/seesay demo

wheel: $(BIN)/python
	@$(BIN)/python -m pip wheel -q --no-deps --wheel-dir dist .
	@ls dist/seesay-*.whl

# The wheel is built from the sdist, so a file that the sdist lacks is missing in the demo, too.
release: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && set -e; \
	  echo "Installing the wheel into an empty environment"; \
	  $(abspath $(BIN))/python -m venv "$$folder/venv"; \
	  "$$folder/venv/bin/python" -m pip install -q dist/seesay-*.whl; \
	  cd "$$folder" && env -u PYTHONPATH venv/bin/seesay demo
	@ls -l dist

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

# All tests of a file go to one worker. Three of them on two cores: many tests wait, for a browser, another process or a
# limit of time. They start some eighty processes, which compile our sources again unless they may write bytecode.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: $(VENV)/.dev
	$(PYTEST) $(ARGS)

test-failed: $(VENV)/.dev
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --exitfirst

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

# A test that failed beside others gets one more try, alone: a real fault fails again. One that passes then is flaky, and
# the last line says so.
SECOND_TRY := $(MAKE) test-failed && echo "Some tests passed only on a second try, alone: they are flaky, fix them."

check:
	$(MAKE) -j2 lint types imports
	$(MAKE) test || { $(SECOND_TRY); }

check-all:
	$(MAKE) -j2 lint types imports
	$(MAKE) test-all || { $(SECOND_TRY); }

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
