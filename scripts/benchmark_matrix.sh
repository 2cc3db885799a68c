#!/usr/bin/env bash
# Sweeps examples/ddp_train.py over model sizes, batch sizes and backends, and draws a plot for each combination.
#
#   scripts/benchmark_matrix.sh [FOLDER]      results, default benchmark-out
#
#   RANKS=2  PARAMS="0.1 1 10"  BATCHES="32 128"  BACKENDS="tutti gloo"  EPOCHS=4     may be set in the environment
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-benchmark-out}
ranks=${RANKS:-2}
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
mkdir -p "$out"

for params in ${PARAMS:-0.1 1 10}; do
  for batch in ${BATCHES:-32 128}; do
    name="params${params}_batch${batch}"
    options=(--params "$params" --batch-size "$batch" --epochs "${EPOCHS:-4}")
    echo "== $params M parameters, $batch samples a rank"
    "$python" examples/ddp_train.py --baseline --ranks "$ranks" "${options[@]}" \
      --save-stats "$out/${name}_baseline.json" >"$out/${name}_baseline.log"
    files=(--baseline "$out/${name}_baseline.json")
    for backend in ${BACKENDS:-tutti gloo}; do
      "$python" -m torch.distributed.run --standalone "--nproc-per-node=$ranks" examples/ddp_train.py \
        --backend "$backend" "${options[@]}" --save-stats "$out/${name}_${backend}.json" >"$out/${name}_${backend}.log"
      files+=(--ddp "$backend=$out/${name}_${backend}.json")
    done
    "$python" examples/benchmark_throughput.py "${files[@]}" -o "$out/$name"
  done
done
echo "Results and plots: $out"
