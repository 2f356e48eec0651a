# Antiphon. `make help` lists what can be made.
#
# Everything happens inside .venv, which is created on first use. What has been installed there is
# noted in stamp files, so that the second run only compares dates.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Further words for the command behind a target: make run ARGS="--port 0", make test ARGS="-k ranges".
ARGS ?=
# Test files are shared out among so many processes.
WORKERS ?= 2
# A file's tests stay together, for they share servers; the order of files is kept, for the quick ones come last.
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SEEDS ?= 500
FUZZ_SECONDS ?= 60

# Tests and benches start some thousand processes; without this each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test quick test-long setup check format generate sim sweep fuzz bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '%-18s %s\n' "$$target" "$$text"; done

run: $(VENV)/.installed-run ## start an embedded message system in the foreground (ARGS="--port 0")
	@exec $(BIN)/antiphon up $(ARGS)

demo: $(VENV)/.installed-run ## the main story: a cluster bills orders while its nodes are killed
	@exec $(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.installed-dev ## run the tests (ARGS="tests/unit -k ranges")
	@exec $(BIN)/python -m pytest -m "not long" $(PARALLEL) $(ARGS)

quick: $(VENV)/.installed-dev ## the quick part of the tests: unit, transcripts, tidy, 100 seeds of the bus
	@$(BIN)/python -m pytest -q -m "not long" $(PARALLEL) tests/unit tests/transcripts tests/tidy $(ARGS)
	@exec $(BIN)/antiphon sim bus --seeds 100

test-long: $(VENV)/.installed-dev ## run the long tests, and the properties with many more examples
	@exec $(BIN)/python -m pytest -m "long or hypothesis" --hypothesis-profile=long --timeout=3600 $(ARGS)

setup: $(VENV)/.installed-dev ## create .venv with all extras; quick the second time

check: $(VENV)/.installed-dev ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff format everything and repair what it safely can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: $(VENV)/.installed-dev ## write the blocking face and the pages of docs/reference anew from the code
	$(BIN)/python tools/blocking_face.py
	$(BIN)/python -m tools.reference_pages

sweep: $(VENV)/.installed-dev ## fresh seeds of every workload (ARGS="--from 123000000 --rounds 500")
	@exec $(BIN)/python -m tests.sim.sweep $(ARGS)

sim: $(VENV)/.installed-run ## simulate the bus under faults (SEEDS=500)
	@exec $(BIN)/antiphon sim bus --seeds $(SEEDS) $(ARGS)

fuzz: $(VENV)/.installed-fuzz ## look for bytes that a decoder does not survive (FUZZ_SECONDS=60 each)
	@exec $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

# Beside other brokers only with their clients.
bench: $(VENV)/.installed-dev $(if $(findstring --peers,$(ARGS)),$(VENV)/.installed-peers) ## measure this machine
	@exec $(BIN)/python bench/run.py $(ARGS)

clean: ## remove caches and build results; .venv and antiphon-data stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# What running needs, a cluster too, and no more.
$(VENV)/.installed-run: pyproject.toml | $(BIN)/pip
	@echo "installing antiphon into $(VENV)" >&2
	@$(PIP_INSTALL) --editable '.[cluster,regex]'
	@touch $@

# Everything: all extras, and the tools of the developers. Spark needs Java, which pip does not bring: root on
# Debian gets it installed, others are told how; all but the pipeline works without.
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	@echo "installing antiphon with all extras and the development tools into $(VENV)" >&2
	@$(PIP_INSTALL) --editable '.[all,dev]'
	@$(BIN)/python -m antiphon.pipeline.java
	@touch $(VENV)/.installed-run $@

$(VENV)/.installed-peers: pyproject.toml | $(BIN)/pip
	@echo "installing the clients of other brokers into $(VENV)" >&2
	@$(PIP_INSTALL) --editable '.[peers]'
	@touch $@

# Where there is no atheris for this Python, the targets run without it.
$(VENV)/.installed-fuzz: pyproject.toml | $(BIN)/pip
	@echo "installing antiphon and atheris into $(VENV)" >&2
	@$(PIP_INSTALL) --editable '.[fuzz]' || $(PIP_INSTALL) --editable .
	@touch $@

# pip is the last thing `venv` puts in place: when it is there, the environment is whole.
# Debian ships Python without what `venv` needs; root gets it installed, others are told how.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
		echo "Antiphon needs Python 3.11 or later and finds no '$(PYTHON)'." >&2; \
		echo "On Debian: apt-get install python3 python3-venv. Or name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Antiphon needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version)." >&2; \
		echo "Name another one: make PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing $$package, which creating $(VENV) needs" >&2; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package >/dev/null; \
		else \
			echo "'$(PYTHON)' cannot create virtual environments: its venv module is incomplete." >&2; \
			echo "On Debian or Ubuntu: sudo apt-get install $$package" >&2; \
			exit 1; \
		fi; }
	@echo "creating $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
