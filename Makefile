# make quickstart         from nothing to a trained agent
# make quickstart-robot   from nothing to a robot policy and a film of it
# make test               everything that must hold for a change
# make lint               format, lint and types only
# make bench              every benchmark, figures as JSON; EFFORT=--full repeats more

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
CONFIG ?= examples/quickstart.toml
WORKERS ?= 3
EFFORT ?=
BENCHMARKS := $(notdir $(basename $(wildcard benchmarks/[a-z]*.py)))

# Nothing is compiled ahead; where this is set, each start would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart quickstart-robot test lint docs bench packages install install-robot install-dev install-bench
.DELETE_ON_ERROR:

quickstart:
	@scripts/quickstart.sh "$(MAKE)" "$(BIN)" "$(CONFIG)"

quickstart-robot:
	@scripts/quickstart_robot.sh "$(MAKE)" "$(BIN)"

# Tests of the sandbox look for processes left behind on this machine, so they run by themselves.
# Branches are counted only in the tests of what must have them all: counting makes others slow.
# The same cases are drawn every time; a plain `pytest` draws new ones.
test: export OMP_NUM_THREADS := 1
test: packages lint docs
	$(BIN)/pytest --hypothesis-profile=ci tests/sandbox
	$(BIN)/pytest --hypothesis-profile=ci -n 2 tests/control \
		--cov --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(BIN)/pytest --hypothesis-profile=ci -n $(WORKERS) --no-loadscope-reorder \
		--ignore=tests/sandbox --ignore=tests/control

lint: install-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/pyright -p benchmarks

docs: install-dev
	$(BIN)/python scripts/check_docs.py

bench: packages install-bench install-robot
	@for name in $(BENCHMARKS); do $(BIN)/rollart bench $$name --json $(EFFORT) || exit 1; done

# What tests need beside Python packages; the quickstart needs none of it.
packages:
	@scripts/debian_packages.sh test

install: $(VENV)/train.stamp
install-robot: $(VENV)/robot.stamp
install-dev: $(VENV)/dev.stamp
install-bench: $(VENV)/bench.stamp

# Compiled is what a first import needs: all would take longer than the rest.
# torch comes first and pinned: left to the resolver it may bring gigabytes of GPU packages.
$(VENV)/torch.stamp:
	@test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip' 2>/dev/null || scripts/debian_packages.sh venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch"
	@$(PIP) install --no-compile torch==2.13.0
	@touch $@

# The versions all tests passed with: a release of today does not break a clone of yesterday.
$(VENV)/%.stamp: $(VENV)/torch.stamp pyproject.toml constraints.txt
	@echo "installing rollart[$*]"
	@$(PIP) install --no-compile -c constraints.txt -e '.[$*]'
	@$(BIN)/python scripts/first_import.py
	@touch $@
