# Every target sets up what it needs, in .venv. Only make, a compiler and Python 3.11 or newer have to be there;
# PYTHON=... names an interpreter, PYTEST_ARGS=... is handed to pytest.

PYTHON ?=
PYTEST_ARGS ?=
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -qq
FIND_PYTHON := for p in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; p=; done

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test lint bench certs clean
unexport PYTHONPATH PYTHONHOME

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/lint.stamp ## everything for development in .venv

demo: $(VENV)/runtime.stamp ## a real KV cache from one process to another, layer by layer
	@$(VENV)/bin/kvcs demo

test: $(VENV)/test.stamp ## all tests
	@$(VENV)/bin/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/lint.stamp ## format, style, types, spelling
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/codespell

bench: $(VENV)/runtime.stamp ## throughput, first layer and memory, beside plain QUIC
	@$(VENV)/bin/kvcs bench

certs: $(VENV)/runtime.stamp ## a short-lived CA with a server and a client pair, in certs/
	@$(VENV)/bin/python certs/make.py

clean: ## removes all that make made
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist certs/*.pem
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
