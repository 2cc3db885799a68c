#!/usr/bin/env bash
# Checks that Tutti, installed by pip with the headers of TorchComms, is a backend of TorchComms by that alone: in a virtual
# environment of its own, which has the torch of PYTHON's, and without any variable. The stand-in of the tests takes the
# place of torchcomms, and its headers that of a checkout.
#
#   scripts/check_torchcomms_install.sh PYTHON BUILD   BUILD: of the release preset, with its tests built
set -euo pipefail

python=$(realpath -s "$1") build=$(realpath "$2")
stand_in=$build/tests/cpp/torchcomms
headers=$PWD/tests/cpp/torchcomms/include
[ -e "$stand_in/libtorchcomms.so" ] || { echo "$stand_in has no stand-in for torchcomms: build the tests"; exit 1; }
folder=$(mktemp -d)
cp "$build/CMakeCache.txt" "$folder"
# The build folder has its settings again, and no backend for TorchComms.
restore() {
  cd "$build"
  cp "$folder/CMakeCache.txt" .
  rm -rf "$folder" python/tutti/_comms_tutti*.so python/tutti/torchcomms_version.txt
  cmake . >/dev/null
}
trap restore EXIT

"$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$folder" . -Cbuild-dir="$build" \
  -Cinstall.components=python -Ccmake.define.TUTTI_CUDA=OFF -Ccmake.define.TUTTI_TORCHCOMMS_INCLUDE="$headers"
"$python" -m venv "$folder/venv"
venv=$folder/venv/bin/python
"$venv" -m pip install -q --disable-pip-version-check --no-deps "$folder"/*.whl
# Lines of a file, not PYTHONPATH: after the environment's own packages, and without what they would start.
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
printf '%s\n' "$("$python" -c "$packages")" "$stand_in" >"$("$venv" -c "$packages")/others.pth"

cd "$folder"
env -i "$venv" -c '
import importlib.metadata, pathlib, sys
import torch, torch.distributed as dist
import torchcomms_stand_in as torchcomms

[point] = importlib.metadata.entry_points(group="torchcomms.backends", name="tutti")
library = pathlib.Path(point.load())
assert library.is_relative_to(sys.prefix), library

import os
os.environ.clear()  # what the entry point has said: the communicator asks it itself
os.environ.update(RANK="0", WORLD_SIZE="1")
comm = torchcomms.new_comm("tutti", torch.device("cpu"), "installed", store=dist.HashStore())
tensor = torch.ones(3)
comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=True).wait()
assert tensor.tolist() == [1, 1, 1] and comm.get_backend() == "tutti"
comm.finalize()
maps = pathlib.Path("/proc/self/maps").read_text()
assert str(library) in maps
print("TorchComms finds the installed backend:", library.name)'
