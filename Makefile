# The commands of the project. From a bare Debian machine with Python 3.11 and make:
#   make lab    the tour in JupyterLab          make test    everything that continuous integration runs
#   make demo   three short runs and a report   make check   the same without set-up steps
# Settings: PYTHON=... (interpreter), PYTEST_ARGS=... (for example -m "not real"), WORKERS=... (of the tests), LAB_ARGS=...

SHELL := /bin/sh
PY := .venv/bin/python
TOUR := notebooks/00_tour.ipynb
DEFAULT_MODEL := smollm2-135m-instruct
# The line after the default one (its pin is in pyproject.toml): the model contract must hold on both.
NEXT_TRANSFORMER_LENS := transformer-lens>=4.3,<5
SITE := build/docs
SITE_SOURCES := $(shell find docs workbench widgets -name '*.py' -o -name '*.md' -o -path 'docs/static/*' -o -path 'docs/images/*.png')
PYTHON ?=
PYTEST_ARGS ?=
WORKERS ?= 2
LAB_ARGS ?=
export PYTHON
export PYTHONUNBUFFERED := 1

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help system browser venv model lab demo test check format format-check lint types docs pytest \
	contract-tl4 bench gpu-check soak constraints clean

help:
	@sed -n '2,4s/^# *//p' Makefile

# --- set-up; each step is a no-op of under a second when done ---

system:
	@sh scripts/setup.sh system

browser:
	@sh scripts/setup.sh browser

venv:
	@sh scripts/setup.sh venv

model: venv
	@.venv/bin/workbench models --fetch $(DEFAULT_MODEL)

# --- use ---

lab: model
	$(PY) -m jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/$(TOUR) $(LAB_ARGS)

demo: model
	.venv/bin/workbench demo --out reports/demo --overwrite

bench: model
	$(PY) benchmarks/bench_engine.py
	$(PY) benchmarks/bench_lean.py --peers
	$(PY) benchmarks/bench_trace.py
	$(PY) benchmarks/bench_answers.py
	$(PY) benchmarks/bench_mask.py
	$(PY) benchmarks/bench_carry.py
	$(PY) benchmarks/bench_mcmc.py
	$(PY) benchmarks/bench_kernel.py

# Where there is a CUDA card: is the kernel right there, and how fast; elsewhere it says that there is none.
gpu-check: venv
	$(PY) benchmarks/bench_kernel.py --check

# Random runs, kills, interrupts and a long run at scale, ten minutes at most; `make test` has a slice of it.
soak: venv
	$(PY) tests/trust/soak.py

# --- checks ---

# pytest comes last, so that its summary is the last line.
test: system $(if $(wildcard tests/browser),browser) venv model contract-tl4 check

check: format-check lint types docs pytest

format: venv
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

format-check: venv
	$(PY) -m ruff format --check .

lint: venv
	$(PY) -m ruff check .

types: venv
	$(PY) -m mypy

docs: venv $(SITE)/built
	@echo "docs: see $(CURDIR)/$(SITE)/index.html"

# Warnings are errors. The stamp is written last, so a build that failed is made again.
$(SITE)/built: $(SITE_SOURCES)
	@rm -rf $(SITE)
	$(PY) -m sphinx --builder html --fresh-env --quiet --fail-on-warning docs $(SITE)
	@touch $@

pytest: venv
	$(PY) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

contract-tl4: venv
	@sh scripts/setup.sh tl4 "$(NEXT_TRANSFORMER_LENS)"
	PYTHONPATH="$(CURDIR)/.venv/tl4" $(PY) -m pytest tests/models/test_contract.py -m "not real" -p no:cacheprovider

# --- upkeep ---

# Writes down the versions in .venv as the tested set; run it after a change of pins, when the tests pass.
constraints:
	@sh scripts/setup.sh constraints

clean:
	rm -rf .venv build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
