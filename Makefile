# `make demo` and `make test` need nothing but Python 3.11 or newer: they set up .venv themselves.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Where to find torch's wheels, if not where tools/install-torch.sh looks by itself.
TORCH_INDEX ?=
PYTEST_ARGS ?=
SIMULATOR ?= verilator
DEMO ?= --method santa,top-k,dense --samples 16,64,256 --bits 4,6,8 --windows 1 --seeds 1 \
	--json build/demo.json --plot build/demo.png

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
READY := $(VENV)/.ready

.PHONY: setup demo test cosim cosim-full formal lint format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt tools/install-torch.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "santa-hw needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	tools/install-torch.sh $(BIN)/python $(TORCH_INDEX)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev,fpga]'
	touch $@

demo: $(READY)
	mkdir -p build
	$(BIN)/santa-hw accuracy $(DEMO)

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Every RTL block against the golden model.
cosim: $(READY)
	$(BIN)/santa-hw cosim --simulator $(SIMULATOR)

# The whole step on 1008 decode steps of SmolLM2-135M.
cosim-full: $(READY)
	mkdir -p build
	$(BIN)/santa-hw capture --out build/capture.npz
	$(BIN)/santa-hw cosim santa_decode --captured build/capture.npz --vectors 1008 --pattern full --simulator $(SIMULATOR)

formal: $(READY)
	$(BIN)/python formal/run.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
