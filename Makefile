# Everything runs in .venv, which `make install` builds and all other targets depend on.

SHELL := /bin/sh
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Installed first and alone, so that pip never weighs it against anything else.
# Without a GPU, with the index that pytorch.org names for CPU builds:
#   make TORCH="torch==2.13.0 --index-url INDEX"
TORCH ?= torch==2.13.0
# The Python that .venv is made with, where it is not the first of these that is there.
BASE_PYTHON ?= python3.11 python3 python3.12 python3.13 python3.14
# What `make types` checks: the product and the tests, as pyproject.toml says, where this is empty.
TYPED ?=
SOAK ?= 10
# Most tests wait for processes and leases: three files at a time keep two cores no more than busy.
AT_ONCE ?= 3

# What commands clusters on AWS, checked for names that Python does not have on macOS. Nothing that
# it imports is followed, so other errors than of such names are left to the check of everything.
ON_MACOS := --config-file= --cache-dir=.mypy_cache/macos --platform darwin --python-version 3.11 \
  --follow-imports skip --ignore-missing-imports --exclude replay/picture \
  $(foreach name,cli web client aws cloud kubernetes metrics model notifications replay,-p spotelastic.$(name)) \
  $(foreach name,catalog commit format storage,-p spotelastic_checkpoints.$(name)) \
  $(foreach name,signals systems validation training.dcp.convert,-m spotelastic.$(name)) \
  -m spotelastic_checkpoints.memory.reserve

# Hundreds of processes would compile the same files, where images of containers set it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install linux demo kube demo-kube test-kube docs test test-fast test-pure lint types types-on-macos test-examples test-programs \
  test-dashboard test-conformance test-aws soak bench dist smoke clean lock weight

help:
	@echo "make install   build .venv with everything"
	@echo "make demo      train through real interruptions on this machine (about 3 minutes)"
	@echo "make test-kube what only a real cluster shows, on the current context of kubectl"
	@echo "make kube      an emulated Kubernetes cluster, for kubectl"
	@echo "make demo-kube the same on an emulated Kubernetes cluster (about 4 minutes)"
	@echo "make docs      build the documentation into build/site; fails on a broken link"
	@echo "make test      lint, types, import rules and all tests"
	@echo "make test-fast  lint and the unit tests without an emulated account: what to run at every change"
	@echo "make test-pure  decisions, rounds, protocols and simulations: no torch, no process, half a minute"
	@echo "make test-examples  the tutorials, the examples, exports to other libraries, and the states that"
	@echo "               ten of them make: these are installed into .venv (timm takes part if it is there)"
	@echo "make test-programs  programs of several libraries lose workers and nodes (transformers, lightning"
	@echo "               and accelerate are installed into .venv; torchtitan<0.3 takes part if it is there)"
	@echo "make test-dashboard  the pages in a browser, which has to be there: chromium, or BROWSER=PATH"
	@echo "make test-conformance  some seventy scripts under python, torchrun and spotelastic run: 15 minutes"
	@echo "make test-aws  a run on a real AWS account in stages 0 to 4 (one alone: test-aws-0 to test-aws-4):"
	@echo "               says what it costs, asks, and writes one page, build/aws-first-run.md"
	@echo "make soak      the fault tests, $(SOAK) times (SOAK=3, or which turns: SOAK=4-6)"
	@echo "make bench     run the benchmarks"
	@echo "make dist      build the wheel and the source archive"
	@echo "make smoke     install and use them in an empty environment (NEWEST=1: with the newest"
	@echo "               versions of all dependencies)"
	@echo "make weight    the product's lines of code by folder, without docstrings, comments, blank lines"
	@echo "make lock      refresh constraints.txt, and what nodes install, from .venv (make lock-hashed:"
	@echo "               with the hashes of the files; make audit: known faults of these packages)"
	@echo "make clean     remove .venv and what was built"
	@echo "On macOS: install, docs, dist, weight and clean. All others need Linux."

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt spotelastic/version.py
	@python=; for candidate in $(BASE_PYTHON); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	test -n "$$python" || { echo "Python 3.11 or newer is needed, and none of these is: $(BASE_PYTHON)"; exit 1; }; \
	$$python -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$$python has no venv module: install it (Debian, Ubuntu: python3-venv)"; exit 1; }; \
	test -x $(PYTHON) || $$python -m venv $(VENV)
	@# What uses torch here needs Linux, too.
	test "$$(uname -s)" != Linux || $(PYTHON) -m pip install --quiet --disable-pip-version-check $(TORCH)
	extras=dev; test "$$(uname -s)" != Linux || extras=train,local,dev; \
	  $(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$$extras]"
	@touch $@

linux:
	@test "$$(uname -s)" = Linux || { echo "this needs Linux, and this is $$(uname -s): see make help"; exit 1; }

