#!/usr/bin/env bash
# Breaks the order and index rules of the GPU kernels and ports one at a time and checks that one of the host's tests of
# them (cuda_protocols_test, cuda_failures_test, cuda_stress_test, cuda_serving_test, cuda_ports_test, cuda_choice_test,
# of programs' own kernels cuda_native_kernel_test, of plans cuda_plans_test, and of compiled ones
# cuda_emitted_text_test), with random delays, notices each: a test that no mutant fails protects nothing. Runs on the
# host; takes a compilation a mutant. Barriers within a block have mutants in `failures`, `own`, `lowering` and `plans`:
# elsewhere a block is one thread.
#   scripts/mutate_gpu_kernels.sh [BUILD [GROUP]]
#   scripts/mutate_gpu_kernels.sh -n     only says which mutants no longer apply, without a build
# BUILD: a build folder with libtutti.so (build/release). GROUP: protocols, failures, layout, stress, norm, codes, ports,
# own, lowering, plans or emission, else all. On a busy machine TUTTI_MUTANT_SECONDS is more than the 60 that a mutant
# has: one that has not ended by then (exit code 124) counts as found.
set -uo pipefail
cd "$(dirname "$0")/.."
dry='' tried=0
[ "${1:-}" = -n ] && dry=yes && shift
build=${1:-build/release}
[ -n "$dry" ] || build=$(cd "$build" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
only=${2:-}
seconds=${TUTTI_MUTANT_SECONDS:-60}
survivors=()

# group NAME SOURCES: the mutants that follow are looked for by the program made of SOURCES.
group() {
  group=$1 sources=$2
  [ "${only:-$1}" = "$1" ]
  skipped=$?
}

# mutant NAME FILE SED-EXPRESSION FILTER: the tests of FILTER, in the program made of `sources`, must fail once FILE is
# changed.
mutant() {
  local name=$1 file=$2 change=$3 filter=$4
  [ "$skipped" = 0 ] || return 0
  if [ -n "$dry" ]; then
    [ "$name" = unchanged ] && return
    tried=$((tried + 1))
    cmp -s "$file" <(sed "$change" "$file") || return 0
    echo "$group: $name: the change does not apply to $file"; survivors+=("$group: $name"); return
  fi
  rm -rf "$work/tree" && mkdir "$work/tree"
  cp -r include src tests "$work/tree/"
  sed -i "$change" "$work/tree/$file"
  if [ "$name" != unchanged ] && cmp -s "$file" "$work/tree/$file"; then
    echo "$group: $name: the change does not apply to $file"; survivors+=("$group: $name"); return
  fi
  (cd "$work/tree" && g++ -std=c++20 -O1 -DTUTTI_RANDOM_DELAYS -Iinclude -Isrc -Itests/cpp \
    $sources -o test -L"$build" -ltutti -lgtest -lgtest_main -lpthread -Wl,-rpath,"$build") 2>"$work/log" || {
    [ "$name" != unchanged ] && grep -q 'static assertion failed' "$work/log" && echo "$group: $name: found (it does not compile)" && return
    cat "$work/log"
    exit 2
  }
  # A mutant may hang, which is found out soon; what is right may be slow.
  local limit=$seconds
  [ "$name" = unchanged ] && limit=$((5 * seconds))
  timeout "$limit" "$work/tree/test" --gtest_filter="$filter" --gtest_repeat=5 --gtest_fail_fast >"$work/log" 2>&1
  local rc=$?
  if [ "$name" = unchanged ]; then
    [ $rc -eq 0 ] && echo "$group: unchanged: passes" || { echo "the unchanged code fails"; tail -5 "$work/log"; exit 1; }
  elif [ $rc -eq 0 ]; then
    echo "$group: $name: SURVIVED"; survivors+=("$group: $name")
  else
    echo "$group: $name: found (exit code $rc)"
  fi
}

plans="src/algorithm/cuda/choice.cc src/algorithm/cuda/launch_args.cc"
group protocols "tests/cpp/cuda/protocols_test.cc $plans"
headers=src/algorithm/cuda/block_call.cuh ring=src/channel/cuda/scratch_layout.h
ll=src/algorithm/cuda/ll.cuh ll128=src/algorithm/cuda/ll128.cuh bulk=src/algorithm/cuda/bulk.cuh
one_set='s/return static_cast<int>(sequence_ % kParities);/return 0;/'
no_headers='s/seen >> 32 == low \&\& (seen \& 0xffffffffu) != 0/true/'
early_results='s/if (reduced) ring.signal(1, k - 1);/;/; s/const bool reduced = k >= 1 \&\& k - 1 < pieces;/&\n    if (reduced) ring.signal(1, k - 1);/'
mutant unchanged $headers '' 'Order.*:Scrubbing.*'
mutant "one set of slots" $headers "$one_set" 'Order.*'
mutant "headers not awaited" $headers "$no_headers" 'Order.*'
mutant "a ring of two" $ring 's/kBulkDepth = 4/kBulkDepth = 2/' 'Order.*'
mutant "messages without credits" src/algorithm/cuda/messages.cuh \
  's/team.is_first_control() \&\& piece_number >= kMessageDepth/false/' 'Order.*'
mutant "batches cut by place in the list" src/algorithm/cuda/launch_args.cc \
  's/if (r.send != send || r.peer != peer) continue;/if (r.send != send || r.peer != peer) { ++position; continue; }/; s/first + kMessagesOfALane/first + kManyMessages/; s/first += kMessagesOfALane/first += kManyMessages/' \
  'Order.Batches*'
mutant "a block waits for the next one" $headers \
  's/= header(world_.scratch\[world_.rank\], peer);/= reinterpret_cast<const std::uint64_t*>(world_.scratch[world_.rank] + world_.layout.header((team_.block() + 1) % team_.blocks(), parity(), peer));/' \
  '*BlocksNeed*'
mutant "flags not cleared" $headers 's/device::store_relaxed(slot + i, device::Pair64{0, 0});/;/' 'Scrubbing.*'
mutant "results signalled before they are taken in" $bulk "$early_results" 'Order.*'
mutant "signal before the data" $bulk \
  's/if (k < pieces) ring.signal(0, k);/;/; s/if (k < pieces \&\& spread) {/if (k < pieces) ring.signal(0, k);\n    if (k < pieces \&\& spread) {/' 'Order.*'
own_result='*BroadcastIntoAnotherBuffer/'
mutant "a root without its own result, by packets" $ll 's/device::store_user(kept + at, v, left);/;/' "${own_result}ll_one*"
mutant "a root without its own result, by lines" $ll128 's/device::store_user(kept + at, v, bytes);/;/' "${own_result}ll128_one*"
mutant "a root without its own result, by pieces" $bulk 's/own_alike ? kept + r.begin : nullptr/nullptr/' "${own_result}bulk_one*"
mutant "a root without its own result that is not aligned" $bulk 's/kept != nullptr \&\& !(spread \&\& own_alike)/false/' "${own_result}bulk_one*"
mutant "a peer's part kept for the own" $ll 's/if (own_part != loaded) v = /if (loaded == nullptr) v = /' '*EveryCollectiveAtOdd*'

group failures "tests/cpp/cuda/failures_test.cc $plans"
mutant unchanged $headers '' 'Failures.*'
mutant "poison decided thread by thread" $headers 's/if (!team_.any(\(device::load_relaxed(world_.control.poison) != 0\)))/if (!(\1))/' 'Failures.AllThreads*'
mutant "sent behind a failure" $headers 's/const bool may_send = team_.all_of_warp(.*;/const bool may_send = true;/' 'Failures.Behind*'
mutant "a failed call told to have ended" $headers 's/if (may_send \&\& ticket_ != 0/if (ticket_ != 0/' 'Failures.AllThreads*'
mutant "announced behind a failure" $headers 's/if (may_send) device::store_relaxed(header/device::store_relaxed(header/' 'Failures.Behind*'
messages=src/algorithm/cuda/messages.cuh
mutant "poison before a message not told" $messages 's/device::fail_as_told(world.control, {lane.peer.*/;/' 'Failures.AMessage*'
mutant "overlap of messages not looked for" $messages 's/set_busy(lane.send != 0 ? &state.sending : &state.receiving) != 0/false/' 'Failures.MessageKernels*'
mutant "complete without its data" $headers 's/ \&\& !incomplete//' 'Failures.ACall*'
mutant "a message complete without its data" $messages 's/if (!ok) return;/if (!ok) break;/' 'Failures.AMessageWithout*'
mutant "the second leaves before the first is told" include/tutti/device/wait.cuh 's/if (load_relaxed(control.poison) == 0) store_relaxed(control.poison, first);/;/' 'Failures.WhoIsSecond*'

group layout tests/cpp/cuda/scratch_layout_test.cc
mutant unchanged $ring '' 'ScratchLayout.*'
mutant "lines where packets lie" $ring 's/ll128_ = take(.*;/ll128_ = ll_;/' 'ScratchLayout.*'

group stress "tests/cpp/cuda/stress_test.cc $plans"
mutant unchanged $headers '' 'Stress.*'
mutant "one set of slots" $headers "$one_set" 'Stress.*'
mutant "a ring of two" $ring 's/kBulkDepth = 4/kBulkDepth = 2/' 'Stress.*'

packets=include/tutti/device/packets.cuh codec=src/algorithm/cuda/tile_codec.cuh
group norm "tests/cpp/cuda/norm_test.cc src/algorithm/cuda/norm_launch.cc $plans"
norm=src/algorithm/cuda/add_rms_norm.cuh rows=src/algorithm/cuda/norm_rows.cuh
order='Norm.Calls*:Norm.Shares*' values='Norm.Every*:Norm.Large*'
mutant unchanged $norm '' "$order"
mutant "one set of slots" $headers "$one_set" "$order"
mutant "headers not awaited" $headers "$no_headers" "$order"
mutant "a number that is not advanced" $headers 's/&state.sequence, sequence_ + 1/\&state.sequence, sequence_/' "$order"
mutant "one flag for all calls" $packets 's/return 0x80000000u | .*/return 0x80000001u;/' "$order"
mutant "packets taken before they have come" $ll 's/!arrived(items\[j\])/false/' "$order"
mutant "lines taken before they have come" $ll128 's/if (device::all_lanes(all)) break;/break;/' "$order"
mutant "results not awaited" $bulk 's/if (!ring.wait(1, k - 2)) break;/;/' "$order"
mutant "pieces not awaited" $bulk '/^TUTTI_DEVICE void bulk_two_shot_data/,$s/if (!ring.wait(0, k - 1)) break;/;/' "$order"
mutant "results signalled before they are taken in" $bulk "$early_results" "$order"
mutant "signal before the data" $bulk \
  's/if (k < pieces) ring.signal(0, k);/;/; s/for (std::size_t k = 0; k < pieces + 2; ++k) {/&\n    if (k < pieces) ring.signal(0, k);/' "$order"
mutant "a ring of one" $ring 's/kBulkDepth = 4/kBulkDepth = 1/' "$order"
mutant "pieces not counted on" $bulk 's/.pieces = base_ + pieces;/.pieces = base_;/' "$order"
mutant "both shots in one phase" $ll \
  's/call.ll(p, 1, world.rank)/call.ll(p, 0, world.rank)/; s/(world, call, 1, i, mask/(world, call, 0, i, mask/' "$order"
mutant "a slot of another rank" $norm 's/call.ll(peer, 0, world.rank)/call.ll(peer, 0, peer)/' 'Norm.Every*'
mutant "rows behind the last" $rows 's/at.row < args.rows && //' "$values"
mutant "columns behind the last" $rows 's/ && at.column < args.row_bytes//' "$values"
mutant "rows of another block" $rows 's/static_cast<std::size_t>(team.block()) \* args.block_rows + index/index/' "$values"
mutant "no residual" $rows 's/add<Lanes>(sum, residuals\[i \* kHere + l\])/sum/' "$values"
mutant "no residual, rows read again" $rows 's/add<Lanes>(device::load_user(args.input + offset, 16), residual)/device::load_user(args.input + offset, 16)/' "$values"
mutant "the residual overwritten by the sums" src/algorithm/cuda/norm_launch.cc 's/call.residual_output != call.residual ? //; s/call.residual_output : call.workspace/call.residual_output/' "$values"
mutant "an inverse kept for the next row" $rows 's/if (first_of_row(task) == known) return;/if (known >= 0) return;/' "$values"
mutant "the sums of another row" $rows 's|return task / args.segments \* args.segments;|return 0 * task;|' "$values"

group codes "tests/cpp/cuda/quantized_test.cc src/algorithm/cuda/quantized_launch.cc $plans"
codes=src/algorithm/cuda/quantized.cuh
order='Quantized.Calls*:Quantized.Shares*' values='Quantized.TheError*:Quantized.Hostile*'
mutant unchanged $codes '' "$order"
mutant "one set of slots" $headers "$one_set" "$order"
mutant "headers not awaited" $headers "$no_headers" "$order"
mutant "one flag for all calls" $packets 's/return 0x80000000u | .*/return 0x80000001u;/' "$order"
mutant "packets taken before they have come" $ll 's/!arrived(items\[j\])/false/' "$order"
mutant "scales taken before they have come" $codes 's/ && item.scale >> 32 == flag//' "$order"
mutant "codes taken before they have come" $codes 's/device::ll_arrived(item.codes, flag) && //' "$order"
mutant "both shots in one phase" $codes \
  's/args, 1, first, sums/args, 0, first, sums/; s/call, args, 1, index/call, args, 0, index/' "$order"
mutant "sums sent in the first phase" $codes 's/args, 1, first, sums/args, 0, first, sums/' "$order"
mutant "a slot of another rank" $codes 's/call.ll(rank_after(world, k), phase, world.rank)/call.ll(rank_after(world, k), phase, rank_after(world, k))/' "$order"
mutant "signal before the data" $codes \
  's/if (k < pieces) ring.signal(0, k);/;/; s/if (k < pieces) send_piece/if (k < pieces) ring.signal(0, k);\n    &/' "$order"
mutant "results signalled before they are there" $codes \
  's/if (added) ring.signal(1, k - 1);/;/; s/const bool added = .*/&\n    if (added) ring.signal(1, k - 1);/' "$order"
mutant "pieces not awaited" $codes 's/if (!ring.wait(0, k - 1)) break;/;/' "$order"
mutant "results not awaited" $codes 's/if (!ring.wait(1, k - 2)) break;/;/' "$order"
mutant "a ring of one" $ring 's/kBulkDepth = 4/kBulkDepth = 1/' "$order"
mutant "pieces not counted on" $bulk 's/.pieces = base_ + pieces;/.pieces = base_;/' "$order"
mutant "results in the slot of the next piece" $codes 's/ring.slot(rank_after(world, d), 1, k,/ring.slot(rank_after(world, d), 1, k + 1,/' "$order"
mutant "tiles of the next chunk" $codes 's/of_chunk < args.chunk_tiles && //' "$values"
mutant "tiles of the next block" $codes 's/index < args.block_tiles && //' "$values"
mutant "the scale of another block" $codec 's|return lane / args.scaled_lanes % 4;|return 0 * lane;|' "$values"
mutant "own numbers that the peers do not have" $codes 's/return decode(args, mine\[l\].codes, mine\[l\].scale)/return values[l]/' "$values"

group ports "tests/cpp/cuda/ports_test.cc src/channel/cuda/port_proxy.cc"
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

group own "tests/cpp/cuda/native_kernel_test.cc"
own=src/algorithm/cuda/native_call.cuh
mutant unchanged $own '' '*'
mutant "begun before all ranks make the call" $own 's/const bool agreed = call.check_headers();/const bool agreed = true;/' '*'
mutant "signals of earlier calls" $own 's/number_ << kSignalBits | ++/++/' '*'
mutant "packets of earlier calls" $own 's/flag_ = static_cast.*/flag_ = 1;/' '*'
mutant "a flag that is zero" $own 's/number_ % 0xffffffffu) + 1/number_)/' '*'
mutant "a call that its first block ends" $own 's/if (device::fetch_add_relaxed(.*/if (device::fetch_add_relaxed(\&args_.state->ended) != 0) return;/' '*'
mutant "a signal before the block has written" $own '/void signal(int peer) {/,/}/s/sync();/;/' '*'
mutant "a barrier before the block has written" $own '/bool barrier() {/,/}/s/sync();/;/' '*'
mutant "a wait of one lane" $own '/bool wait(int peer) {/,/^  }/s/!team_.any_worker(failed_)/!failed_/' '*'
mutant "a barrier of one lane" $own '/bool barrier() {/,/^  }/s/!team_.any_worker(failed_)/!failed_/' '*'
mutant "packets taken before they have come" $own 's/return executor::packets_arrived(p, item, flag_);/return true;/' '*'
mutant "packets added before they have come" $own 's/if (executor::packets_arrived(p, item, flag_)) continue;/continue;/' '*'
mutant "a failure of its own that is not told" $own 's/if (!done) {/if (false) {/' '*'
mutant "an average not divided" $own 's/if (args_.averages == 0) return;/return;/' '*'

# once GROUP SOURCES: what no mutant of the group changes is compiled once.
once() {
  [ "${only:-$1}" = "$1" ] && [ -z "$dry" ] || return 0
  local file
  for file in "${@:2}"; do
    [ -f "$work/$(basename "$file" .cc).o" ] && continue
    g++ -std=c++20 -O1 -DTUTTI_RANDOM_DELAYS -DTUTTI_EXPLORED_PROGRAMS='"tests/cpp/plan/explorer/programs"' \
      -DTUTTI_REPLICATED_PROGRAMS='"tests/cpp/cuda/replicated"' -Iinclude -Isrc -Itests/cpp \
      -c "$file" -o "$work/$(basename "$file" .cc).o" || exit 2
  done
}
plan_sources="tests/cpp/cuda/plan_cases.cc tests/cpp/executor/executor_plans.cc tests/cpp/plan/plan_builder.cc"
plan_files="$work/plan_cases.o $work/executor_plans.o $work/plan_builder.o"

# The records of a plan.
lowering=src/executor/cuda/lowering.cc device=src/executor/cuda/device_plan.cc
records=src/executor/cuda/block_records.cc simplify=src/executor/cuda/simplify.cc uses=src/executor/cuda/packet_uses.cc
once lowering $plan_sources tests/cpp/cuda/plans_test.cc tests/cpp/cuda/mapped_plans_test.cc tests/cpp/cuda/simplified_plans_test.cc
group lowering "-O0 $work/plans_test.o $work/mapped_plans_test.o $work/simplified_plans_test.o $plan_files $lowering $device $records $simplify $uses"
mapped='*Mapped*' joins='*Join*:*ANop*:*GiveTheBits*' fits='*Refused*' simpler='Simplified*'
mutant unchanged $lowering '' "$mapped:$joins:$fits:$simpler"
mutant "mapped tensors touched before all have come" $lowering 's/if (variant_.mapped()) await_before_peers.*/;/' "$mapped"
mutant "the call awaited behind the first touch" $records 's/records.insert(first, /records.insert(first == records.end() ? first : first + 1, /' "*AwaitsTheCall*"
mutant "a block that reaches nowhere does not count" $records 's/  BlockRecord record;/  if (first == records.end()) return;\n&/' "*AwaitsTheCall*"
mutant "the tensor of another rank" $lowering 's/(kPeers + (side \* device::kMaxRanks + rank)/(kPeers + (side * device::kMaxRanks + 0 * rank)/' "$mapped"
mutant "the input of another rank for its output" $lowering 's/(kPeers + (side \* device::kMaxRanks + rank)/(kPeers + (0 * side + rank)/' "$mapped"
mutant "plain data read beside the packets that announce it" $lowering 's/if (code == DeviceCode::kFold \&\& operation.fence) push_awaits(record);/;/' '*FencesStay*'
mutant "a call in place that reads what it has written" $lowering 's/if (variant_.overlaps) shadowed_.*/;/' "$mapped:*GiveTheBits*"
mutant "an input that is written" $lowering 's/if (device_.plan().writes_input) shadowed_.*/;/' "$mapped:*GiveTheBits*"
mutant "shadows that are not full yet" $lowering 's/if (!loads.empty()) meet(device_.around());/;/' '*GiveTheBits*'
mutant "results taken before all blocks have ended" $lowering 's/if (!stores.empty()) meet(device_.around());/;/' '*GiveTheBits*'
mutant "averages that are sums" $lowering 's/variant_.averages ? DeviceCode::kAverage : DeviceCode::kCopy/DeviceCode::kCopy/' "$mapped"
mutant "lanes that never join" $records 's/op.joins = 1;/op.joins = 0;/' "$joins"
mutant "no join after a wait" $records 's/waited_ = waited_ || op.code == DeviceCode::kWait;/;/' "$joins"
mutant "no join before a signal" $records 's/ || (op.code == DeviceCode::kSignal && touched_)//' "$joins"
mutant "no join for a nop" $lowering 's/joined_ = joined_before(one) || joined_;/;/' "$joins"
mutant "mapped messages whole, with scratch" $device 's/return any_size_ && all_mapped/return all_mapped/' "$mapped"
mutant "reductions without a limit" $device 's/one.sources > device::kMaxRanks/false/' "$fits"
mutant "loops without a limit" $device 's/if (instructions > kMostInstructions) return false;/;/' "$fits"
mutant "packets gone that others read" $uses 's/if (reads > 1 || writes > 1) return false;/;/; s/return reads == 1 .*/return true;/' "$simpler"
mutant "packets gone that another writes" $uses 's/ || writes > 1//; s/ \&\& writes == 1//' "$simpler"
mutant "uses that begin before the packets not seen" $uses 's/(--at)->farthest > begin/(--at)->begin >= begin/' "$simpler"
mutant "long uses behind short ones not seen" $uses 's/std::max(farthest, use.end)/use.end/' "$simpler"
mutant "an input read that the output overlaps" $lowering 's/if (at.place != kFixed \&\& variant_.overlaps) continue;/;/' "$simpler"
mutant "an input read that the plan says it writes" $lowering 's/in_place() || device_.plan().writes_input || /in_place() || /' "$simpler"
mutant "an input read that a peer writes" $lowering 's/if (uses->input_written()) return around;/;/' "$simpler"
mutant "an input read of a plan in place" $lowering 's/if (in_place() || device_/if (device_/' "$simpler"
mutant "anything packed taken for constant" $simplify 's/op.fences != 0 || !is_constant(pack)) continue/op.fences != 0) continue/' "$simpler"
mutant "two plain sources of a fold" $simplify 's/if (reader.op.plain != kNoPlain) return false;/;/' "$simpler"
mutant "the plain source elsewhere in the order" $simplify 's/reader.op.plain = static_cast.*/reader.op.plain = static_cast<std::uint8_t>(reader.sources.size() - 1);/' "$simpler"
mutant "packets of another size" $simplify 's/ \&\& by.op.bytes == record.op.bytes//' "$simpler"
mutant "packets read before they are packed" $simplify 's/reader->second.record > at/reader->second.record != at/' "$simpler"
mutant "a sum whose result lies apart" $simplify 's/ || !same(fold.sources\[plain\], fold.targets\[0\])//' "$simpler"
mutant "an unpack of another range" $simplify 's/unpack.op.bytes != fold.op.bytes || !same(unpack.targets\[0\], fold.targets\[0\])/false/' "$simpler"
mutant "peers told of what is read later" $simplify 's/ || !ends_joined(at)))/))/' "$simpler"
mutant "packets sent for what is read later" $simplify 's/(fold.targets.size() > 1 || !ends_joined(at))/!ends_joined(at)/' "$simpler"
mutant "a nop forgotten" $simplify 's/(fold.nop \&\& !needs_nothing_before(from))/false/' "$simpler"
mutant "a nop forgotten with its record" $simplify 's/nop = nop || records_\[i\].nop;/nop = records_[i].nop;/' "$simpler"
mutant "copies whose lanes know too little" $simplify 's/reader.nop = reader.nop || takes_packets.*/;/' "$simpler"
mutant "fences forgotten" $simplify 's/pack.op.fences != 0 || //; s/by.op.fences == 0 \&\& //; s/ || fold.op.fences != 0//; s/ || unpack.op.fences != 0//' "$simpler"

# How they run.
interpreter=src/executor/cuda/interpreter.cuh around=src/algorithm/cuda/plan_call.cuh
once plans $plan_sources
group plans "tests/cpp/cuda/plans_test.cc tests/cpp/cuda/mapped_plans_test.cc $plan_files"
mutant unchanged $interpreter '' "$mapped:$joins:*Invocations*:*AMissingRank*:*AnotherCall*:*DoesNothing*:*FollowEachOther*:*AfterAFailure*"
mutant "mapped tensors touched before all have come" $around 's/const bool agreed = call.check_headers_and_go();/const bool agreed = true;/' "$mapped"
mutant "headers not awaited" $around 's/call.check_headers_and_go()/true/' '*AnotherCall*'
mutant "poison before a late block not told" $around 's/if (own.is_first_control()) device::fail_as_told.*/;/' '*AfterAFailure*'
mutant "one flag for all invocations" $interpreter 's/flag_ = static_cast.*/flag_ = 1;/' '*GiveTheBits*:*Invocations*'
mutant "a flag that is zero" $interpreter 's/invocation_ % 0xffffffffu) + 1/invocation_ + 1)/' '*Invocations*'
mutant "one half of scratch" $interpreter 's/half_ = invocation_ % args_.halves;/half_ = 0;/' '*FollowEachOther*'
mutant "lanes that do not join" $interpreter 's/if (op.joins != 0 \&\& join_failed()) return false;/;/' "$joins"
mutant "a failure that is not recorded" $interpreter 's/if (failed_) record_failure(control_, awaited_);/;/' '*DoesNothing*'
mutant "packets taken before they have come" $interpreter 's/return !waits || packets_arrived(p, item, flag_);/return true;/' '*GiveTheBits*'
mutant "several packets taken before they have come" $interpreter 's/return all || !waits;/return true;/' '*GiveTheBits*'
mutant "the plain source in another's place" $interpreter 's/if (s == apart) v\[s\] = plain;/if (s == 0) v[s] = plain;/' '*GiveTheBits*'
mutant "a plain source taken for packets" $interpreter 's/ || first + s == apart) continue;/) continue;/' '*GiveTheBits*'
mutant "packets added before they have come" $interpreter '/void fold_items/,/R::reduce/s/if (!await(poll)) return;/poll();/' '*GiveTheBits*'
mutant "an item too many in a group" $interpreter 's/at + (kInFlight - 1) \* stride + share.apart + 8 <= op.bytes/at + (kInFlight - 1) * stride <= op.bytes/' '*GiveTheBits*:*EndAnywhere*:*LongMessages*'
mutant "a pair too many in a group" $interpreter 's/at + (kInFlight - 1) \* stride + 16 <= op.bytes; at += kInFlight \* stride) {$/at + (kInFlight - 2) * stride <= op.bytes; at += kInFlight * stride) {/' '*EndAnywhere*:*GiveTheBits*'
words=src/executor/cuda/packet_words.cuh
mutant "the first piece of an item twice" $words 's/worker % warp \* 8, warp \* 8};/worker % warp * 8, 0};/' "$joins:*GiveTheBits*"
mutant "the end of a piece left out" $words 's/static_cast<int>((bytes - at + 3) \/ 4)/static_cast<int>((bytes - at) \/ 4)/' '*EndAnywhere*'
mutant "halves of elements" $words 's/warp = wide ? 1 : Team/warp = Team/' '*StayWhole*'
mutant "words that do not rise" $interpreter 's/device::store_relaxed(args_.slots + o.extra, wanted);/;/' '*GiveTheBits*'

# What stands in the source of a compiled plan.
once emission $plan_sources tests/cpp/cuda/emitted_text_test.cc
emit=src/executor/cuda/emit.cc rolled=src/executor/cuda/rolled.cc alike=src/executor/cuda/alike.cc
group emission "-O0 $work/emitted_text_test.o $plan_files $emit $rolled $alike"
mutant unchanged $emit '' '*'
mutant "a missing join" $emit 's/if (op.joins != 0) text += .*/;/' '*'
mutant "no join at the end" $emit 's/text += "    if (join_failed()) return false;\\n";/;/' '*'
mutant "no fence" $emit '0,/if (op.fences != 0) text += .*/s//;/' '*'
mutant "a fence on one side only" $emit '/statement(i) + ";\\n";/,/}/s/if (op.fences != 0) text += .*/;/' '*'
mutant "counts from naught" $emit 's/std::to_string(++done_\[slot\])/std::to_string(done_[slot]++)/' '*'
mutant "uses of a loop counted once" $emit 's/done_\[slot\] += uses \* (stretch.turns - 1);/;/' '*'
mutant "counts that stand still in a loop" $emit 's/turn_.uses.at(slot);/0;/' '*'
mutant "one use too few written back" $emit 's/std::to_string(used) + ");\\n";/std::to_string(used - 1) + ");\\n";/' '*'
mutant "counts not read" $emit 's/std::to_string(index) + ", " + std::to_string(many) + ", " +$/std::to_string(index) + ", 0, " +/' '*'
mutant "counts of different uses written as one" $emit 's/(!alike || end->second == at->second)/true/' '*'
mutant "a stride in the other direction" $emit 's/signed_step < 0 ? " - " : " + "/signed_step > 0 ? " - " : " + "/' '*'
mutant "the stride of the record before" $emit 's/records_.ops\[index + turn_.length\].first + i/records_.ops[index + turn_.length - 1].first + i/' '*'
mutant "no stride of places" $emit 's/return place(records_.operands\[records_.ops\[index\].first + i\], step(index, i));/return place(records_.operands[records_.ops[index].first + i], 0);/' '*'
mutant "a word of another rank" $emit 's/word_of_rank(" + varying(space - 1)/word_of_rank(" + varying(space)/' '*'
mutant "another rank to blame" $emit 's/varying(operand.peer) + ")"/varying(plan_.rank()) + ")"/' '*'
mutant "another writer of packets to blame" $emit 's/varying(records_.operands\[op.first + i\].peer)/varying(plan_.rank())/' '*'
mutant "one half of scratch" $emit 's/operand.extra == 0 ? ""/true ? ""/' '*'
mutant "the half of another size" $emit 's/std::uint64_t{operand.extra} \* 16/std::uint64_t{operand.extra} * 8/' '*'
mutant "the input for the output" $emit 's/index < kUserBlocks ? "input(" : "output("/"input("/' '*'
mutant "the block of another rank" $emit 's/varying(index % kUserBlocks)/varying((index + 1) % kUserBlocks)/' '*'
mutant "the input of a peer for its output" $emit 's/rank < device::kMaxRanks ? "peer_input(" : "peer_output("/"peer_input("/' '*'
mutant "the tensor of another rank" $emit 's/varying(rank % device::kMaxRanks)/varying((rank + 1) % device::kMaxRanks)/' '*'
mutant "a target less" $emit 's/"to" + places(op.sources, op.targets) + ")"/"to" + places(op.sources, op.targets - 1) + ")"/' '*'
mutant "a plain source taken for packets" $emit 's/i == op.plain ? operand(i) : packets(i)/packets(i)/' '*'
mutant "loads early behind a join" $emit 's/ops\[0\].joins != 0 || ops\[0\].fences != 0 || //' '*'
mutant "loads early what is not of the input" $emit 's/from <= kUserBlocks \&\&//' '*'
mutant "loads early for a loop" $emit 's/roll(ops, records_.operands)\[0\].turns == 1/true/' '*'
mutant "loads early more than an item of each lane" $emit 's/ops\[0\].bytes <= static_cast<std::uint64_t>(workers_) \* 16/true/' '*'
mutant "turns of uneven strides" $rolled 's/!evenly_spaced(i - length, i, i + length)/false/' '*'
mutant "a turn too many" $rolled 's/const std::uint64_t turns = 1 + repeated/const std::uint64_t turns = 2 + repeated/' '*'
for what in joins fences sources targets plain bytes; do
  mutant "turns of different $what" $rolled "s/x.$what != y.$what/false/" '*'
done
mutant "turns of different words or halves" $rolled 's/p.extra != q.extra/false/' '*'
mutant "turns of different ranks to blame" $rolled 's/ || p.peer != q.peer//' '*'
mutant "other text taken for the same" $alike '0,/parts.shape += text\[i\];/s//if (i % 2 == 0) parts.shape += text[i];/' '*'
mutant "the place of the block before" $emit 's/behind(" + std::to_string(alike.blocks\[0\])/behind(" + std::to_string(alike.blocks[0] + 1)/' '*'
mutant "the function of another kind of blocks" $emit 's/ok = block_" + std::to_string(alike.blocks\[0\])/ok = block_" + std::to_string(alike_[0].blocks[0])/' '*'
mutant "a block that no case names" $emit 's/for (const std::size_t block : alike.blocks) text/for (const std::size_t block : {alike.blocks[0]}) text/' '*'
mutant "a step of the second block alone" $alike 's/if (grown(i) != step \* behind(i)) return std::nullopt;/;/' '*'
mutant "rows without their holes" $alike 's/rows\[blocks_\[i\] - blocks_.front()\]/rows[i]/' '*'
mutant "entries of another unit" $alike 's/column\[i\] \/ unit(column)/column[i]/' '*'
mutant "columns shared by what differs" $alike 's/columns_.try_emplace(column, columns_.size())/columns_.try_emplace(Column(), columns_.size())/' '*'
mutant "comments that tell blocks apart" $alike 's/try_emplace(parts.back().statements,/try_emplace(parts.back().shape,/' '*'
mutant "operations of every block counted" $emit 's/all += statements\[alike.blocks\[0\]\]/all += statements[alike.blocks[0]] * alike.blocks.size()/' '*'
mutant "any number of operations in a kernel" $emit 's/^    check_statements(all);/    ;/' '*'
mutant "tables of any size" $alike 's/merged.entries() <= most_entries/true/' '*'
[ -n "$dry" ] && [ ${#survivors[@]} -eq 0 ] && echo "$tried of $tried mutants apply" && exit
[ ${#survivors[@]} -eq 0 ] && echo "every mutant was found" || { echo "survivors: ${survivors[*]}"; exit 1; }
