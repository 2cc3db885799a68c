#!/usr/bin/env bash
# All tests that need a GPU; `make test-gpu` builds and runs them. On a machine without a compiler:
#   scripts/test_gpu.sh DIR     DIR holds the programs and libraries that `scripts/stage_gpu.sh DIR` has put there
# TUTTI_TEST_PYTHON names a Python that has tutti, with CUDA, and pytest: then the tests through PyTorch run as well.
# TUTTI_GPU_STEPS="cpp python sanitizers" chooses among them (all), TUTTI_GPU_SECONDS (600) is for all of them together:
# what it does not allow is left out, which counts as failed. With several GPUs the ranks are spread over them. Every wait
# of a kernel is bounded, every step has a limit.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$(cd "${1:-build/cuda}" && pwd)
out=${OUT:-$dir}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
find_program() { find "$dir" -name "$1" -type f -perm -u+x | head -1; }
export TUTTI_PLUGIN_PATH=${TUTTI_PLUGIN_PATH:-$(dirname "$(find "$dir" -name libtutti_cuda.so -not -path '*/delayed/*' | head -1)")}
export LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failures=()
total=${TUTTI_GPU_SECONDS:-600}
steps=" ${TUTTI_GPU_STEPS:-cpp python sanitizers} "
wants() { case $steps in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

step() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 at=$SECONDS
  shift 2
  local left=$((total - SECONDS))
  if [ "$left" -lt 5 ]; then
    echo "=== $name: left out, the time is up"
    failures+=("$name")
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
  local rc=$?
  printf '=== %s: exit code %s after %s s: %s\n' "$name" "$rc" "$((SECONDS - at))" \
    "$(grep -E 'PASSED|FAILED  |ERROR SUMMARY|tests ran|[0-9]+ (passed|failed|skipped)' "$out/$name.log" | tail -3 | tr '\n' ' ')"
  if [ "$rc" -ne 0 ]; then
    failures+=("$name")
    grep -E '^\[  FAILED|^FAILED|^E  |Failure|rank [0-9]+:|on rank|Which is|seed|========= ' "$out/$name.log" | head -40
    tail -5 "$out/$name.log"
  fi
}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
if wants cpp; then
  # Each suite in a process of its own: what ends or stops one hides nothing of the others.
  gpu_test=$(find_program tutti_gpu_test)
  suites=0
  while read -r suite; do
    name=${suite%.}
    suites=$((suites + 1))
    step "gpu_${name//\//_}" 180 "$gpu_test" --gtest_filter="$suite*"
  done < <("$gpu_test" --gtest_list_tests | grep -E '^[^ ]+\.( |$)' | cut -d' ' -f1)
  if [ "$suites" -eq 0 ]; then
    echo "=== no tests in ${gpu_test:-tutti_gpu_test, which is not in $dir}: build it (make test-gpu does)"
    failures+=(gpu)
  fi
  # The same stress with random delays at every step of the protocols: a plug-in of its own. Each test in a process of its
  # own, since streams that earlier ones have made move those of its ranks to hardware queues that they share.
  delayed=$(find "$dir" -path '*/delayed/libtutti_cuda.so' | head -1)
  if [ -n "$delayed" ]; then
    for tests in StressOnGpu.TenThousandCallsAcrossTheWrapOfTheSequence StressOnGpu.AcrossTheWrapOfTheFlag \
      Stress.EverythingMixed 'Messages.*'; do
      name=${tests#*.}
      TUTTI_PLUGIN_PATH=$(dirname "$delayed") step "delayed_${name//[*]/all}" 60 "$(find_program tutti_gpu_test)" \
        --gtest_filter="$tests"
    done
  else
    echo "=== delayed/libtutti_cuda.so is not here: the run with delays is left out (cmake --build ... --target tutti_cuda_delayed)"
  fi
  step processes 60 "$(find_program tutti_gpu_process_test)"
  TUTTI_TEST_STAND_IN=$(find "$dir" -name libnccl_stand_in.so | head -1) step nccl 150 "$(find_program tutti_gpu_nccl_test)"
  step one_kernel 30 "$(find_program tutti_gpu_one_kernel_test)"
fi
python=${TUTTI_TEST_PYTHON:-}
if wants python && [ -n "$python" ]; then
  # One file a process, each with ranks of its own; what needs more GPUs than there are skips.
  for file in cuda/test_cuda_messages cuda/test_cuda cuda/test_cuda_memory cuda/test_cuda_waiting dist/test_ops dist/test_serving; do
    step "python_${file#*/}" 150 "$python" -m pytest -q -p no:cacheprovider "$root/tests/python/$file.py"
  done
elif wants python; then
  echo "=== TUTTI_TEST_PYTHON is not set: the tests through PyTorch are left out"
fi
if wants sanitizers; then
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
      step "$tool" 90 compute-sanitizer --tool "$tool" --error-exitcode 3 "$(find_program tutti_gpu_one_kernel_test)"
    done
  else
    echo "=== compute-sanitizer is not here: its three runs are left out"
  fi
fi
[ ${#failures[@]} -eq 0 ] && echo "all GPU tests passed" || { echo "FAILED: ${failures[*]}"; exit 1; }
