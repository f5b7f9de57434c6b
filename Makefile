# Two words each. `make demo` and `make test` do all, on a fresh machine too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo demo-helm demo-down test prepare bench lint venv unit audit

demo: $(STAMP)
	@$(BIN)/python -m hack.sandbox demo

# The same clusters, and the chart installed by helm as root on Debian.
demo-helm: $(STAMP)
	@$(BIN)/python -m hack.sandbox helm

demo-down: $(STAMP)
	@$(BIN)/python -m hack.sandbox down

# Real clusters want both cores for themselves.
test: lint prepare unit
	$(BIN)/pytest tests/e2e tests/integration

# Building takes minutes the first time; a test's time limit is no place for it.
prepare: $(STAMP)
	@$(BIN)/python -m hack.sandbox prepare

unit: $(STAMP)
	$(BIN)/pytest tests/unit --numprocesses=2 --dist=loadfile

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.bench_load

# Known vulnerabilities of the libraries in the image, as PyPI knows them. A library that cannot be asked about is a
# failure, not a pass.
audit: $(STAMP)
	@$(BIN)/pip install --quiet --group audit
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement hack/image/libraries.txt

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: $(STAMP)

$(STAMP): pyproject.toml
	@echo "preparing $(VENV) (packages from PyPI)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade pip
	@$(BIN)/pip install --quiet --editable . --group dev
	@touch $@
