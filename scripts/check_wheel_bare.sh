#!/usr/bin/env bash
# Checks that a wheel runs on a machine that has Debian's Python, glibc and libstdc++ and nothing else: no Highway, no
# OpenSSL headers, no compiler. The machine is a root of its own, made by debootstrap; torch and what it needs come from
# PYTHON's environment, read only. Two ranks train there, and `tutti doctor` runs. Needs debootstrap, its mirror, and
# root that may mount: where one is missing, the check says that it was skipped.
#
#   scripts/check_wheel_bare.sh PYTHON dist/tutti_comms-*.whl [SUITE]   SUITE: of Debian (bookworm); its Python is PYTHON's
set -euo pipefail

python=$(realpath -s "$1") wheel=$(realpath "$2") suite=${3:-bookworm}
if ! unshare --mount --propagation private mount -t tmpfs none /mnt 2>/dev/null; then
  echo "SKIPPED: there is no bare machine, this one gives no right to mount"
  exit 0
fi
bare=$(mktemp -d)
trap 'rm -rf --one-file-system "$bare"' EXIT
chmod 755 "$bare"
if ! debootstrap --variant=minbase --include=python3,libstdc++6 "$suite" "$bare" >"$bare.log" 2>&1; then
  tail -5 "$bare.log"
  rm -f "$bare.log"
  echo "SKIPPED: there is no root for a bare machine, debootstrap could not make it"
  exit 0
fi
rm -f "$bare.log"
version='import sys; print("%d.%d" % sys.version_info[:2])'
if [ "$(chroot "$bare" python3 -c "$version")" != "$("$python" -c "$version")" ]; then
  echo "SKIPPED: $suite has another Python than the wheel is for"
  exit 0
fi
"$python" -m pip install -q --disable-pip-version-check --no-deps --target "$bare/opt/wheel" "$wheel"
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
mkdir -p "$bare/opt/site"
echo "127.0.0.1 localhost $(hostname)" >"$bare/etc/hosts"
cat >"$bare/opt/train.py" <<'EOF'
import torch
import torch.distributed as dist
import tutti

dist.init_process_group("tutti")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
model(torch.full((4, 64), float(dist.get_rank() + 1))).sum().backward()
gradient = model.module.weight.grad
assert torch.equal(gradient, torch.full_like(gradient, 6.0)), gradient  # 4 rows of 1 and 4 of 2, averaged
assert tutti.__file__.startswith("/opt/wheel/"), tutti.__file__
if dist.get_rank() == 0:
    print("the wheel trains on a bare machine:", dist.get_world_size(), "ranks, torch", torch.__version__)
dist.destroy_process_group()
EOF
# A mount namespace of its own: what is mounted goes with it.
unshare --mount --propagation private bash -euc '
  mount --bind "$2" "$1/opt/site" && mount -o remount,bind,ro "$1/opt/site"
  mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev"
  ! chroot "$1" sh -c "ldconfig -p | grep -E libhwy" || { echo "libhwy is there: no bare machine"; exit 1; }
  inside() { chroot "$1" env -i PATH=/usr/bin:/bin HOME=/root PYTHONPATH=/opt/wheel:/opt/site "${@:2}"; }
  inside "$1" python3 -m torch.distributed.run --nproc-per-node 2 /opt/train.py
  inside "$1" python3 -m tutti doctor
' bare "$bare" "$site"
