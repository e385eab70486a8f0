# Everything works on a fresh machine with Python 3.11+ and make; the targets install what they need into .venv.
ifndef PYTHON  # looked for once
PYTHON := $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
endif
# With PYTHON=… on the command line the environment is one of its own, beside the usual one.
VENV := $(if $(filter command line,$(origin PYTHON)),.venv-$(notdir $(PYTHON)),.venv)
BIN := $(VENV)/bin
INSTALL := requirements/install
comma := ,
OFFLINE = the packages cannot be installed: is the package index reachable? What pip said is in $(VENV).log
SUITE := $(BIN)/python -m tests.helpers.suite
# Some fast tests wait for a process that they started: with one worker more than cores no core waits with them.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Thousands of small databases are flushed at every move, which costs a fifth of the CPU on a disk. Where programs may be
# started from it and so many KB are free, they are kept in memory; what has the machine to itself keeps them on the disk.
in_memory = $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt $(1) ] 2>/dev/null && \
	! grep -q ' /dev/shm .*noexec' /proc/mounts && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# What measures the clock, or drives programs that need a core of their own, has the machine to itself.
ALONE := tests/peers/test_mcp_servers.py tests/browser/test_page_speed.py tests/security/test_loop_is_not_held.py

# Many tests start a Python of their own; without compiled files each of them compiles the whole package.
COMPILED := PYTHONDONTWRITEBYTECODE=

# Slow tests wait for other processes half of the time, so two workers a core keep the cores busy.
TWO_A_CORE = $$(($$(getconf _NPROCESSORS_ONLN) * 2))
# KEEP=1 replaces its profile, by which the longest files begin first.
SLOW := $(COMPILED) $(SUITE) --profile slow $(if $(KEEP),--keep)

# The beginning of a loop over the tables in examples/.
OF_EXAMPLES = for name in order review_loop nested parallel; do $(BIN)/python -m fsm_agent.diagram examples/diagrams/$$name \
	--table examples.$$name:TABLE --limits examples.$$name:LIMITS

.DEFAULT_GOAL := help
LOCK := requirements/development.txt
COMPILE := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links \
	--no-emit-trusted-host --no-emit-options

.PHONY: help demo test test-slow test-all mutants explore check diagrams docs docs-serve reference pictures bench figures lock audit sbom models clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/installed ## a real turn over this repository's own files, without a key
	@$(BIN)/fsm-agent run --verbose --model offline:demo "List the files here, then read README.md and find the word fallback in states/fsm_agent_states/table.py"
	@echo
	@echo "Next: $(BIN)/fsm-agent chat"

test: $(VENV)/testing ## the fast test suite
	@$(call in_memory,2000000) $(COMPILED) $(SUITE) --workers $(WORKERS) -m "not slow" $(if $(BUDGET),--budget $(BUDGET))

test-slow: $(VENV)/developing ## real servers, a browser, kills, and a quarter of the exhaustive tests: another one at each commit
	@echo "1 of 3: what may share the machine"
	@$(call in_memory,6000000) $(SLOW) --workers $(TWO_A_CORE) -m "slow or hypothesis" --hypothesis-profile "at length" \
		-o tmp_path_retention_policy=failed $(ALONE:%=--ignore %)
	@echo "2 of 3: what has the machine to itself"
	@$(SLOW) --workers 1 -m slow $(ALONE)
	@echo "3 of 3: sessions on PostgreSQL"
	@$(COMPILED) $(SUITE) -m "not slow" --database postgres tests/sessions

test-all: ## the same with all of the exhaustive tests
	@SAMPLE=all $(MAKE) test-slow

mutants: $(VENV)/testing ## what the fast tests find of 100 faults in the sources, others at each commit: ten minutes of CPU
	@$(COMPILED) nice $(BIN)/python -m tests.mutation.measure --sample 100 --tables 20

explore: $(VENV)/developing ## 20,000 random turns that nobody has tried; what fails becomes an example of the fast test
	@EXPLORE=1 $(BIN)/pytest -m slow tests/agent/test_properties.py

check: $(VENV)/developing ## style, types, import rules, fresh diagrams, prose, and how much of the specification holds
	@$(MAKE) --no-print-directory --jobs $$(getconf _NPROCESSORS_ONLN) $(WHOLE_OUTPUTS) $(CHECKS)

# The longest begins first; where make can, it shows what each of them prints as a whole.
CHECKS := check-types check-proofs check-diagrams check-text check-style check-imports
WHOLE_OUTPUTS := $(if $(filter output-sync,$(.FEATURES)),--output-sync)
.PHONY: $(CHECKS)

check-types:
	@$(BIN)/mypy

check-proofs:
	@$(BIN)/python -m tests.helpers.certificates

check-diagrams:
	@$(BIN)/python -m fsm_agent.diagram --check diagrams
	@$(OF_EXAMPLES) --check || exit 1; done

check-text:
	@$(BIN)/python -m tests.helpers.behaviours --check
	@$(BIN)/python -m docs.site.reference --check
	@$(BIN)/python -m tests.helpers.prose --check

check-style:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

check-imports:
	@$(BIN)/lint-imports

diagrams: $(VENV)/installed ## write all diagrams anew from their tables
	@$(BIN)/python -m fsm_agent.diagram diagrams
	@$(OF_EXAMPLES) || exit 1; done

