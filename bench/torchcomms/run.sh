#!/usr/bin/env bash
# Measures and draws: bench/torchcomms/run.sh OUT [RANKS] [arguments of torchcomms_bench.py]
#
# OUT gets bench.json, report.md and the figures. Needs torchcomms, Tutti with its backend for it, and matplotlib.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: run.sh OUT [RANKS] [arguments]}
ranks=${2:-2}
shift $(($# > 1 ? 2 : 1))
mkdir -p "$out"
python=${PYTHON:-python3}
"$python" -m torch.distributed.run --standalone --nproc-per-node="$ranks" "$here/torchcomms_bench.py" \
  --json "$out/bench.json" "$@"
"$python" "$here/report.py" "$out/bench.json" --out "$out"
