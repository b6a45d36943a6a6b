# `make demo` sets everything up and runs the closed loop; `make test` sets up what tests need and runs them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS ?= runs

.DEFAULT_GOAL := help
.PHONY: help venv dev demo test lint check unit bench rdma-lab schema clean

help: ## this list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 22

# A fresh machine may lack python3-venv: as root install it, else say the one line to type.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "genie needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11 demo" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q python3-venv; \
	  else echo "python3-venv is missing. Type: sudo apt-get install -y python3-venv" >&2; exit 3; fi; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.installed

venv: $(VENV)/.installed ## the virtual environment
dev: $(VENV)/.installed-dev ## the same with what developers need

demo: venv ## the closed loop on the embedded fabric
	$(BIN)/genie loop examples/quickstart/experiment.yaml --out $(RUNS)

test: dev check rdma-lab-if-possible tshark-if-root frr-if-possible mpi-if-root unit ## everything that is tested

check lint: dev ## style, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

rdma-lab: dev ## a kernel with verbs in software, for the verbs transport (docs/rdma-lab.md); 5 minutes once
	$(BIN)/python -m genie.testbed.rdma_kernel

# Tests that need it skip with the reason, which is a failure where CI must be able to do it.
.PHONY: tshark-if-root
tshark-if-root:
	@command -v tshark >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends tshark; } || echo "goes on without tshark" >&2

.PHONY: mpi-if-root
mpi-if-root:
	@command -v mpirun >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openmpi-bin; } || echo "goes on without mpirun" >&2

.PHONY: rdma-lab-if-possible
rdma-lab-if-possible: dev
	$(BIN)/python -m genie.testbed.rdma_kernel || echo "goes on without the rdma-lab" >&2

# FRR for emulated switches that route for themselves (stack: frr); its own service stays off.
.PHONY: frr-if-possible
frr-if-possible:
	@PATH="$$PATH:/usr/lib/frr" command -v bgpd >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends frr; \
	    { systemctl disable -q --now frr || service frr stop; } >/dev/null 2>&1 || true; \
	  else echo "goes on without FRR; get it with: sudo apt install frr" >&2; fi; }

unit: dev ## the tests alone
	$(BIN)/pytest

bench: bench-sim bench-trace bench-flow bench-fabric bench-fabric-flow bench-mpi bench-transport bench-real bench-fidelity bench-results ## every benchmark

.PHONY: bench-transport iperf3-if-root
bench-transport: bench-tcp bench-verbs bench-roce ## all transports against what they are built on

bench-tcp: iperf3-if-root

bench-verbs: rdma-lab

iperf3-if-root:
	@command -v iperf3 >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends iperf3; } || echo "goes on without iperf3" >&2

bench-%: dev ## one benchmark: a table, and build/bench/NAME.json
	$(BIN)/python benchmarks/bench_$(subst -,_,$*).py

schema: dev ## write the published schemas of testbed and suite files again
	$(BIN)/python -c 'import json; from genie.testbed.files import schema; print(json.dumps(schema(), indent=1))' \
	  > testbed/testbed.schema.json
	$(BIN)/python -c 'import json; from genie.suite.model import schema; print(json.dumps(schema(), indent=1))' \
	  > genie/suite/suite.schema.json

clean: ## what can be made again
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