demo: linux install
	$(VENV)/bin/spotelastic up --local --name demo --fresh --yes --min 2 --max 4 --drill \
	  --report build/demo-report.json --curve build/demo-loss.svg \
	  examples/train_gpt.py --steps 400

test-kube: linux install
	$(PYTHON) -m pytest -q -n 0 -m "soak or not soak" tests/kube

kube: linux install
	PYTHONPATH=tests $(PYTHON) -m support.emulated_kubernetes

demo-kube: linux install
	PYTHONPATH=tests $(PYTHON) -m support.emulated_kubernetes.demo examples/train_gpt.py --steps 400

docs: install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "build/site is ready: $(PYTHON) -m http.server -d build/site"

test: linux install lint
	@# mypy takes one core for a minute, which most tests leave to it. What it finds comes last.
	@mkdir -p build; \
	$(VENV)/bin/mypy $(TYPED) >build/types.log 2>&1 & types=$$!; \
	$(VENV)/bin/mypy $(ON_MACOS) >build/types-on-macos.log 2>&1 & macos=$$!; \
	trap "kill $$types $$macos" INT TERM; \
	$(VENV)/bin/pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder; code=$$?; \
	wait $$types || code=1; wait $$macos || code=1; \
	cat build/types.log build/types-on-macos.log; exit $$code

# Another folder may join whose tests only decide: the plug-in lets nothing else happen in them.
PURE := tests/sim tests/unit/model tests/unit/replay tests/unit/rendezvous \
  tests/unit/controller/decisions tests/unit/controller/accounting tests/unit/checkpoints/protocol

test-pure: linux install
	$(VENV)/bin/pytest -q -n 2 --dist worksteal -p support.repo.pure $(PURE)

test-fast: linux install lint
	$(VENV)/bin/pytest -q -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder tests/unit \
	  --ignore tests/unit/aws  # which wait for an emulated account

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo

types: install
	$(VENV)/bin/mypy $(TYPED)

types-on-macos: install
	$(VENV)/bin/mypy $(ON_MACOS)

test-examples: linux install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples,packages]'
	$(VENV)/bin/pytest -m 'programs or not programs' tests/programs/test_examples.py \
	  tests/programs/test_packages.py tests/programs/test_trackers.py \
	  tests/programs/test_trainers.py tests/integration/test_export_for_transformers.py \
	  tests/integration/test_tutorials.py tests/integration/test_guides.py

test-programs: linux install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples]'
	$(VENV)/bin/pytest -m programs --durations=0 tests/programs/test_programs.py \
	  tests/programs/test_in_place_programs.py tests/integration/test_adapted_scripts.py

test-dashboard: linux install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(VENV)/bin/pytest -m browser tests/programs/test_dashboard.py tests/programs/test_pages_by_themselves.py \
	  tests/programs/test_page_of_each_state.py tests/programs/test_live_page.py

test-conformance: linux install
	$(VENV)/bin/pytest -n 2 -m 'programs or not programs' tests/programs/test_conformance.py

test-aws: linux install
	@PYTHONPATH=tests $(PYTHON) -m support.aws.first_run

test-aws-0 test-aws-1 test-aws-2 test-aws-3 test-aws-4: test-aws-%: linux install
	@PYTHONPATH=tests $(PYTHON) -m support.aws.first_run $*

soak: linux install
	$(PYTHON) tests/support/repo/soak.py $(SOAK) -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

bench: linux install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@found=; for file in benchmarks/*.py; do \
	  test -e "$$file" || continue; found=1; \
	  echo "== $$file"; $(PYTHON) "$$file" || exit 1; \
	done; \
	test -n "$$found" || echo "no benchmarks yet"

dist: install
	rm -rf dist
	$(PYTHON) -m build --outdir dist .

smoke: linux dist
	$(PYTHON) tests/support/repo/smoke.py dist --torch '$(TORCH)' \
	  $(if $(NEWEST),,--constraints constraints.txt)

lock: linux install
	$(PYTHON) -m pip freeze --exclude-editable --all \
	  | grep -E '^[A-Za-z0-9._-]+==' \
	  | grep -viE '^(torch|triton|nvidia[a-z0-9._-]*|cuda[a-z0-9._-]*|pip|setuptools|wheel|spotelastic)==' \
	  > constraints.txt
	$(PYTHON) tools/lock_nodes.py --no-hashes

# With the hashes that the package index tells: what a release ships.
lock-hashed: linux install
	$(PYTHON) tools/lock_nodes.py

# Known faults of what nodes install. The release and each night ask for it.
audit: install
	$(PYTHON) -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.9'
	$(VENV)/bin/pip-audit --disable-pip --no-deps -r infra/boot/packages.txt

weight:
	@python3 tools/weight.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
