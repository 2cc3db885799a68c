#!/usr/bin/env bash
# Makes the virtual environment .venv with all that building, running and testing Tutti needs.
#
#   PYTHON         the interpreter (default: the first of python3, python3.13, python3.12, python3.11 that is 3.11 or newer)
#   TORCH_VERSION  the torch to install when the interpreter has none (default: 2.13.0)
#   TORCH_INDEX    the package index to take it from (default: what pip is configured for)
#
# An interpreter that already has torch 2.11 or newer keeps it: the environment then sees the system's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${TORCH_VERSION:-2.13.0}
index=()
[ -n "${TORCH_INDEX:-}" ] && index=(--index-url "$TORCH_INDEX")

find_python() {
  local name
  for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  echo "Tutti needs Python 3.11 or newer; none of ${PYTHON:-python3 python3.13 python3.12 python3.11} is." >&2
  exit 1
}

has_torch() {
  "$1" -c 'import sys, torch; sys.exit(tuple(int(p) for p in torch.__version__.split(".")[:2]) < (2, 11))' >/dev/null 2>&1
}

python=$(find_python)
if ! [ -x .venv/bin/python ]; then
  if has_torch "$python"; then
    echo "Python: $python, with its own torch."
    "$python" -m venv --system-site-packages .venv
    if ! has_torch .venv/bin/python; then
      # The interpreter is a virtual environment itself: what that holds is no system package.
      packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
      echo "$packages" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_of_base.pth"
    fi
  else
    echo "Python: $python"
    "$python" -m venv .venv
  fi
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

if ! has_torch .venv/bin/python; then
  # Tutti's collectives are on the CPU: the CPU build, a tenth of the size, is taken wherever the index offers it.
  echo "Installing torch $version."
  pip install -q ${index[@]+"${index[@]}"} "torch==$version+cpu" 2>/dev/null || pip install ${index[@]+"${index[@]}"} "torch==$version"
fi
echo "Installing what building and testing need."
pip install -q "scikit-build-core>=0.10" "nanobind>=2.2" "numpy>=1.26" "typer>=0.12" "rich>=13" \
  "matplotlib>=3.8" "scikit-learn>=1.4" "pytest>=8" "pytest-xdist>=3.5" "pytest-timeout>=2.3" "hypothesis>=6.100" "mypy>=1.11" "ruff>=0.6"
