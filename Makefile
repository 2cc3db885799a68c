# make demo    trains a model over Tutti, over gloo and in one process, and compares them
# make test    runs all tests
# make bench   measures Tutti beside gloo (needs nothing more)
# make lint    checks types, style and formatting
# make clean   removes what was built, not the virtual environment
#
# The first run installs what is missing; later runs start at once. Settings: PYTHON, TORCH_VERSION, TORCH_INDEX.

.PHONY: demo test build bench lint clean
.DELETE_ON_ERROR:

PY := .venv/bin/python
# Python files too: an editable installation knows those that were there when it was made.
SOURCES := $(shell find include src cmake python tests/cpp CMakeLists.txt CMakePresets.json pyproject.toml -type f \
  -not -name '*.pyc' 2>/dev/null)
ACTIVATE := PATH="$(CURDIR)/.venv/bin:$$PATH"

demo: build
	$(ACTIVATE) $(PY) examples/demo.py $(ARGS)

test: build
	ctest --preset release -j 2
	$(ACTIVATE) $(PY) -m pytest tests/python $(ARGS)

bench: build
	$(ACTIVATE) .venv/bin/tutti bench $(ARGS)

lint: build
	$(PY) scripts/check_layers.py
	./scripts/check_format.sh
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

build: build/.installed

build/.system: scripts/setup_system.sh
	@PYTHON="$(PYTHON)" ./scripts/setup_system.sh
	@mkdir -p build && touch $@

.venv/.ready: scripts/setup_venv.sh | build/.system
	@PYTHON="$(PYTHON)" TORCH_VERSION="$(TORCH_VERSION)" TORCH_INDEX="$(TORCH_INDEX)" ./scripts/setup_venv.sh
	@touch $@

# CMake builds the library, its tests and the modules; pip then installs them, in editable form, from the same folder.
build/.installed: .venv/.ready $(SOURCES)
	cmake --preset release
	cmake --build --preset release
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . \
	  -Cbuild-dir=build/release -Ccmake.define.TUTTI_BUILD_TESTS=ON
	@touch $@

clean:
	rm -rf build/release build/.installed dist demo-out
