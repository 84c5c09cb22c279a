# Two commands do everything on a fresh machine: `make demo` and `make test`. Bare `make` explains the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.SUFFIXES:

PY := .venv/bin/python
PYTEST := $(PY) -m pytest
STAMP := .venv/.stamp
SEED ?=
STORE ?=

# Settings of the caller's shell that would lead our tools elsewhere, or have each process compile all modules anew.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH PYTEST_ADDOPTS MYPYPATH PYTHONDONTWRITEBYTECODE

# The stamp holds the folder it was made in: a moved checkout or a vanished interpreter makes the environment anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null && $(PY) -c "print('works')" 2>/dev/null),$(CURDIR) works)
.PHONY: $(STAMP)
endif

.PHONY: help
help: ## show this text
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: env ## the main job: a month of flights, refunded through three edits and a kill -9, with a table at the end
	@$(PY) -m examples.flight_refunds

.PHONY: test
test: env servers ## everything CI runs: format, lint, types, contracts, all tests, docs (under ten minutes)
	@$(PY) -m tools.check test

.PHONY: check
check: env ## the fast part: format, lint, types, contracts, tidy and core tests
	@$(PY) -m tools.check check

.PHONY: fmt
fmt: env ## format the code and mend what the linter can mend
	@$(PY) -m ruff format --quiet . && $(PY) -m ruff check --quiet --fix .

.PHONY: conformance
conformance: env servers ## the suite every store must pass; STORE=sqlite or STORE=pooler for one of them
	@$(PYTEST) tests/conformance $(if $(STORE),-k $(STORE))

.PHONY: scenarios
scenarios: env ## the scenario files on the pure core, on memory, on SQLite and on a PostgreSQL of their own
	@for where in core memory sqlite; do echo "scenarios on $$where"; \
	  $(dir $(PY))perdure scenario tests/scenarios/*.scenario --on $$where; done
	@echo "scenarios on postgresql"; \
	  $(PY) -m tests.postgres $(dir $(PY))perdure scenario tests/scenarios/*.scenario --on URL

.PHONY: sim
sim: env ## the seeded simulation; SEED=n runs one seed
	@PERDURE_SIM_SEED=$(SEED) $(PYTEST) tests/simulation

.PHONY: docs
docs: env ## run every code block of README.md and docs
	@$(PY) -m tools.docs_blocks $$(git ls-files -- README.md 'docs/*.md')

.PHONY: deep
deep: env servers ## the long runs that are too slow for every change
	@$(PYTEST) -m deep --timeout 7200

.PHONY: chaos
chaos: env ## five minutes of killed workers, a restarted server and deployments, under 10,000 runs; SEED=n
	@$(PY) -m tests.chaos $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: bench-env ## measure perdure, raw SQLite and a peer side by side; writes benchmarks/RESULTS.md
	@$(PY) -m benchmarks compare

.PHONY: bench-postgres
bench-postgres: bench-env ## the same on PostgreSQL, beside DBOS, Restate and Absurd; writes its section of the same page
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts \
	  --prefix .tools/restate @restatedev/restate-server@1.7.12; else echo "no npm here: Restate is left out"; fi
	@$(PY) -m benchmarks postgres

.PHONY: bench-env
bench-env: env
	@sh tools/bootstrap.sh --group bench

.PHONY: env
env: $(STAMP) ## make or refresh .venv as uv.lock says (the other targets do it themselves)

.PHONY: servers
servers:
	@sh tools/servers.sh

$(STAMP): pyproject.toml uv.lock tools/bootstrap.sh
	@sh tools/bootstrap.sh
	@echo "$(CURDIR)" > $(STAMP)

.PHONY: clean
clean: ## remove the environment, caches and everything built
	@rm -rf .venv .tools .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
