# Everything is set up from nothing but Python 3.11: `make demo`, `make test`, `make docs`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test campaign lint docs results clean

demo: .venv/.library
	$(BIN)/antipodal demo

test: .venv/.developer
	$(BIN)/python -m pytest -n auto --dist worksteal

# All campaigns of faults, about an hour, with new seeds, which they print: records in benchmarks/results.
CAMPAIGNS := kills powerloss ioerrors races fuzz snapshot hostile soak
campaign: .venv/.developer
	failed=; for name in $(CAMPAIGNS); do $(BIN)/python campaigns/$$name.py || failed="$$failed $$name"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

lint: .venv/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into site/: open site/index.html. Warnings are errors.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Write the tables of README.md and docs/research/results.md from benchmarks/results.
results: .venv/.library
	$(BIN)/python benchmarks/render.py

# pip 25.1 knows dependency groups. PyTorch comes first and pinned: a looser request
# may bring gigabytes of CUDA packages to a machine without a GPU.
.venv/.library: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[serve]'
	touch $@

.venv/.developer: .venv/.library
	$(BIN)/pip install --quiet --group dev
	! command -v npm || npm install --silent --prefix examples/onnx || echo "no test of the example in JavaScript"
	touch $@

.venv/.docs: .venv/.library
	$(BIN)/pip install --quiet --group docs
	touch $@

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis
