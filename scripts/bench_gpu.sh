#!/usr/bin/env bash
# The measurements on several GPUs, with NCCL beside them: scripts/bench_gpu.sh DIR OUT.
# DIR holds what `scripts/stage_gpu.sh DIR` has put there, OUT gets CSV files. Takes at most 9 minutes: each part has its own
# limit. NCCL is that of the machine's torch package. Where Tutti is installed for torch, it is measured through it, too.
# Tables and plot: python bench/cuda/tables.py OUT/chosen.csv
set -uo pipefail
dir=$(cd "$1" && pwd)
out=$2
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export TUTTI_PLUGIN_PATH=$dir
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nvidia-smi topo -m | head -12
nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
[ -f "$nccl" ] || { echo "no NCCL of torch's here: Tutti alone"; nccl=; }
part() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.csv" 2>"$out/$name.err"
  echo "$name: exit code $?, $(grep -cv '^#' "$out/$name.csv") lines; $(head -2 "$out/$name.err" | tr '\n' ' ')"
}
# A program of DIR, which finds its libraries there.
program() { LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} part "$@"; }
bench() { # NAME LIMIT_S ARGUMENTS...
  local name=$1 limit=$2
  shift 2
  program "$name" "$((limit + 10))" "$dir/cuda_bench" --budget-s "$limit" ${nccl:+--nccl "$nccl"} "$@"
}
sizes=1K,4K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M,256M,1G
bench chosen 100 --modes graph --algorithms auto,direct@32,direct@64,copy_engine --sizes "$sizes"
bench eager 30 --modes eager --sizes 1K,64K,1M
small=ll_one_shot@4,ll_one_shot@16,ll_one_shot@32,ll_two_shot@4,ll_two_shot@16,ll_two_shot@32
small=$small,ll128_one_shot@8,ll128_one_shot@16,ll128_one_shot@32,ll128_two_shot@8,ll128_two_shot@16,ll128_two_shot@32
bench small 60 --modes graph --algorithms "$small" --sizes 1K,4K,16K,32K,64K,128K,256K,512K,1M,2M,4M
large=
for algorithm in bulk_two_shot bulk_one_shot; do
  for shape in 16 24 32 64 64x512x32768 64x512x16384; do large=$large,$algorithm@$shape; done
done
bench large 90 --modes graph --algorithms "${large#,}" --sizes 1M,4M,16M,64M,256M
program serving 60 "$dir/cuda_serving_bench"
program sharing 70 "$dir/cuda_sharing_bench" --budget-s 50
if python3 -c 'import tutti' 2>/dev/null; then
  part torch 100 python3 -m torch.distributed.run --nproc-per-node="$(nvidia-smi -L | wc -l)" "$root/bench/cuda/torch_bench.py" \
    --budget-s 80
else
  echo "torch: python3 has no tutti here: left out"
fi
cat "$out/chosen.csv" "$out/serving.csv"
