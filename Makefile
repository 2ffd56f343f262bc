# Every target creates .venv when it is missing or out of date; nothing else has to be set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := pyproject.toml setup.py constraints.txt $(wildcard runtime/binding.cpp runtime/include/luminal/*)
JOBS ?= 2

.PHONY: help install demo test coverage accuracy bench viewer docs wheel lint format types clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.test  ## create .venv with everything that development needs

demo: $(VENV)/.demo  ## compile all-MiniLM-L6-v2, check it, time it, export it, call it from C
	$(BIN)/python examples/demo.py

test: $(VENV)/.test  ## run all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=30

coverage: $(VENV)/.test  ## run ONNX's and PyTorch's own tests of operators and write the tables into docs/
	$(BIN)/python -m tests.onnx_suite --compiled --jobs $(JOBS)
	$(BIN)/python -m tests.torch_suite --jobs $(JOBS)

accuracy: $(VENV)/.test  ## run the models at their real sizes and write the table into docs/
	$(BIN)/python -m benchmarks.accuracy

bench: $(VENV)/.bench  ## time the models beside other runtimes and write table and chart into docs/
	$(BIN)/python -m benchmarks --write docs/benchmarks.md

viewer: src/luminal/view/built/viewer.js  ## build the page of luminal view, with Node

src/luminal/view/built/viewer.js: $(wildcard viewer/*.json viewer/*.mjs viewer/src/*)
	cd viewer && npm ci --silent && npm run --silent build && npm test --silent

docs: $(VENV)/.docs  ## build guide and reference as a site, in build/site
	$(BIN)/python -m mkdocs build --quiet

wheel: $(VENV)/.wheel viewer  ## build a manylinux wheel for this Python, in dist
	$(BIN)/python .ci/wheel.py dist

lint: $(VENV)/.test  ## check style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.test  ## mend style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/.test  ## check types
	$(BIN)/mypy

# torch goes first and under the constraints, so that no other package brings in a different build of it.
# A stamp per extra: .venv/.demo is up to date when .[demo] was installed from the present sources.
$(VENV)/.%: $(PACKAGE) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "luminal needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

clean:  ## remove what builds and tests leave behind
	rm -rf build dist examples/build src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f runtime/_native*.so
	rm -rf viewer/build viewer/node_modules src/luminal/view/built
	find $(wildcard */) -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(VENV)/.demo $(VENV)/.test $(VENV)/.bench $(VENV)/.docs $(VENV)/.wheel

distclean: clean  ## remove .venv as well
	rm -rf $(VENV)
