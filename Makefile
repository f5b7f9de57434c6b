# `make demo` and `make test` install everything they need, also on a new machine. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KEPT := .sandbox-e2e

.DEFAULT_GOAL := help
.PHONY: help demo demo-helm demo-down up e2e down test prepare bench soak lint types style generate venv unit audit docs

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

demo: $(STAMP) ## real clusters on this machine, virtual nodes, a Deployment; they keep running
	@$(BIN)/python -m hack.sandbox demo

demo-helm: $(STAMP) ## the same clusters with the chart installed by Helm (as root on Debian)
	@$(BIN)/python -m hack.sandbox helm

demo-down: $(STAMP) ## stop what demo or demo-helm started
	@$(BIN)/python -m hack.sandbox down

up: $(STAMP) ## clusters for make e2e; they keep running (as root on Debian)
	@$(BIN)/python -m hack.sandbox up --real-node --directory $(KEPT)

e2e: $(STAMP) ## one end-to-end test in the clusters of make up: make e2e TEST=tests/clusters/pods/test_pods.py
	VIRTUAL_NODE_SANDBOX=$(KEPT) $(BIN)/pytest $(or $(TEST),$(error set TEST, such as TEST=tests/clusters/pods/test_pods.py))

down: $(STAMP) ## stop the clusters of make up
	@$(BIN)/python -m hack.sandbox down --directory $(KEPT)

# Modules of tests on real clusters in parallel: more than two cores, because a module waits most of the time.
WORKERS ?= 4
# Programs in Go, most of them short commands, collect garbage less often: helm takes 30 % less CPU time, kubectl 15 %.
GO_PROGRAMS := GOGC=400

# The order is that of tests/clusters/fixtures.py. If only a few tests fail, tests/again.py runs their modules again.
test: lint prepare ## lint and all tests, on real clusters, as CI does
	@$(MAKE) --no-print-directory unit THOROUGH=1 || THOROUGH=1 $(BIN)/python -m tests.again tests/unit
	$(GO_PROGRAMS) PYTHONDONTWRITEBYTECODE= $(BIN)/pytest tests/clusters tests/field --numprocesses=$(WORKERS) \
		--dist=loadfile --no-loadscope-reorder --durations=40 --durations-min=5 || $(BIN)/python -m tests.again tests/clusters tests/field

# A separate target, because the first build takes minutes, too long for a test.
prepare: $(STAMP) ## find or build Kubernetes, etcd, Helm and others, once
	@$(BIN)/python -m hack.sandbox prepare

# Expensive tests use few inputs here and all in `make test`, see tests/thorough.py. One process per core, because each takes
# seconds of CPU time to collect the tests. An empty PYTHONDONTWRITEBYTECODE keeps compiled tests, because compiling takes
# longer than all other parts of the collection.
unit: $(STAMP) ## unit tests
	$(GO_PROGRAMS) THOROUGH=$(THOROUGH) PYTHONDONTWRITEBYTECODE= $(BIN)/pytest tests/unit --numprocesses=auto --dist=worksteal

bench: $(STAMP) ## all benchmarks, about 4 h on an idle machine; writes docs/evidence/benchmarks.md
	$(BIN)/python -m tests.benchmarks

soak: $(STAMP) ## churn with faults; fails if a pod is lost or doubled, or memory grows: make soak MINUTES=60
	$(BIN)/python -m tests.benchmarks.bench_soak --minutes $(or $(MINUTES),60)

# --strict: fail if a library cannot be looked up on PyPI.
audit: $(STAMP) ## known vulnerabilities of the image's libraries, from PyPI
	@$(BIN)/pip install --quiet --group audit
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement hack/image/libraries.txt

# The two halves take about the same time, and one core each. tests/unit/charts checks generated files that need Helm, because
# lint runs before Helm is built.
lint: $(STAMP) ## style, types, layers, generated files, links
	@$(MAKE) --no-print-directory --jobs=2 --output-sync types style

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m hack.docs.reference --check
	$(BIN)/python -m hack.chart --check
	$(BIN)/python -m hack.docs.links

# A link that leads nowhere, or a page without a place in docs/README.md, fails the build.
docs: $(STAMP) ## the documentation as a site with search, in .site/
	@$(BIN)/pip install --quiet --constraint hack/constraints.txt --group docs
	@$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --conf-dir hack/docs/site docs .site
	@echo "open .site/index.html"

generate: $(STAMP) ## write all generated files: reference, chart, golden files, plots
	$(BIN)/python -m hack.docs.reference
	$(BIN)/python -m hack.chart
	$(BIN)/python -m tests.unit.charts.rendering
	$(BIN)/python -m hack.placement plots
	$(BIN)/python -m tests.benchmarks render

venv: $(STAMP) ## .venv with all libraries and tools

$(STAMP): pyproject.toml hack/constraints.txt
	@echo "preparing $(VENV) (packages from PyPI)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --constraint hack/constraints.txt --upgrade pip
	@$(BIN)/pip install --quiet --constraint hack/constraints.txt --editable . --group dev
	@touch $@
