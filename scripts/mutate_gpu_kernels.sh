#!/usr/bin/env bash
# Breaks the order rules of the GPU kernels and ports one at a time and checks that cuda_protocols_test, cuda_stress_test
# or cuda_ports_test, with random delays, notices each: a test that no mutant fails protects nothing. Runs on the host;
# takes a compilation a mutant.
#   scripts/mutate_gpu_kernels.sh [BUILD]      BUILD: a build folder with libtutti.so (build/release)
set -uo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:-build/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
survivors=()

# mutant NAME FILE SED-EXPRESSION FILTER: the tests of FILTER, in the program made of `sources`, must fail once FILE is
# changed.
mutant() {
  local name=$1 file=$2 change=$3 filter=$4
  rm -rf "$work/tree" && mkdir "$work/tree"
  cp -r include src tests "$work/tree/"
  sed -i "$change" "$work/tree/$file"
  if [ "$name" != unchanged ] && cmp -s "$file" "$work/tree/$file"; then
    echo "$name: the change does not apply to $file"; survivors+=("$name"); return
  fi
  (cd "$work/tree" && g++ -std=c++20 -O1 -DTUTTI_RANDOM_DELAYS -Iinclude -Isrc -Itests/cpp \
    $sources -o test -L"$build" -ltutti -lgtest -lgtest_main -lpthread -Wl,-rpath,"$build") || exit 2
  # A mutant may hang, which is found out soon; what is right may be slow on a busy machine.
  local limit=60
  [ "$name" = unchanged ] && limit=300
  timeout "$limit" "$work/tree/test" --gtest_filter="$filter" --gtest_repeat=5 --gtest_fail_fast >"$work/log" 2>&1
  local rc=$?
  if [ "$name" = unchanged ]; then
    [ $rc -eq 0 ] && echo "unchanged: passes" || { echo "the unchanged code fails"; tail -5 "$work/log"; exit 1; }
  elif [ $rc -eq 0 ]; then
    echo "$name: SURVIVED"; survivors+=("$name")
  else
    echo "$name: found (exit code $rc)"
  fi
}

sources="tests/cpp/cuda/protocols_test.cc src/algorithm/cuda/choice.cc src/algorithm/cuda/plan_exchange.cc"
headers=src/algorithm/cuda/block_call.cuh ring=src/channel/cuda/scratch_layout.h
mutant unchanged $headers '' 'Order.*:Scrubbing.*'
mutant "one set of slots" $headers 's/return static_cast<int>(sequence_ % kParities);/return 0;/' 'Order.*'
mutant "headers not awaited" $headers 's/seen >> 32 == low \&\& (seen \& 0xffffffffu) != 0/true/' 'Order.*'
mutant "a ring of two" $ring 's/kBulkDepth = 4/kBulkDepth = 2/' 'Order.*'
mutant "messages without credits" src/algorithm/cuda/messages.cuh \
  's/team.is_first_control() \&\& piece_number >= kMessageDepth/false/' 'Order.*'
mutant "flags not cleared" $headers 's/device::store_relaxed(slot + i, device::Pair64{0, 0});/;/' 'Scrubbing.*'
mutant "results signalled before they are taken in" src/algorithm/cuda/bulk.cuh \
  's/if (reduced) ring.signal(1, k - 1);/;/; s/const bool reduced = k >= 1 \&\& k - 1 < pieces;/&\n    if (reduced) ring.signal(1, k - 1);/' 'Order.*'
mutant "signal before the data" src/algorithm/cuda/bulk.cuh \
  's/if (k < pieces) ring.signal(0, k);/;/; s/if (k < pieces \&\& spread) {/if (k < pieces) ring.signal(0, k);\n    if (k < pieces \&\& spread) {/' 'Order.*'

sources="tests/cpp/cuda/stress_test.cc src/algorithm/cuda/choice.cc src/algorithm/cuda/plan_exchange.cc"
mutant unchanged $headers '' 'Stress.*'
mutant "one set of slots, in the stress" $headers 's/return static_cast<int>(sequence_ % kParities);/return 0;/' 'Stress.*'
mutant "a ring of two, in the stress" $ring 's/kBulkDepth = 4/kBulkDepth = 2/' 'Stress.*'

sources="tests/cpp/cuda/ports_test.cc src/channel/cuda/port_proxy.cc"
port=include/tutti/device/port.cuh proxy=src/channel/cuda/port_proxy.cc
mutant unchanged $port '' '*'
mutant "no wait for room in the ring" $port 's/if (position >= load_acquire(known_tail) + size) {/if (false) {/' 'PortRing.*'
mutant "one parity for all laps" $port 's/return (position \/ size & 1) ^ 1;/return 1;/' 'PortRing.*'
mutant "committed before it is whole" $port \
  's/store_relaxed(&slot.bytes, request.bytes);/store_release(\&slot.commit, pack_commit(request, port_parity(position, size)));\n    &/' \
  'PortRing.*'
mutant "signalled before the bytes" $proxy 's/(request.kind & device::kPortPut) != 0/(request.kind \& device::kPortSignal) == 0 \&\& &/
  s/done_ = ring_.position();/if ((request.kind \& device::kPortSignal) != 0 \&\& request.bytes > 0) put(request, port.peer);\n    &/' 'Ports.*'
mutant "flushed before the copies" $proxy \
  's/if (!engine_->mark(port.peer)) return false;/device::store_release(\&shared_.flushed[port.peer], ring_.position() + 1);\n  &/' 'Ports.*'
mutant "done again while there is no mark" $proxy 's/done_ = ring_.position();/;/' 'Ports.*'
mutant "drained with copies under way" $proxy 's/engine_->finish();/;/' 'Ports.*'
[ ${#survivors[@]} -eq 0 ] && echo "every mutant was found" || { echo "survivors: ${survivors[*]}"; exit 1; }
