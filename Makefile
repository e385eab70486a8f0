# Everything works on a fresh machine with Python 3.11+ and make; the targets install what they need into .venv.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
BIN := .venv/bin
# Thousands of small databases that are flushed at every move: the fast suite keeps them in memory, the slow one on the disk.
IN_MEMORY := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 2000000 ] 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# Many tests start a Python of their own; without compiled files each of them compiles the whole package.
COMPILED := PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow explore check diagrams bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: .venv/installed ## a real turn over this repository's own files, without a key
	@$(BIN)/fsm-agent run --model offline:demo "List the files here, then read README.md and find the word fallback in states/fsm_agent_states/table.py"

test: .venv/developing ## the fast test suite (under two minutes)
	@$(IN_MEMORY) $(COMPILED) $(BIN)/pytest -m "not slow" --numprocesses 2 --dist worksteal

test-slow: .venv/developing ## long random runs, the kill matrix, then real servers and a browser one at a time
	@$(BIN)/pytest -m slow --numprocesses 2 --dist loadfile --ignore tests/peers --ignore tests/browser
	@$(BIN)/pytest -m slow tests/peers tests/browser

explore: .venv/developing ## 20,000 random turns that nobody has tried; what fails becomes an example of the fast test
	@EXPLORE=1 $(BIN)/pytest -m slow tests/agent/test_properties.py

check: .venv/developing ## style, types, import rules, and diagrams that must be fresh
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m fsm_agent.diagram --check diagrams

diagrams: .venv/installed ## write diagrams/ anew from the table
	@$(BIN)/python -m fsm_agent.diagram diagrams

bench: .venv/developing ## what the engine costs beside a bare loop, and a long history and a tool call
	@$(BIN)/python benchmarks/engine.py
	@echo
	@$(BIN)/python benchmarks/overhead.py
	@echo
	@$(BIN)/python benchmarks/streaming.py
	@echo
	@$(BIN)/python benchmarks/long_history.py
	@echo
	@$(BIN)/python benchmarks/prefix_cache.py
	@echo
	@$(BIN)/python benchmarks/tools.py
	@echo
	@$(BIN)/python benchmarks/verify.py
	@echo
	@$(BIN)/python benchmarks/journal.py
	@echo
	@$(BIN)/python benchmarks/search.py --messages 100000
	@echo
	@$(BIN)/python benchmarks/insights.py

clean: ## remove what the targets made
	rm -rf .venv .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "fsm_agent needs Python 3.11 or newer; none was found. Install it, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making .venv with $(PYTHON) …"
	@$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	@echo "installing fsm_agent …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/developing: .venv/installed
	@echo "installing what the tests need …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
