# Everything runs in .venv, which `make setup` makes; `make PYTHON=python3.12 setup` picks the
# interpreter that it is made with. With VENV=.venv-3.12 as well, the first one stays as it is.

PYTHON ?= python3
VENV := .venv
# What is installed in it, besides the tools; a Python may be too new for some of it.
EXTRAS := all
BIN := $(VENV)/bin

DEMO = $(BIN)/python examples/word_count.py
BENCH = $(BIN)/python -m benchmarks
PYTEST = sh tests/in_memory.sh $(BIN)/python -m pytest -q --durations=15
# Tests mostly wait for processes that they have started, so there are more at a time than cores.
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')
JOBS ?= $(shell $(PYTHON) -c 'import os; print(2 * os.cpu_count())')

# Stamps: newer than what they depend on means that there is nothing to install.
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALL_LOG := $(VENV)/install.log
PINNED := pyproject.toml constraints.txt src/jetlet/_version.py

# A peer that wants older versions of what we use has an environment of its own.
PEERS := $(VENV)/peers
PATHWAY := pathway==0.33.0

# The constraints are given by environment variables, because pip applies the option -c to what it
# installs but not to what it builds with. Its chatter goes to a log that is shown if it fails.
PIP_INSTALL = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
QUIETLY = >$(INSTALL_LOG) 2>&1 || { cat $(INSTALL_LOG) >&2; exit 1; }

# Tests start hundreds of processes, and each of pytest's rewrites all assertions. Where compiled code
# must not be kept, which some images for containers demand, that takes minutes.
test check test-sparks: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo check test test-sparks fuzz soak lint format docs dist bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## make .venv and install Jetlet in it, once

demo: setup ## run the example
	@$(DEMO)

# More than forty JVMs are started, each with half the processor time where there is an archive of
# classes. Otherwise a session makes it when its process ends, for the next one.
test: lint ## lint, then run the tests (PYTEST_ARGS="-k name" to choose)
	@$(BIN)/python -m jetlet.spark.launch.warm_up >$(VENV)/archive.log 2>&1 || true
	$(PYTEST) $(or $(PYTEST_ARGS),-n $(JOBS))

check: lint ## lint, then run the tests without Spark, processes and servers (a minute or two)
	$(PYTEST) -n $(CORES) --hypothesis-profile=quick \
		-m 'not (spark or cluster or fault or server or process or slow)' $(PYTEST_ARGS)

test-sparks: ## run the tests on older Sparks (SPARKS="3.5 4.0" PARTS=parity,connect to choose)
	@$(PYTHON) tests/sparks.py $(SPARKS) $(if $(PARTS),--parts $(PARTS)) \
		$(if $(IF_POSSIBLE),--if-possible) --jobs $(JOBS)

lint: setup ## ruff check, ruff format --check, mypy --strict on src
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## let ruff fix and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# For hours: make fuzz SECONDS=3600 SEED=1 HOSTS=embedded-1,members
fuzz: setup ## random pipelines on every host against plain Python (SECONDS=600 SEED= HOSTS=)
	@$(BIN)/python tests/fuzz/long_run.py $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(HOSTS),--hosts $(HOSTS))

soak: setup ## a job on Spark for hours, with faults, and a report (HOURS=2)
	@$(BIN)/python tests/spark/soak.py $(if $(HOURS),--hours $(HOURS))

docs: $(INSTALLED_DOCS) ## build the site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in build/site: $(BIN)/python -m http.server -d build/site"

# The wheel is installed into an environment of its own, and runs what the README shows.
dist: $(INSTALLED_DOCS) ## build the sdist and the wheel, check them and try them
	@rm -rf dist build/dist
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --quiet $(QUIETLY)
	@$(BIN)/twine check --strict dist/*
	@$(PYTHON) -m venv --clear build/dist
	@PIP_CONSTRAINT=constraints.txt build/dist/bin/python -m pip install --quiet --no-input \
		--disable-pip-version-check dist/*.whl $(QUIETLY)
	@build/dist/bin/python tests/docs/quick_start.py README.md examples/data/books

bench: $(INSTALLED_BENCH) ## install the peers and run the benchmarks
	@$(BENCH)

clean: ## remove .venv and all caches
	rm -rf $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment whose interpreter is gone, or is not the one that was asked for, is made anew.
VERSION_OF = $(shell $(1) -c 'import sys; print(sys.version)' 2>/dev/null)
ifneq ($(shell test -x $(BIN)/python && echo ok),ok)
.PHONY: $(VENV)/pyvenv.cfg
else ifeq ($(origin PYTHON),command line)
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
.PHONY: $(VENV)/pyvenv.cfg
endif
endif
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Jetlet needs Python 3.11 or newer; '$(PYTHON)' is not:" \
			"try make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

$(INSTALLED): $(PINNED) $(VENV)/pyvenv.cfg
	@echo "Installing Jetlet and its tools into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS),dev]' $(QUIETLY)
	@touch $@

$(INSTALLED_DOCS): $(INSTALLED)
	@echo "Installing what builds the site and the distribution into $(VENV)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS),dev,docs]' $(QUIETLY)
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	@echo "Installing the benchmarks' peers into $(VENV)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS),dev,bench]' $(QUIETLY)
	@$(PYTHON) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --no-input --disable-pip-version-check \
		-e . $(PATHWAY) $(QUIETLY)
	@touch $@
