# Each rule creates .venv and installs what it needs; only Python 3.11 or later is required.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Without bytecode files, each process compiles the library and pytest's assertions again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-random test-without-torch integrations campaign lint docs results lock \
  check-dockerfile clean

demo: .venv/.library
	$(BIN)/antipodal demo

# Many tests wait for servers and browsers: four workers keep two cores busy.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() * 2)')
test: .venv/.developer
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Run the tests in a random order. `make test-random SEED=…` repeats an order.
SEED ?= $(shell date +%s)
test-random: .venv/.developer
	ANTIPODAL_TEST_ORDER=$(SEED) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Run the tests that do not need PyTorch, in a new environment without it.
test-without-torch:
	rm -rf .venv-without-torch
	$(PYTHON) -m venv .venv-without-torch
	.venv-without-torch/bin/pip install --quiet --upgrade 'pip>=25.1'
	.venv-without-torch/bin/pip install --quiet --editable '.[serve]' --group dev
	! .venv-without-torch/bin/python -c 'import torch' 2>/dev/null
	.venv-without-torch/bin/python tests/smoke.py
	.venv-without-torch/bin/python -m pytest tests -n $(WORKERS) --dist worksteal

# Test the integrations, including the suites of LangChain, Haystack and mteb.
INTEGRATIONS := haystack huggingface_datasets langchain llamaindex mteb sentence_transformers
integrations: .venv/.integrations
	$(BIN)/python -m pytest -n auto --dist loadfile $(INTEGRATIONS:%=tests/test_%.py)

# Run the fault-injection and stress tests with new seeds, which are printed, and the Spark, Dask and
# Ray examples. This takes some hours. Records are written to benchmarks/results.
CAMPAIGNS := kills powerloss ioerrors races fuzz snapshot hostile soak
campaign: .venv/.developer .venv/.cluster
	failed=; for name in $(CAMPAIGNS); do $(BIN)/python campaigns/$$name.py || failed="$$failed $$name"; done; \
	$(BIN)/python -m pytest campaigns/test_cluster.py campaigns/test_ray.py || failed="$$failed cluster"; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

lint: .venv/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

# Build the site into site/; open site/index.html. Warnings are errors.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Write the command reference, and the tables of README.md and docs from benchmarks/results.

results: .venv/.library
	$(BIN)/python benchmarks/render.py

# Pin the dependencies of the container image, with hashes. hatchling builds the package.
lock: .venv/.library
	$(BIN)/pip install --quiet uv==0.13.8
	echo hatchling | $(BIN)/uv pip compile pyproject.toml - --extra serve --extra postgres --extra arrow \
	  --python-version 3.11 --python-platform linux --generate-hashes --no-header --no-annotate \
	  --quiet --upgrade --output-file deploy/requirements.lock

# Execute the Dockerfile in an empty folder, without containers. It needs Python 3.11.
check-dockerfile:
	python3.11 deploy/check_dockerfile.py

# Dependency groups need pip 25.1. PyTorch is installed first and pinned: a looser requirement
# may install gigabytes of CUDA packages on a machine without a GPU.
.venv/.library: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[serve,train]'
	touch $@

.venv/.developer: .venv/.library
	$(BIN)/pip install --quiet --group dev
	! command -v npm || npm install --silent --prefix examples/onnx || echo "npm install failed: the JavaScript example is not tested"
	touch $@

.venv/.integrations: .venv/.developer
	$(BIN)/pip install --quiet --group dev --group integrations
	touch $@

# Spark also needs Java 17 or later.
.venv/.cluster: .venv/.library
	$(BIN)/pip install --quiet --group cluster
	touch $@

.venv/.docs: .venv/.library
	$(BIN)/pip install --quiet --group docs
	touch $@

clean:
	rm -rf .venv .venv-without-torch site .pytest_cache .mypy_cache .ruff_cache .hypothesis
