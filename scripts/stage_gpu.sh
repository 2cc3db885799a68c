#!/usr/bin/env bash
# Puts the GPU tests and benchmarks of build/cuda, and the libraries that they need beyond a plain system, into a folder
# that can be copied to a GPU machine: scripts/stage_gpu.sh DIR
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
mkdir -p "$dir"
for file in $(find build/cuda -name 'tutti_gpu*test' -type f) build/cuda/bench/cuda/cuda_bench \
  build/cuda/bench/cuda/cuda_{plans,sharing,serving}_bench build/cuda/libtutti_cuda.so \
  build/cuda/python/tutti/libtutti_nccl.so build/cuda/tests/cpp/nccl/libnccl_stand_in.so; do
  cp "$file" "$dir/"
done
mkdir -p "$dir/delayed"
[ -f build/cuda/delayed/libtutti_cuda.so ] && cp build/cuda/delayed/libtutti_cuda.so "$dir/delayed/"
cp -L build/cuda/libtutti.so.0 "$dir/libtutti.so.0"
ldd build/cuda/libtutti.so.0 | awk '/libhwy/ {print $3}' | xargs -I{} cp -L {} "$dir/"
cp scripts/test_gpu.sh scripts/bench_gpu.sh "$dir/"
for file in "$dir"/tutti_gpu* "$dir"/cuda_*bench $(find "$dir" -name '*.so*' -type f); do strip --strip-unneeded "$file"; done
du -sh "$dir"
