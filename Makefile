# The two commands are `make demo` and `make test`; both set up their environment first (see scripts/setup_env.py).
PYTHON ?= python3
BIN := .venv/bin
# Options of the demo or the benchmark, e.g. make demo ARGS="--concurrency 8"; .venv/bin/nsd-sglang demo --help lists them.
ARGS ?=
# Two test processes, each with whole files (a file shares one server); WORKERS= runs everything in one.
WORKERS ?= -n 2 --dist loadfile
# What the lock holds beyond pyproject.toml: the tools that build and install the package itself.
LOCK_TOOLS := pip setuptools

# Idle OpenMP threads sleep instead of spinning: servers, tests and whatever else runs here share the cores.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help env demo test bench clean lock

help:
	@echo "make demo    run three real servers and print the comparison (ARGS=\"...\" passes options on)"
	@echo "make test    run the tests"
	@echo "make bench   the whole benchmark with the demo's pair, results in bench-results (ARGS=\"...\" passes options on)"
	@echo "make env     only set up the environment"
	@echo "make clean   remove this checkout's environment and build leftovers; the per-user cache stays"
	@echo "make lock    resolve requirements.lock again (needs uv)"

env:
	@$(PYTHON) scripts/setup_env.py

demo: env
	@$(BIN)/nsd-sglang demo $(ARGS)

test: env
	@$(BIN)/python -m pytest tests $(WORKERS) $(ARGS)

bench: env
	@$(BIN)/nsd-sglang bench $(ARGS)

clean:
	rm -rf .venv build *.egg-info .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Versions that the lock already has are kept where they still fit.
lock:
	printf '%s\n' $(LOCK_TOOLS) | uv pip compile --universal --python-version 3.11 --no-annotate \
		--extra demo --extra test --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml -
