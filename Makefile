# Everything works on a fresh machine with Python 3.11+ and make; the targets install what they need into .venv.
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
BIN := .venv/bin
# Thousands of small databases that are flushed at every move: the fast suite keeps them in memory, the slow one on the disk.
IN_MEMORY := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 2000000 ] 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# Many tests start a Python of their own; without compiled files each of them compiles the whole package.
COMPILED := PYTHONDONTWRITEBYTECODE=

# The beginning of a loop over the tables in examples/.
OF_EXAMPLES = for name in order review_loop nested parallel; do $(BIN)/python -m fsm_agent.diagram examples/diagrams/$$name \
	--table examples.$$name:TABLE --limits examples.$$name:LIMITS

.DEFAULT_GOAL := help
LOCK := requirements/development.txt
COMPILE := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --no-emit-options

.PHONY: help demo test test-slow explore check diagrams docs docs-serve reference pictures bench figures lock audit sbom models clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: .venv/installed ## a real turn over this repository's own files, without a key
	@$(BIN)/fsm-agent run --verbose --model offline:demo "List the files here, then read README.md and find the word fallback in states/fsm_agent_states/table.py"
	@echo
	@echo "Next: $(BIN)/fsm-agent chat"

test: .venv/developing ## the fast test suite (about four minutes on two cores)
	@$(IN_MEMORY) $(COMPILED) $(BIN)/pytest -m "not slow" --numprocesses 3 --dist worksteal

test-slow: .venv/developing ## long random runs, the kill matrix, then real servers and a browser one at a time
	@$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile "at length" --numprocesses 2 --dist loadfile \
		--ignore tests/peers --ignore tests/browser
	@$(BIN)/pytest -m slow tests/peers tests/browser
	@$(BIN)/pytest -m "not slow" --database postgres --numprocesses 2 tests/sessions

explore: .venv/developing ## 20,000 random turns that nobody has tried; what fails becomes an example of the fast test
	@EXPLORE=1 $(BIN)/pytest -m slow tests/agent/test_properties.py

check: .venv/developing ## style, types, import rules, fresh diagrams, and how much of the specification holds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m fsm_agent.diagram --check diagrams
	@$(OF_EXAMPLES) --check || exit 1; done
	@$(BIN)/python -m tests.helpers.behaviours --check
	@$(BIN)/python -m docs.site.reference --check

diagrams: .venv/installed ## write all diagrams anew from their tables
	@$(BIN)/python -m fsm_agent.diagram diagrams
	@$(OF_EXAMPLES) || exit 1; done

docs: .venv/developing ## the documentation site, into dist/site: no network is needed, a broken link fails
	@$(BIN)/python -m docs.site.pages dist/pages
	@$(BIN)/zensical build --strict --clean

docs-serve: docs ## the same on http://127.0.0.1:8000, for this machine alone
	@$(BIN)/zensical serve --dev-addr 127.0.0.1:8000

reference: .venv/developing ## write the pages of settings and commands anew from the code
	@$(BIN)/python -m docs.site.reference

pictures: .venv/developing ## take the pictures of the pages anew: of the real debugger, real turns and tables
	@$(BIN)/python -m tests.helpers.page_pictures
	@$(BIN)/python -m tests.browser.pictures

bench: .venv/developing ## what the engine costs beside a bare loop, and a long history and a tool call
	@$(BIN)/python benchmarks/engine.py
	@echo
	@$(BIN)/python benchmarks/overhead.py
	@echo
	@$(BIN)/python benchmarks/streaming.py
	@echo
	@$(BIN)/python benchmarks/many_turns.py
	@echo
	@$(BIN)/python benchmarks/startup.py
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

figures: .venv/developing ## measure anew what the pages say of speed; nothing else should run meanwhile
	@$(BIN)/python benchmarks/figures.py --measure

lock: .supply/installed ## choose the versions anew that development and CI install by hash
	@.supply/bin/pip-compile $(COMPILE) --extra dev --upgrade -o .supply/new $(abspath pyproject.toml)
	@{ sed -n 1p $(LOCK); sed 's| (.*pyproject.toml)| (pyproject.toml)|' .supply/new; } > .supply/lock && mv .supply/lock $(LOCK)
	@.supply/bin/pip-compile $(COMPILE) --upgrade -o .supply/new requirements/supply.in
	@{ sed -n 1p requirements/supply.txt; sed 's| (.*supply.in)| (supply.in)|; s|-r .*supply.in|-r supply.in|' .supply/new; } > .supply/lock \
	&& mv .supply/lock requirements/supply.txt

audit: .supply/installed ## look the locked versions up among known weaknesses; without a network that is said, and nothing fails
	@.supply/bin/python requirements/audit.py $(LOCK) requirements/supply.txt

sbom: .supply/installed .venv/developing ## write dist/sbom.json: all that the locked versions are made of (CycloneDX)
	@mkdir -p dist
	@.supply/bin/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --mc-type library --output-reproducible -o dist/sbom.json

models: .supply/installed ## write what is known of models anew, from the newest litellm
	@rm -rf .supply/models && .supply/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .supply/models litellm
	@.supply/bin/python requirements/models.py .supply/models/litellm-*.whl

clean: ## remove what the targets made
	rm -rf .venv .supply .peers dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "fsm_agent needs Python 3.11 or newer; none was found. Install it, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making .venv with $(PYTHON) …"
	@$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	@echo "installing fsm_agent …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable .  # compiling is half of the time
	@touch $@

.venv/developing: .venv/bin/python pyproject.toml $(LOCK)
	@echo "installing fsm_agent and what the tests need …"
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) or sys.platform != "linux")'; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . ; \
	else \
		echo "the lock is for Python 3.11 on Linux: without hashes, the newest that pyproject.toml allows" >&2; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	fi
	@touch .venv/installed $@

.supply/installed: .venv/bin/python requirements/supply.txt
	@$(BIN)/python -m venv .supply
	@.supply/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/supply.txt
	@touch $@
