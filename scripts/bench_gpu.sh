#!/usr/bin/env bash
# The run on several GPUs: a correctness pass, then the sweep with NCCL beside it, as CSV: scripts/bench_gpu.sh DIR OUT.
# Takes at most 9 minutes: each part has its own limit. NCCL is that of the machine's torch package.
set -uo pipefail
dir=$(cd "$1" && pwd)
out=$2
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export TUTTI_PLUGIN_PATH=$dir LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nvidia-smi topo -m | head -12
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
[ -f "$nccl" ] || { echo "no NCCL of torch's here: Tutti alone"; nccl=; }
timeout -k 5 100 "$dir/tutti_gpu_test" --gtest_filter=-Collectives.PinnedHostMemory >"$out/correctness.log" 2>&1
echo "correctness: exit code $?: $(grep -E 'PASSED|FAILED  ' "$out/correctness.log" | tail -2 | tr '\n' ' ')"
grep -E 'on rank|FAILED' "$out/correctness.log" | head -20
timeout -k 5 40 "$dir/tutti_gpu_process_test" >"$out/processes.log" 2>&1
echo "processes: exit code $?"
bench() { # NAME LIMIT_S ARGUMENTS...
  local name=$1 limit=$2
  shift 2
  timeout -k 5 "$limit" "$dir/cuda_bench" "$@" ${nccl:+--nccl "$nccl"} >"$out/$name.csv" 2>"$out/$name.err"
  echo "$name: exit code $?, $(grep -c tutti "$out/$name.csv") rows; $(head -2 "$out/$name.err" | tr '\n' ' ')"
}
bench chosen 120 --modes graph,eager --budget-s 110 \
  --sizes 1K,4K,16K,32K,64K,128K,256K,512K,1M,2M,4M,16M,64M,256M
small=auto,ll_one_shot@1,ll_one_shot@4,ll_one_shot@8,ll_one_shot@16,ll_one_shot@32,ll_two_shot@4,ll_two_shot@16
small=$small,ll128_one_shot@8,ll128_one_shot@32,ll128_two_shot@8,ll128_two_shot@16,ll128_two_shot@32
bench small 110 --modes graph --budget-s 100 --algorithms "$small" --sizes 1K,4K,16K,64K,128K,256K,512K,1M,2M
large=direct@8,direct@16,direct@24,direct@32,bulk_two_shot@8,bulk_two_shot@16,bulk_two_shot@24,bulk_two_shot@32,bulk_one_shot@8,bulk_one_shot@16
large=$large,bulk_one_shot@24,bulk_one_shot@32,copy_engine
bench large 130 --modes graph --budget-s 120 --algorithms "$large" --sizes 512K,1M,4M,16M,64M,256M
timeout -k 5 40 "$dir/cuda_serving_bench" >"$out/serving.csv" 2>"$out/serving.err"
echo "serving: exit code $?, $(grep -c fused "$out/serving.csv") rows; $(head -2 "$out/serving.err" | tr '\n' ' ')"
cat "$out/chosen.csv" "$out/serving.csv"
