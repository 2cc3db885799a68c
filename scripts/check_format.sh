#!/usr/bin/env bash
# Fails if clang-format would change a C++ file. `--fix` formats them instead.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
[ "${#files[@]}" -gt 0 ] || { echo "no C++ files"; exit 1; }
if [ "${1-}" = --fix ]; then
  exec clang-format -i "${files[@]}"
fi
clang-format --dry-run -Werror "${files[@]}"
echo "${#files[@]} files are formatted"
