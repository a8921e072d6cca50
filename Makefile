# Every target sets up what it needs, in .venv. Only make, a compiler and Python 3.11 or newer have to be there;
# PYTHON=... names an interpreter, PYTEST_ARGS=... is handed to pytest, BENCH_ARGS=... to the benchmarks.
# INTEROP_ROUNDS=20 runs the conformance client that often; INTEROP_PAGE= leaves the page of results as it is.

PYTHON ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
INTEROP_ROUNDS ?= 1
INTEROP_PAGE ?= docs/interop.md
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=
FUZZ_ARGS ?=
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -qq
FIND_PYTHON := for p in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; p=; done

# aiopquic needs 3.12; where that is not on the path it may be among pyenv's.
FIND_NEWER := for p in $(or $(PYTHON),python3.14 python3.13 python3.12 python3 $$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-4]*/bin/python3 2>/dev/null)); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 12) <= sys.version_info < (3, 15))' 2>/dev/null && break; p=; done
BACKENDS := .venv-backends
INTEROP := .venv-interop
BACKEND_TESTS := tests/moqt/quic/test_contract.py $(wildcard tests/moqt/test_client_server.py tests/kvcs/test_end_to_end.py tests/kvcs/cli/test_transport.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-backends interop lint bench soak fuzz certs clean
unexport PYTHONPATH PYTHONHOME

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/lint.stamp ## everything for development in .venv

demo: $(VENV)/runtime.stamp ## a real KV cache from one process to another, layer by layer
	@$(VENV)/bin/kvcs demo

test: $(VENV)/test.stamp ## all tests
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

test-backends: $(BACKENDS)/test.stamp ## the same contract on each optional QUIC library that can be installed
	@for b in qh3 aiopquic; do \
		if $(BACKENDS)/bin/python -c "import $$b" 2>/dev/null; then \
			echo "$$b, $$($(BACKENDS)/bin/python -V):"; \
			$(BACKENDS)/bin/python -m pytest --quic $$b $(BACKEND_TESTS) tests/moqt/quic/test_$$b.py $(PYTEST_ARGS) || exit 1; \
		else echo "$$b is not installed for $$($(BACKENDS)/bin/python -V), and so not tested."; fi; done

interop: $(VENV)/test.stamp ## beside MOQT implementations that others wrote; needs Python 3.12 or newer
	@$(FIND_NEWER); \
	if [ -z "$$p" ]; then echo "No Python 3.12 or newer with venv and pip was found: interoperation was not tested."; \
	else $(MAKE) --no-print-directory --silent $(INTEROP)/peers.stamp && \
		$(VENV)/bin/python -m pytest tests/interop --rounds $(INTEROP_ROUNDS) $(addprefix --page ,$(INTEROP_PAGE)) $(PYTEST_ARGS); fi

lint: $(VENV)/lint.stamp ## format, style, types, spelling
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/codespell

bench: $(VENV)/runtime.stamp ## all benchmarks: a table, and JSON and a picture in docs/bench; BENCH_ARGS=--quick
	@$(FIND_NEWER); peers=$(INTEROP)/peers.stamp; \
	if [ -z "$$p" ]; then peers=; echo "No Python 3.12 or newer with venv and pip was found: no rows of aiopquic and aiomoqt." >&2; fi; \
	$(MAKE) --no-print-directory --keep-going $(BACKENDS)/test.stamp $$peers || echo "Not all that is compared with could be installed; those rows are left out." >&2
	@$(VENV)/bin/python -m tests.bench $(BENCH_ARGS)

soak: $(VENV)/test.stamp ## gibibytes through a session, thousands of publications through a relay; takes half an hour
	@$(VENV)/bin/python -m pytest tests/soak -o faulthandler_timeout=0 $(PYTEST_ARGS)

fuzz: $(VENV)/test.stamp ## octets that are not quite right, for every parser; FUZZ_SECONDS=600 FUZZ_TARGETS=manifest,url
	@$(VENV)/bin/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --targets "$(FUZZ_TARGETS)" $(FUZZ_ARGS)

certs: $(VENV)/runtime.stamp ## a short-lived CA with a server and a client pair, in certs/
	@$(VENV)/bin/python certs/make.py

clean: ## removes all that make made
	@rm -rf $(VENV) $(BACKENDS) $(INTEROP) .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz dist certs/*.pem
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/created.stamp:
	@$(FIND_PYTHON); \
	if [ -z "$$p" ]; then echo "KVCS needs Python 3.11 or newer with venv and pip; none was found (name one with PYTHON=...)." >&2; exit 1; fi; \
	echo "Setting up $(VENV) with $$("$$p" -V); this happens once." >&2; "$$p" -m venv --clear $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/runtime.stamp: $(VENV)/created.stamp pyproject.toml
	@$(PIP) install --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/runtime.stamp
	@$(PIP) install --group test
	@touch $@

$(VENV)/lint.stamp: $(VENV)/test.stamp
	@$(PIP) install --group lint
	@touch $@

$(BACKENDS)/test.stamp: pyproject.toml
	@$(FIND_NEWER); if [ -z "$$p" ]; then $(FIND_PYTHON); fi; \
	if [ -z "$$p" ]; then echo "KVCS needs Python 3.11 or newer with venv and pip; none was found (name one with PYTHON=...)." >&2; exit 1; fi; \
	echo "Setting up $(BACKENDS) with $$("$$p" -V); this happens once." >&2; "$$p" -m venv --clear $(BACKENDS)
	@$(BACKENDS)/bin/python -m pip --disable-pip-version-check -qq install --upgrade 'pip>=25.1'
	@$(BACKENDS)/bin/python -m pip --disable-pip-version-check -qq install --editable . --group test
	@$(BACKENDS)/bin/python -m pip --disable-pip-version-check -qq install --editable '.[qh3]' || true
	@$(BACKENDS)/bin/python -m pip --disable-pip-version-check -qq install --only-binary aiopquic --editable '.[aiopquic]' || true
	@touch $@

$(INTEROP)/peers.stamp: tests/interop/requirements.txt
	@$(FIND_NEWER); echo "Setting up $(INTEROP) with $$("$$p" -V); this happens once." >&2; "$$p" -m venv --clear $(INTEROP)
	@$(INTEROP)/bin/python -m pip --disable-pip-version-check -qq install -r tests/interop/requirements.txt
	@touch $@
