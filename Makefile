# Everything runs in .venv, which the first target that needs it makes. PYTHON is used for that only.
PYTHON ?= python3
PY := .venv/bin/python
INSTALLED := .venv/.installed
# make demo SHORT=1: a run of seconds. SHORT=0 is the same as leaving it out.
DEMO_FLAGS := $(if $(filter-out 0,$(SHORT)),--short)

.PHONY: setup demo test test-cuda test-long bench lint clean

setup: $(INSTALLED)

# Runs again only when pyproject.toml changes: the install is editable.
$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "jitgrad: $(PYTHON) not found; name a Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "jitgrad needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	    "name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(PY) examples/digits.py $(DEMO_FLAGS)

test: $(INSTALLED)
	$(PY) -m pytest -q -n 2 -m "not long" --ignore=tests/parity
	$(MAKE) --no-print-directory test-cuda

# The GPU back end on Numba's CUDA simulator, which is a process's choice when it imports numba.
test-cuda: $(INSTALLED)
	JITGRAD_CUDA=sim $(PY) -m pytest -q -n 2 -m "not long" tests/cuda

test-long: $(INSTALLED)
	$(PY) -m pytest -q -n 2 -m long --ignore=tests/parity --ignore=tests/cuda
	JITGRAD_CUDA=sim $(PY) -m pytest -q -n 2 -m long tests/cuda/test_samples.py

# Beside the rivals that are installed. Hours with torch.compile: --skip torch.compile leaves it out.
bench: $(INSTALLED)
	$(PY) benchmarks/table.py --processes $(BENCH_FLAGS)

# mypy reads an installed copy, where compiler/ and runtime/ have their import names. build/ goes
# first: setuptools would put modules deleted since into the copy.
lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@rm -rf build
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --target build/installed .
	cd build/installed && ../../$(PY) -m mypy --config-file ../../pyproject.toml \
	  --cache-dir ../../.mypy_cache -p jitgrad

# Keeps .venv: remove it by hand to set up anew.
clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis examples/out
	find . -path ./.venv -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
