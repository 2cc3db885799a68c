#!/usr/bin/env bash
# Installs the system packages that building Tutti needs, and says which. Does nothing when all are there.
#
#   scripts/setup_system.sh [PYTHON]     PYTHON: the interpreter that will be used (default: python3)
#
# As root it installs, with sudo it asks for it, with neither it prints the one command to run and ends with 1.
set -euo pipefail

python=${1:-${PYTHON:-python3}}

python_has() { "$python" -c "$1" >/dev/null 2>&1; }

# What the interpreter lacks, as names of Debian packages.
missing_python() {
  if ! command -v "$python" >/dev/null 2>&1; then
    echo python3 python3-venv python3-dev
    return
  fi
  python_has 'import venv, ensurepip' || echo python3-venv
  python_has 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' || echo python3-dev
}

install_debian() {
  local wanted=(g++ cmake ninja-build pkg-config libhwy-dev nlohmann-json3-dev libssl-dev libgtest-dev)
  local missing=() name
  for name in "${wanted[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  # shellcheck disable=SC2207  # package names hold no spaces
  missing+=($(missing_python))
  if [ ${#missing[@]} -eq 0 ]; then
    echo "System packages: all there."
    return
  fi
  local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  echo "System packages to install: ${missing[*]}"
  if [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive sh -c "$command"
  elif command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    echo "They are installed with sudo."
    sudo DEBIAN_FRONTEND=noninteractive sh -c "$command"
  else
    printf 'No right to install them. Run this as root, then make again:\n\n  %s\n\n' "$command" >&2
    exit 1
  fi
}

install_macos() {
  if ! xcode-select -p >/dev/null 2>&1; then
    printf 'The compiler is missing. Run this, then make again:\n\n  xcode-select --install\n\n' >&2
    exit 1
  fi
  local missing=() name
  for name in cmake ninja pkgconf highway nlohmann-json openssl@3 googletest python@3.12; do
    brew list --versions "$name" >/dev/null 2>&1 || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "System packages: all there."
    return
  fi
  echo "System packages to install: ${missing[*]}"
  brew install "${missing[@]}"
}

if [ "$(uname -s)" = Darwin ]; then
  install_macos
elif command -v dpkg-query >/dev/null 2>&1; then
  install_debian
else
  cat >&2 <<'EOF'
This system has no apt. Install these by hand, then touch build/.system and make again: a C++20 compiler (g++ 12 or
clang 16), CMake 3.25, Ninja, pkg-config, Google Highway, nlohmann-json 3.11, OpenSSL and GoogleTest with their headers,
Python 3.11 with its headers and venv.
EOF
  exit 1
fi