docs: $(VENV)/developing ## the documentation site, into dist/site: no network is needed, a broken link fails
	@$(BIN)/python -m docs.site.pages dist/pages
	@$(BIN)/zensical build --strict --clean
	@$(BIN)/python -m docs.site.search dist/site

docs-serve: docs ## the same on http://127.0.0.1:8000, for this machine alone
	@$(BIN)/zensical serve --dev-addr 127.0.0.1:8000

reference: $(VENV)/developing ## write the pages of settings and commands anew from the code
	@$(BIN)/python -m docs.site.reference

pictures: $(VENV)/developing ## take the pictures of the pages anew: of the real debugger, real turns and tables
	@$(BIN)/python -m tests.helpers.page_pictures
	@$(BIN)/python -m tests.browser.pictures

bench: $(VENV)/developing ## what the engine costs beside a bare loop, and a long history and a tool call
	@$(BIN)/python benchmarks/counts.py
	@echo
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

figures: $(VENV)/developing ## measure anew what the pages say of speed; nothing else should run meanwhile
	@$(BIN)/python benchmarks/figures.py --measure

lock: .supply/installed ## choose the versions anew that development and CI install by hash
	@.supply/bin/pip-compile $(COMPILE) --extra test --extra dev --upgrade -o .supply/new $(abspath pyproject.toml)
	@{ sed -n 1p $(LOCK); sed 's| (.*pyproject.toml)| (pyproject.toml)|' .supply/new; } > .supply/lock && mv .supply/lock $(LOCK)
	@.supply/bin/pip-compile $(COMPILE) --extra test --constraint $(LOCK) -o .supply/fewer $(abspath pyproject.toml)
	@{ sed -n 1p requirements/testing.txt; sed 's| (.*pyproject.toml)| (pyproject.toml)|' .supply/fewer; } > .supply/lock \
	&& mv .supply/lock requirements/testing.txt
	@for name in supply installer; do .supply/bin/pip-compile $(COMPILE) --upgrade -o .supply/new requirements/$$name.in && \
	{ sed -n 1p requirements/$$name.txt; sed "s| (.*$$name.in)| ($$name.in)|; s|-r .*$$name.in|-r $$name.in|" .supply/new; } > .supply/lock && \
	mv .supply/lock requirements/$$name.txt || exit 1; done

audit: .supply/installed ## look the locked versions up among known weaknesses; without a network that is said, and nothing fails
	@.supply/bin/python requirements/audit.py $(LOCK) requirements/supply.txt requirements/installer.txt

sbom: .supply/installed $(VENV)/developing ## write dist/sbom.json: all that the locked versions are made of (CycloneDX)
	@mkdir -p dist
	@.supply/bin/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --mc-type library --output-reproducible -o dist/sbom.json

models: .supply/installed ## write what is known of models anew, from the newest litellm
	@rm -rf .supply/models && .supply/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .supply/models litellm
	@.supply/bin/python requirements/models.py .supply/models/litellm-*.whl

clean: ## remove what the targets made
	rm -rf .venv* .supply .peers dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# $(call needs,COMMAND,WORDS): one line that says what is missing where the command fails
needs = $(1) >$(VENV).log 2>&1 || { echo "$(2)" >&2; exit 1; }

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "fsm_agent needs Python 3.11 or newer; none was found. Install it, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(call needs,$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))',fsm_agent needs Python 3.11 or newer; given: $(PYTHON))
	@$(call needs,$(PYTHON) -c 'import venv$(comma) ensurepip',$(PYTHON) has no module venv; install it (Debian: apt install python3-venv))
	@echo "making $(VENV) with $(PYTHON) …"
	@$(call needs,$(PYTHON) -m venv $(VENV),$(PYTHON) -m venv $(VENV) failed; see $(VENV).log)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	@echo "installing fsm_agent …"
	@$(call needs,$(INSTALL) $(BIN) --editable .,$(OFFLINE))
	@touch $@

# $(call install,LOCK,EXTRAS): a locked set of packages, by hash, or on another Python the newest that pyproject.toml allows
define install
@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) or sys.platform != "linux")'; then \
	$(call needs,$(INSTALL) $(BIN) --require-hashes --requirement $(1),$(OFFLINE)); \
	$(call needs,$(INSTALL) $(BIN) --no-deps --no-build-isolation --editable .,$(OFFLINE)); \
else \
	echo "the lock is for Python 3.11 on Linux: without hashes, the newest that pyproject.toml allows" >&2; \
	$(call needs,$(INSTALL) $(BIN) --editable '.[$(2)]',$(OFFLINE)); \
fi
@touch $(VENV)/installed $@
endef

$(VENV)/testing: $(VENV)/bin/python pyproject.toml requirements/testing.txt
	@echo "installing fsm_agent and what the tests need …"
	$(call install,requirements/testing.txt,test)

$(VENV)/developing: $(VENV)/bin/python pyproject.toml $(LOCK)
	@echo "installing fsm_agent and what its development needs …"
	$(call install,$(LOCK),test$(comma)dev)
	@touch $(VENV)/testing

.supply/installed: $(VENV)/bin/python requirements/supply.txt
	@$(BIN)/python -m venv .supply
	@$(INSTALL) .supply/bin --require-hashes --requirement requirements/supply.txt
	@touch $@
