#!/usr/bin/env bash
# Checks that a wheel needs nothing of this machine but glibc, libstdc++ and torch: what its libraries ask for, and that it
# works in a virtual environment of its own, with the torch of PYTHON's environment. CUDA_WHEEL: is installed beside it.
#
#   scripts/check_wheel.sh PYTHON dist/tutti_comms-*.whl [CUDA_WHEEL]
set -euo pipefail

python=$1 wheel=$(realpath "$2") cuda_wheel=${3:+$(realpath "$3")}
for file in "$wheel" $cuda_wheel; do
  [[ $file == *-manylinux_*_x86_64.whl ]] || { echo "the name of $file says nothing of the glibc that it needs"; exit 1; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$wheel" $cuda_wheel
package=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tutti

allowed='^(libtutti\.so\.0|libhwy\.so\.1|libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|libstdc\+\+\.so\.6|ld-linux-.*|libdl\.so\.2|libpthread\.so\.0|libc10\.so|libtorch_cpu\.so|libtorch_python\.so)$'
for library in "$package"/*.so*; do
  readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | while read -r needed; do
    [[ $needed =~ $allowed ]] || { echo "$(basename "$library") needs $needed, which another machine may lack"; exit 1; }
  done
done
found=$(ldd "$package/libtutti.so.0")
[[ $found == *"$package/libhwy.so.1"* ]] || { printf 'libtutti.so.0 does not find the libhwy of the wheel:\n%s\n' "$found"; exit 1; }

# torch and what it needs from the other environment, after this one's own: tutti is the wheel's.
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
cd "$folder"
PYTHONPATH="$package/..:$site" "$folder/venv/bin/python" -c '
import sys, torch.distributed as dist, torch, tutti
assert tutti.__file__.startswith(sys.prefix), tutti.__file__
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
print("the wheel works:", tutti.group_info().size, "rank, torch", torch.__version__)'
[ -n "$cuda_wheel" ] || exit 0

# Without a GPU nothing runs of the CUDA part; that it can be loaded is seen.
"$folder/venv/bin/python" -m pip check --disable-pip-version-check | grep -i 'tutti-comms-cuda' && exit 1
PYTHONPATH="$package/..:$site" "$folder/venv/bin/python" -c '
import pathlib, tutti
from tutti.cli.doctor_gpu import report
assert pathlib.Path(tutti.__file__).with_name("libtutti_cuda.so").exists()
found = report(quick=True)
assert found.get("plugin_problem") == "", found
print("the CUDA wheel loads:", found["problem"] or "a GPU is here")'
