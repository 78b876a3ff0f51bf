# Everything runs inside .venv, which `make install` makes; other targets call it when it is missing or out of date.
# Needed beforehand: python3 (3.11 or newer, with venv) and make. Another interpreter: make install PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demonstration data are a distribution of their own, installed where the folder is there.
DEMO_DATA := $(wildcard demo-data/pyproject.toml)
DEMO_FILES := $(shell test -d demo-data && find demo-data -type f -not -path '*/__pycache__/*')
# More options for the tool behind a target: make test ARGS="-k house"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install test fuzz torch test-gpu test-torch lint format docs bench demo serve loop audit lock picture clean

help:
	@echo "make install   put calcode, its tools and the demonstration data into $(VENV)"
	@echo "make test      run the tests and the examples in docstrings and docs"
	@echo "make fuzz      damage 20,000 files of every kind and read them (CASES=..., SEED=...)"
	@echo "make test-gpu    the tests of the device engine on a GPU, with the python3 that has torch for it"
	@echo "make test-torch  the tests that need torch, which it installs (large) into $(VENV)"
	@echo "make lint      ruff (rules and format) and mypy"
	@echo "make format    let ruff rewrite what 'make lint' would complain about"
	@echo "make docs      build the documentation into build/site"
	@echo "make bench     run the benchmarks; their figures replace benchmarks/results"
	@echo "make demo      fit and decide on real dermatology features, write report.html"
	@echo "make picture   the same, and the picture of that page for the README (needs chromium)"
	@echo "make serve     the decision service with the demonstration model and a stream of images"
	@echo "make loop      play its story: an alarm, labels, a site model, its promotion; with pictures in build/loop"
	@echo "make audit     bandit on the service, pip-audit on what is installed (needs the network, and says where it had none)"
	@echo "make lock      choose the versions of the service's libraries again, with their hashes (needs the network)"
	@echo "make clean     remove what the other targets made, except $(VENV)"

install: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "calcode needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1 || true)"; \
	  echo "Name another one: make install PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON) -m venv' cannot work here: this Python comes without ensurepip."; \
	  echo "On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)

$(STAMP): pyproject.toml $(DEMO_FILES) | $(BIN)/python
	@echo "Installing calcode and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
ifneq ($(DEMO_DATA),)
	@echo "Installing the demonstration data (CC BY-NC 4.0)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check ./demo-data
endif
	@touch $@

# One thread per worker: several test processes with several threads each would fight for the cores.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# The first cases are those of `test`; SEED=1000 begins elsewhere.
CASES ?= 20000
SEED ?= 0
fuzz: $(STAMP)
	CALCODE_FUZZ_CASES=$(CASES) CALCODE_FUZZ_SEED=$(SEED) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/fuzz $(ARGS)

# Apart from `test`, because torch is large and a machine without it must still be able to test the rest.
TORCH ?= torch transformers open_clip_torch
torch: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)

test-gpu:
	CALCODE_TEST_DEVICE=cuda PYTHONPATH=src python3 -m pytest tests/engines/test_device.py tests/engines/test_device_site.py tests/kernels/test_device_hashes.py $(ARGS)

test-torch: torch
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/backbones tests/engines $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

bench: $(STAMP)
	@set -e; for file in $$(find benchmarks -name 'bench_*.py' | sort); do \
	  echo "== $$file"; $(BIN)/python "$$file" $(ARGS); done

demo: $(STAMP)
	$(BIN)/calcode demo $(ARGS)

serve: $(STAMP)
	$(BIN)/calcode serve --demo $(ARGS)

loop: $(STAMP)
	$(BIN)/calcode serve --demo --pace 60 --port 0 --report build/loop $(ARGS)

# SQL strings are made of table names and marks of parameters alone (B608).
audit: $(STAMP)
	$(BIN)/python -m bandit -q -r -ll --skip B608 src/calcode/service src/calcode/method/signatures.py
	$(BIN)/python tools/audit.py

# The build's own tool is among them, so that nothing without a hash is run. Some environments are not ours to serve.
lock: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	echo 'hatchling>=1.26' | $(BIN)/uv pip compile pyproject.toml - --extra service --extra postgres --universal \
	  --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate --quiet --output-file deploy/service.lock

# The picture in the README: the head of the demo's page as a browser shows it.
picture: demo
	chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
	  --disable-component-update --disable-sync --hide-scrollbars --user-data-dir=$$(mktemp -d) \
	  --window-size=1180,1402 --screenshot=$(CURDIR)/docs/images/demo.png file://$(CURDIR)/demo-output/report.html

clean:
	rm -rf build dist demo-output .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks demo-data -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
