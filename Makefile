# Bare `make` prints this menu. Every target sets up what it needs; the second run is quick.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-peers
REAL   := .venv-real
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := menu
.PHONY: menu demo test peers test-peers test-real transcript check lint types contracts format docs size clean

menu: ## print this menu
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'vindicate needs Python 3.11 or later; "$(PYTHON)" is older. Try: make PYTHON=/path/to/python3.11'; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable .
	@touch $(STAMP)

demo: $(STAMP) ## play the story on the embedded reference stack (under 3 minutes)
	@$(BIN)/vindicate demo

test: $(STAMP) ## run the tests (about 6 minutes on 2 cores)
	@$(BIN)/python -m pytest -n 2 --dist worksteal

test-peers: $(STAMP) $(PEERS)/.installed ## the judge on real routers, proxies and an engine, from wheels (about 5 minutes)
	@$(BIN)/python -m pytest tests/peers -n 2 --dist worksteal

peers: $(PEERS)/.installed

$(PEERS)/.installed: requirements-peers.txt
	@echo "installing into $(PEERS) ..."
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --only-binary=:all: --requirement requirements-peers.txt
	@touch $@

test-real: $(STAMP) $(REAL)/.installed ## the judge on a real vLLM prefill and decode pair, on CPU (4 GB of wheels, 7 GB of memory, about 25 minutes)
	@$(BIN)/python benchmarks/real_engines.py

transcript: $(STAMP) $(REAL)/.installed ## freeze the decode worker of that pair and show what a person would see
	@$(BIN)/python benchmarks/real_engines.py --transcript docs/real-engines.txt

# torchvision and its kind come as CUDA builds here, and break the import of the models
$(REAL)/.installed: requirements-real.txt
	@echo "installing into $(REAL), 4 GB ..."
	@test -x $(REAL)/bin/python || $(PYTHON) -m venv $(REAL)
	@$(REAL)/bin/python -m pip install --quiet --requirement requirements-real.txt
	@$(REAL)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
	@touch $@

check: lint types contracts test ## linters, types, import contracts, tests

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports

format: $(STAMP) ## format the code
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

docs: $(STAMP) ## write docs/commands.md from the commands
	@$(BIN)/python docs/generate.py

size: $(STAMP) ## install the package alone into build/size and print what it takes
	@rm -rf build/size && $(PYTHON) -m venv build/size && build/size/bin/pip install --quiet --constraint constraints.txt . && du -sm build/size

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(PEERS) $(REAL) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
