#!/usr/bin/env bash
# Breaks the core's protocols one line at a time (announcements, pipelines, messages, wakers, arena, queue of calls,
# handshakes, Unix sockets, the verifier of plans, forks, what ranks compare) and checks that the C++ tests notice: a
# rule that no test fails without is not protected.
#   scripts/mutate_core.sh [-n] [-t] [-j WORKERS] [-k WORDS] [-w FOLDER]
# WORKERS (2): mutants at once, each in a copy of its own of one build, with as many compilers as there are cores a
# worker. WORDS: only mutants whose file or name contains them. FOLDER: where the build is kept for the next run; else a
# temporary one. -n: only says whether each mutant still applies, in a second and without a build. -t: instead, the
# mutants of memory orders, in builds with the thread sanitizer (x86-64 itself keeps most of what they lose). Needs
# cmake, ninja and g++ (and in CMAKE_PREFIX_PATH what CMake finds nowhere else), no network, git, Python or torch.
# With 16 workers on 32 cores a run takes minutes.
# Every build and test has a hard limit of time; a mutant that hangs is found. Prints a line for each mutant, with the
# test that found it, and a table at the end; exits with 1 if a mutant survives, no longer applies or was not tried.
# Tests that fail without a mutant are named and find nothing. Survivors may be equivalent to the code: each wants a
# look, and then a test or a note in docs/tested.md.
set -uo pipefail
cd "$(dirname "$0")/.."
workers=2 only='' work='' dry='' kind=rules
while getopts ntj:k:w: option; do
  case $option in
    n) dry=yes ;; t) kind=orders ;; j) workers=$OPTARG ;; k) only=$OPTARG ;; w) work=$OPTARG ;;
    *) exit 2 ;;
  esac
done
build_limit=1800  # seconds; for the first one, of everything
test_limit=90     # unchanged, the slowest tests take 15 on two cores
sources='CMakeLists.txt cmake examples/c include src tests/c tests/cpp'
compilers=$(( ($(nproc) + workers - 1) / workers ))

names=() files=() changes=() targets=() filters=()
# mutant TARGET FILTER FILE NAME SED-EXPRESSION: the tests of FILTER in TARGET must fail once FILE is changed.
mutant() { [ "$kind$dry" = orders ] || add "$@"; }
# order: the same under the thread sanitizer.
order() { [ "$kind$dry" = rules ] || add "$@"; }
add() {
  case "$3 $4" in *"$only"*) ;; *) return ;; esac
  targets+=("$1") filters+=("$2") files+=("$3") names+=("$4") changes+=("$5")
}

host=src/channel/host_channel.cc life=src/channel/host_life.cc
all_host='*Collectives*:*PointToPoint*:Failure*'
mutant host_channel_test '*' $host 'no barrier before sleeping' 's/  if (light_barrier_) heavy_barrier();/  ;/'
mutant host_channel_test '*' $host 'no sleeping flag' '/^void HostChannel::announce_sleep/,/^}/s/flag.store(.*/;/'
mutant host_channel_test '*' $host 'a publisher wakes nobody' '/^void HostChannel::wake_sleepers/,/^}/s/futex_wake_all(.*\|wake(peer, lane, how);/;/'
mutant host_channel_test '*' $host 'a doorbell wakes nobody' '/^void HostChannel::ring_doorbell/,/^}/s/futex_wake_all(.*\|wake(peer, lane, how);/;/'
mutant host_channel_test '*' $host 'publish does not look for sleepers' '/^void HostChannel::store_and_wake/,/^}/s/wake_sleepers(.*/;/'
mutant host_channel_test 'RescuedWait*' $host 'a lost wake-up is not counted' 's/return now.over \&\& .*/return false;/'
mutant host_channel_test 'RescuedWait*' $host 'who is just publishing has lost a wake-up' 's/return now.over \&\& /return /'
mutant host_channel_test 'RescuedWait*' $host 'what nobody has published is a lost wake-up' 's/now.sum != before \&\& //'
mutant communicator_test "$all_host" $host 'announce before the record' '/^void HostChannel::announce()/,/^}/s/me.records\[sequence_ % kWindow\] = record;/;/'
mutant communicator_test "$all_host" $host 'announcements are not compared' 's/if (static_cast<std::uint32_t>(value >> 32) != mine.hash)/if (false)/'
mutant communicator_test "$all_host" $host 'the lag is not kept' 's/if (verified_by_all_ + kLag < sequence_)/if (false)/'
mutant communicator_test "$all_host" $host 'a lag of the window' 's/const std::uint64_t needed = sequence_ - kLag;/const std::uint64_t needed = sequence_ - kWindow;/'
mutant communicator_test "$all_host" $host 'only the last announcement is verified' 's/const std::uint64_t next = verified + 1;/const std::uint64_t next = sequence;/'
mutant communicator_test "$all_host" $host 'a step is awaited one too few' 's/return word.load(std::memory_order_acquire) >= value;/return word.load(std::memory_order_acquire) + 1 >= value;/'
mutant communicator_test "$all_host" $life 'a peer that failed is not noticed' 's/if (state == RankState::kFailed) return {Status::kPeerFailed, r};/;/'
mutant communicator_test "$all_host" $life 'a peer that left is not noticed' 's/if (state == RankState::kLeft \&\& r == peer) return {Status::kPeerLeft, r};/;/'
mutant communicator_test "$all_host" $life 'an abort does not end waits' 's/  if (aborted()) return {Status::kAborted, index_};/  ;/'
mutant communicator_test "$all_host:*Corrupt*" $host 'an arena offset is not bounded' 's/bytes > arena->bytes() - offset) return nullptr;/false) return nullptr;/'
mutant communicator_test "$all_host" $host 'records are not copied' '/^Outcome HostChannel::await_records/,/^}/s/rank == index_ ? mine_\[sequence_ % kWindow\] : .*/mine_[sequence_ % kWindow];/'
mutant device_communicator_test '*Dropped*' src/communicator/group_bootstrap.cc 'those who wait keep a dropped group' 's/held.use_count() <= count_ + 1/false/'
mutant device_communicator_test '*WhatConnects*' src/communicator/device_communicator.cc 'a first message makes its own direction alone' 's/^    pairs_.try_emplace({peer, !send}.*/    ;/'

mutant staged_reduce_test '*' src/algorithm/shm/staged_reduce.cc 'a part is taken before it is reduced' '/static Outcome run_divided/,/^  }/s/base + v + 1/base + v/'
mutant staged_reduce_test '*' src/algorithm/shm/staged_reduce.cc 'the root reads its own part where nobody has put it' 's/takers.only != c.rank);/false);/'
mutant pulled_test '*' src/algorithm/shm/pulled.cc 'blocks are read before it is known where they lie' 's/host.await_step_all(StepLane::kFilled, told, c.deadline)/kOkOutcome/'
pipe=src/algorithm/shm/exchange.h
mutant exchange_test '*' $pipe 'a place is filled before it is drained' 's/if (t >= ring.depth()) {/if (false) {/'
mutant exchange_test '*' $pipe 'a place is filled one round early' 's/base + before + 1); !outcome/base + before); !outcome/'
mutant communicator_test '*Collectives*' $pipe 'a round is drained before it is filled' 's/StepLane::kFilled, base + u + 1); !outcome/StepLane::kFilled, base + u); !outcome/'
mutant communicator_test '*Collectives*' $pipe 'a round is published before it is filled' 's/      fill(t, ring.own(t));/      host.publish(StepLane::kFilled, base + t + 1);\n&/'
mutant communicator_test '*Collectives*' $pipe 'steps do not go on' 's/host.advance_steps(rounds);/;/'
mutant communicator_test '*Collectives*' $pipe 'the last byte of a window is left out' 's/size(std::min(bytes - begin, chunk))/size(std::min(bytes - begin, chunk) - (bytes > begin ? 1 : 0))/'

engine=src/channel/message_engine.cc links=src/channel/message_links.cc outbox=src/channel/outbox.cc
mutant message_test '*' $engine 'sizes of messages are not compared' 's/if (op.bytes != bytes) return false;/;/'
mutant message_test '*' $engine 'types of messages are not compared' 's/return op.record.dtype == record.dtype;/return true;/'
mutant message_test '*' $engine 'the newest receive takes a message' 's/if (found == nullptr || op->order < found->order) found = op;/if (found == nullptr || op->order > found->order) found = op;/'
mutant message_test '*' $engine 'the newest message is taken' 's/if (found == nullptr || a->order < found->order) found = a;/if (found == nullptr || a->order > found->order) found = a;/'
mutant message_test '*' $engine 'a refusal is not told' 's/at(peer).out.refuse(id, op.record, record);/;/'
mutant message_test '*' $engine 'eager bytes of an unexpected message are not given back' '/^void MessageEngine::claim/,/^}/s/if (eager) p.taken += eager_cost(arrival.bytes);/;/'
mutant message_test '*' $engine 'a cancelled receive still gets its bytes' '/^void MessageEngine::detach_receive/,/^}/s/if (in.op == &op) {/if (false) {/'
mutant message_test '*' $engine 'a lost peer keeps its receives' 's/if (op->peer == peer || (!op->is_send \&\& op->source == peer)) finish(\*op, outcome);/;/'
mutant message_test '*' $engine 'no news for sleepers' '/^void MessageEngine::finish/,/^}/s/news_ = true;/;/'
mutant message_test '*' $links 'a reader does not ring the writer' '/^bool MessageEngine::receive/,/^}/s/waker_->ring(peer);/;/'
mutant message_test '*' $links 'a writer does not ring the reader' 's/if (moved \&\& p.rings) waker_->ring(peer);/;/'
mutant message_test '*' $links 'eager bytes are not given back' 's/if (eager) p.taken += eager_cost(h.bytes);/;/'
mutant message_test '*' $links 'a fragment may be longer than its receive' 's/if (h.bytes > op->bytes - op->moved || .*/;/'
mutant message_test '*' $links 'a farewell blames nobody else' 's/outcome = {status, blamed};/;/'
mutant message_test '*' $outbox 'the eager window has no end' 's/ \&\& eager_sent_ - eager_taken_ + cost <= kEagerWindow//'
mutant message_test '*' $outbox 'a cancelled send is read on' '/^void Outbox::retract/,/^}/s/if (op_ == &op) own_rest_of_body();/;/'
mutant message_test '*' $outbox 'a withdrawal is not told' 's/if (header_.kind == FrameKind::kAnnounce \&\& tell) control(FrameKind::kWithdraw, op.id);/;/'
mutant message_test '*' $outbox 'a credit beyond what was sent counts' 's/if (credit - eager_taken_ > eager_sent_ - eager_taken_) return false;/;/'
mutant message_test '*' $outbox 'a grant before the announcement is gone is lost' 's/if (writes_start_of(id) \&\& header_.kind == FrameKind::kAnnounce) {/if (false) {/'
mutant message_test '*' $outbox 'an answer before the first frame is gone finds no message' 's/if (writes_start_of(id)) return op_;/;/'
mutant communicator_test 'TwoLevelsFault*' $links 'what a rank that failed has said is not passed on' 's/said.reason.empty() ? farewell.cause : /said.reason.empty() ? Outcome{} : /'
mutant communicator_test 'TwoLevelsFault*' src/algorithm/net/net_call.cc 'nobody looks for messages of another call' 's/return stranger >= 0 ? .*/return kOkOutcome;/'
mutant communicator_test 'TwoLevelsFault*' src/communicator/collective.cc 'lists of sizes are not compared between hosts' 's/if (call.uneven \&\& context_.host == nullptr) record.hash = .*/;/'

# What the count of rescued waits finds, and what it must not count.
mutant host_channel_test 'RescuedWait*' src/channel/rescued_waits.cc 'tests are not told of a lost wake-up' 's/{ rescued_waits.fetch_add(.*; }/{}/'
group=src/channel/group_waker.cc port=src/channel/message_port.cc
mutant host_channel_test 'RescuedWait*' $links 'a ring is lost: the count' 's/if (moved \&\& p.rings) waker_->ring(peer);/;/'
mutant host_channel_test 'RescuedWait*' $links 'a ring for room is lost: the count' '/^bool MessageEngine::receive/,/^}/s/waker_->ring(peer);/;/'
mutant host_channel_test 'RescuedWait*' $port 'a nudge is lost: the count' 's/^    if (nudge) waker->nudge();/    ;/'
mutant communicator_test '*TwoLevels*:*BetweenHosts*' $host 'a bell is lost: the count' 's/if (ringer_ != nullptr \&\& name != 0) ringer_->ring(name);/;/'
mutant slept_signals_process_test '*' src/algorithm/plan/plan_runner.cc 'who waits for messages hears no signal of its host' 's/if (!world_.ranks.one_host()) world_.host->ring_doorbell(index, WaitLane::kMessage);/;/'
mutant host_channel_test 'RescuedWait*' $port 'what a thread of the rank has done is not looked at' 's/return told || (op_ != nullptr \&\& op_->done()) || /return told || /'
mutant host_channel_test 'RescuedWait*' $port 'who is about to nudge has lost a wake-up' 's/if (state_.owing.load(std::memory_order_acquire) != 0) return false;/;/'
mutant host_channel_test 'RescuedWait*' $links 'what a writer waits for is not looked at' 's/ || (p.rings \&\& !p.out.idle() \&\& p.link->is_drained());/;/'
mutant message_test 'MessageWake*' $links 'what is yet to be told of a link is a lost wake-up' 's/(p.stands \&\& p.link->has_input())/p.link->has_input()/'
mutant host_channel_test 'RescuedWait*:GroupWaker*' $group 'who is about to ring has lost a wake-up' 's/ \&\& (host_ == nullptr || host_->nobody_publishes())//'
mutant host_channel_test 'RescuedWait*:GroupWaker*' $group 'a wake-up after the sleep is a lost one' 's/ \&\& !rung();/;/'
mutant host_channel_test 'GroupWaker*' $group 'what the system may miss is a lost wake-up' 's/if (nap(std::min(timeout_ns, kFirstNs)) || timeout_ns <= kFirstNs || .*/if (false) return false;/'

waker=src/channel/poll_waker.cc
mutant message_test '*' $waker 'a nudge before the sleep is lost' 's/  if (wakes_ != seen) return false;/  ;/'
mutant message_test '*' $waker 'a nudge writes no event' '/^void PollWaker::nudge/,/^}/s/::write(event_.get(), &one, sizeof one)/0/'
mutant message_test '*' $waker 'the poller tells nobody' '/^bool PollWaker::sleep/,/^}/s/  ++wakes_;/  ;/'
mutant message_test '*' src/channel/message_port.cc 'sleepers are not counted' 's/      ++sleepers;  .*/      ;/'

arena=src/device/cpu/arena.cc
mutant arena_test '*' $arena 'a quarantined block is given out again' 's/if (block->quarantined || (private_ \&\& block->offset < inherited_end_))/if (private_ \&\& block->offset < inherited_end_)/'
mutant arena_test '*' $arena 'memory a child may read is given out again' 's/} else if (!private_ \&\& block->born != children.forks() .*/} else if (false) {/'
mutant arena_test '*' $arena 'any pointer can be freed' 's/ || block->state != BlockState::kUsed || block->offset != offset(data))/)/'
mutant arena_test '*' $arena 'an offset past the block counts as mapped' '/^std::uint64_t MemfdArena::find_offset/,/^}/s/if (bytes > block->offset + block->bytes - begin) return kNotMapped;/;/'
mutant arena_test '*' $arena 'memory is never given back' 's/if (units_.cached_bytes() > cached_limit_) trim();/;/'

calls=src/communicator/collective.cc
mutant no_memory_calls_test '*Queued*' $calls 'a queued call takes its memory when it runs' '/^WorkPtr CommunicatorImpl::push/,/^}/s/  reserve(call, chosen.get());/  ;/'
mutant no_memory_calls_test '*' $calls 'a call takes its memory in its course' 's/    context_.memory.reserve(bytes);/    ;/'
mutant no_memory_calls_test '*OnOneHost*' src/algorithm/call_memory.h 'what was taken late is not kept' 's/      reserve(bytes_ + std::exchange(late_bytes_, 0));/      ;/'
queue=src/communicator/call_queue.cc
mutant communicator_test 'CallQueue.EveryWaiter*' $queue 'waiters share an exception' 's/own_copy(error_)/error_/'
mutant communicator_test "$all_host" $queue 'the newest call runs first' 's/next = std::move(state.calls.front());/next = std::move(state.calls.back());/; s/state.calls.pop_front();/state.calls.pop_back();/'
mutant communicator_test "$all_host" $queue 'a finished call tells nobody' '/^void WorkState::settle/,/^}/s/changed_.notify_all();/;/'
mutant communicator_test "$all_host:CallQueue*" $queue 'calls after the end are taken' 's/if (state_->stopping) throw_error.*/;/'
mutant communicator_test 'Callbacks*:Handlers*' $queue 'a callback waits for what its thread is to run' 's/if (!done() \&\& RunningHere::is_in(RunningHere::innermost(), runner_)) {/if (false) {/'
mutant communicator_test 'Callbacks*' src/communicator/running_here.h 'a callback makes a collective within one' 's/while (at != nullptr \&\& at->group_ != group)/while (at != nullptr)/'
mutant communicator_test "$all_host" $queue 'callbacks are not run' 's/for (const auto& callback : callbacks) callback(\*this);/;/'

shake=src/transport/tcp/handshake.cc dialer=src/transport/tcp/endpoint.cc stream=src/transport/tcp/stream.cc
mutant tcp_test 'Tcp*' $shake 'a listener takes any proof' 's/given \&\& equal(given->digest, proof("tutti tcp dial", offer_))/given/'
mutant tcp_test 'Tcp*' $shake 'a dialer takes any proof' 's/if (!reply || !equal(reply->proof, proof("tutti tcp listen")))/if (!reply)/'
mutant tcp_test 'Tcp*' $shake 'both proofs have one label' 's/"tutti tcp dial"/"tutti tcp listen"/g'
mutant tcp_test 'Tcp*' $shake 'a proof is not bound to the group' 's/self_->communicator, *view(numbers)/"", view(numbers)/'
mutant tcp_test 'Tcp*' $shake 'a rank out of range is taken' 's/hello->from >= static_cast<std::uint32_t>(self_->size) || //'
mutant tcp_test 'Tcp*' $dialer 'both sides keep their own connection' 's/return proven \&\& member.options.rank < peer ? Verdict::kYield : Verdict::kAccept;/return Verdict::kAccept;/'
mutant tcp_endpoint_test 'TcpEndpoint*' $dialer 'a dial that has heard nothing bars the peer' 's/p.dial->has_proved_itself();/p.dial->state() != Handshake::State::kConnecting;/'
mutant tcp_test 'Tcp*' $dialer 'a lost connection is made again' 's/if (p.state == Member::Peer::State::kUp || p.state == Member::Peer::State::kDown) return Verdict::kRefuse;/;/'
mutant tcp_test 'Tcp*' $dialer 'who hangs up at our proof is forgotten' 's/member.at(peer).left_at_our_proof = true;/;/'
mutant tcp_test 'Tcp*' $shake 'an offer to share is not proven' 's/view(offer.stream)/""/'
mutant tcp_test 'Tcp*' $shake 'a share needs no seal' 's/verdict == Verdict::kShare ? State::kSealing : State::kDone/State::kDone/'
mutant tcp_test 'Tcp*' $shake 'whatever listens there has another secret' 's/if (messages_ == 0) look_at_speaker();/;/'
mutant tcp_test 'TcpHandshake*' $shake 'a dialer of another version hears nothing' 's/if (!dialer_ \&\& speaker == .*/;/'
mutant shared_streams_process_test '*' src/transport/tcp/endpoint_dial.cc 'no stream is shared' 's/offer.stream = stream->far();/;/'
mutant tcp_test 'TcpStream*' $stream 'what another has read wakes nobody' 's/if (target_ != \&part || into.empty())/if (into.empty())/'
mutant tcp_test 'TcpStream*' $stream 'a writer that takes in does not wake its own group' 's/ || into.empty()) target_->wake();/) target_->wake();/'
mutant tcp_test 'TcpStream*' $stream 'a writer takes in what its reader has a place for' 's/if (frame_left_ != 0 \&\& ours \&\& into.empty()) return;/;/'
mutant shared_streams_process_test '*' $stream 'what another has read is dropped' 's/target_->inbox.insert(.*/;/'
mutant tcp_test 'TcpTransport*' $stream 'a reader gives no credit' 's/if (owes_credit) {/if (false) {/'
mutant tcp_test 'TcpTransport*' $stream 'the rest of a frame is lost' 's/^    keep_rest(piece.subspan(skip));/    ;/'
mutant tcp_test 'TcpStream*' $stream 'an inbox that is never empty grows' 's/} else if (part.inbox_begin > kMostDirect .*/} else if (false) {/'
mutant tcp_test 'TcpStream*' $stream 'an empty inbox keeps its memory' 's/give_back(part.inbox);/;/'
mutant tcp_test 'TcpStream*' $stream 'a peer may send beyond the window' 's/if (part->announced - part->taken > part->window) return std::nullopt;/;/'
mutant tcp_test 'TcpStream*' $stream 'a frame finds the part that has left' '/^void Stream::remove/,/^}/s/if (target_ == &part) target_ = nullptr;/;/'
mutant tcp_test 'TcpStream*' $stream 'a part keeps what had come in another stream' '/^void Part::reset/,/^}/s/inbox.clear();/;/'
mutant tcp_test 'TcpStream*' $stream 'a part keeps its count of another stream' '/^void Part::reset/,/^}/s/announced = taken/taken/'
mutant tcp_test 'TcpStream*' $stream 'a part keeps the end of another stream' '/^void Part::reset/,/^}/s/ended.store(.*/;/'
mutant tcp_test 'TcpStream*' $stream 'a part keeps the credit of another stream' '/^void Part::reset/,/^}/s/limit.store(.*/;/'
mutant tcp_test 'TcpStream*' $stream 'the death of a stream wakes its reader only' '/^void Stream::die/,/^}/s/part->wake();/;/'
mutant tcp_test 'TcpStream*' $stream 'a stream that makes no sense is not ended' '/^void Stream::die/,/^}/s/::shutdown(.*/;/'
mutant tcp_test 'TcpStream*' $stream 'a socket is closed with its stream' 's/  if (end.over()) return;/  return;/'
mutant tcp_test 'TcpStream*' src/net/tcp_socket.cc 'a socket is closed before all has arrived' 's/ || unacknowledged == 0) return true;/ || true) return true;/'
mutant tcp_test 'TcpStream*' src/transport/tcp/stream.h 'a dead stream has a rest' 's/ \&\& writes_on(); }/; }/'
dial=src/transport/tcp/endpoint_dial.cc
mutant tcp_endpoint_test '*' src/transport/tcp/stream.h 'the thread polls a dead stream' 's/ \&\& writes_on(); }/; }/'
mutant tcp_endpoint_test '*' $dial 'a dial waits for all others' 's/return under_way.contains(there) \&\&/return !under_way.empty() \&\&/'
mutant tcp_endpoint_test '*' $dial 'who has queued behind a silent host tries it anew' 's/const bool queued = .*/const bool queued = false;/'
mutant tcp_endpoint_test '*' $dial 'a socket lingers for ever' 's/ || outlived.until_ms <= now_ms; });/; });/'
mutant tcp_endpoint_test '*' $dialer 'a process lingers for ever' 's/anything_lingers() \&\& now_in_ms() < until_ms;/anything_lingers();/'
mutant tcp_endpoint_test '*' $dialer 'who leaves without a seal is not lost' '/^void Endpoint::on_stranger_broke/,/^}/s/member.at(peer).link.fail();/;/'
mutant tcp_endpoint_test '*' $dialer 'who has agreed to share is a stranger' 's/return stranger.handshake.state() != Handshake::State::kSealing;/return true;/'
ends=src/transport/tcp/endpoint_end.cc
mutant tcp_test 'Tcp*:*LastWords*' $ends 'a group that has ended is forgotten at once' 's/departed_.splice(.*/;/'
mutant tcp_test 'Tcp*:*LastWords*' $ends 'ended groups are remembered for ever' 's/if (departed_.size() > kMostDeparted) .*/;/'
mutant tcp_test 'Tcp*:*LastWords*' $ends 'who is just dialing hears nothing of the end' 's/ \&\& !on_probation(s); });/; });/'
mutant tcp_test 'Tcp*:*LastWords*' $ends 'a dial ends with its group' 's/^      part(\*peer, words);/      drop_dial(*peer);/'
mutant tcp_test 'Tcp*:*LastWords*' $ends 'a process that ends hears nobody out' '/^void Endpoint::see_partings_off/,/^}/s/!partings_.empty();/false;/'
mutant message_test '*' $links 'last words are not read' 's/lose(peer, farewell ? heard(peer, \*farewell) : .*/lose(peer, {status, peer});/'

told=src/bootstrap/exchange.cc
mutant bootstrap_test 'Exchange*' $told 'who awaits another is told nothing' 's/const bool looks = .*/const bool looks = false;/'
mutant bootstrap_test 'Exchange*' $told 'what is known to all is one rank'"'"'s reason' 's/put_failure(store, id, rank, \*known, true);/put_failure(store, id, rank, *known, false);/'
server=src/bootstrap/tcp_store_server.cc
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server ends before all have come' 's/if (!values_.contains(key) \&\& !lost_.contains(key)) return false;/;/'
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server awaits the dead' 's/ \&\& !lost_.contains(key)//'
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server ends while a client is there' '/^bool TcpStoreServer::all_left/,/^}/s/if (std::ranges::any_of.*/;/'
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server has no time to end at' 's/if (now_ns() >= leaving_->until_ns) return true;/;/'
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server forgets that it has more time' 's/std::max(until_ns, told_leaving_ ? told_leaving_->until_ns : 0)/until_ns/'
mutant bootstrap_test 'TcpStoreEnd*' $server 'a server that has ended keeps its descriptors' 's/^  bell_.reset();/  ;/'
mutant bootstrap_test 'Exchange*' $told 'a rank is told of itself' 's/if (teller == rank) return;.*/;/'
mutant forming_failures_test '*' src/bootstrap/host_group.cc 'who awaits another host is told nothing' '/ wait_for(const HostContext/,/^}/s/throw_if_told(.*/;/'
mutant forming_failures_test '*' src/bootstrap/host_leader_poll.cc 'a leader is told nothing' 's/^  throw_if_told(.*/  ;/'
mutant forming_failures_test '*' src/bootstrap/host_joiner.cc 'who awaits its leader is told nothing' 's/^      throw_if_told(.*/      ;/'
mutant forming_failures_test '*' src/communicator/formed_group.cc 'who awaits its host is told nothing' '/^Outcome join_host/,/^}/s/throw_if_told(.*/;/'
mutant forming_failures_test '*' src/communicator/formed_group.cc 'a rank leaves its host without a word' 's/if (formed.host != nullptr) formed.host->report(.*/;/'
mutant bootstrap_test 'LeadersMemory.*' src/base/mapping.cc 'memory that may shrink is mapped' 's/return never_shrinks \&\& /return /'
mutant bootstrap_test 'LeadersMemory.*' src/base/mapping.cc 'memory smaller than it says is mapped' 's/file_bytes(fd) >= bytes;/file_bytes(fd) > 0;/'
mutant communicator_test 'HostLimit.*' src/communicator/formed_group.cc 'any number of ranks shares memory' 's/request.most_ranks = .*/;/'
mutant communicator_test 'Strangers.*' src/bootstrap/host_group.cc 'a secret that was given enters the store' 's/if (request.rank == 0 \&\& request.secret.empty()) own.secret = .*/own.secret = request.secret.empty() ? random_secret() : request.secret;/'
mutant bootstrap_test 'TcpStore.*' src/bootstrap/tcp_store_requests.cc 'who is refused for its secret is not told of' 's/^    tell_of_refused(client);/    ;/'
mutant communicator_test 'Networks.*' src/communicator/formed_group.cc 'the last network that both have is taken' 's/ || of_peer != nullptr / /'
mutant group_id_test 'SplitGroup*' src/communicator/split.cc 'keys of a split decide nothing' 's/std::pair(wish(r).key, r)/r/'
mutant left_places_test '*Shrink*' src/communicator/group_id.cc 'the place that survivors met at stays' '/^std::shared_ptr<Communicator> shrink_group/,/^}/s/offer.end();/;/'
mutant group_id_test 'SplitGroup*' src/communicator/split.cc 'a negative color makes a part' 's/own.color >= 0 \&\& //'
mutant left_places_test '*' src/communicator/group_id.cc 'the place of a group that has failed stays' 's/~Offer() {.*/~Offer() = default;/'
mutant left_places_test '*Late*' src/communicator/group_id.cc 'a place ends with the first rank that fails' 's/~Offer() {.*/~Offer() { take_offer(place_); }/'
mutant left_places_test '*Shrink*' src/communicator/group_id.cc 'survivors that have agreed await others' 's/if (!survivors.empty()) offer.all_are_there();/;/'
mutant left_places_test '*IdWhoseRanks*' src/communicator/group_id.cc 'who cannot join has not been there' '/^void tell_at/,/^}/s/store->set(arrival_key(rank), "");/;/'
mutant left_places_test '*IdWhoseRanks*' src/communicator/group_id.cc 'who joins has not been there' '/^class Arrived/,/^};/s/store_->set(arrival_key(rank), "");/;/'
mutant group_id_test 'GroupId.ATime*' src/communicator/group_id.cc 'a senseless time is told to nobody' 's/tell_at(id, rank, kMaker, error);/;/'
mutant group_id_test 'SplitGroup*' src/communicator/group_store.cc 'why a member gave up is not said' 's/throw_lost_rank(cause, context,/throw_lost_rank(cause, {},/'
mutant no_memory_forming_test '*FirstCallTells' src/communicator/failing.cc 'want of memory is not asked for first' 's/want = want_behind(outcome); /want; /'
mutant no_memory_forming_test '*Anothers' src/communicator/group_store.cc 'want of memory for what is read for others is not said' 's/^  note_want();/  ;/'
far=far_deaths_process_test
mutant $far '*SharedMemory' src/communicator/lifecycle.cc 'a wait on one host does not look at others' 's/return port->lost();/return kOkOutcome;/'
mutant $far '*ForAMessage' src/channel/group_waker.cc 'a rank alone on its host does not look at others' 's/^    return look_elsewhere_();/    return kOkOutcome;/'
mutant $far '*EndAPlan' src/algorithm/plan/plan_runner.cc 'a plan asks its own rank why it failed' 's/ || outcome.peer == context.hosts->rank//'
mutant $far '*LeaveAreNone' src/communicator/lifecycle.cc 'a process that exits does not say so' 's/ say_left();/ ;/'
mutant $far '*AtOnceHasAborted' src/channel/message_links.cc 'who has aborted does not see its words off' 's/ transport->finish_close();/ ;/'
mutant $far '*NoCall' src/communicator/lifecycle.cc 'a place on the host is taken for a rank' 's/outcome.peer = host_ranks().*/;/'
mutant descriptors_process_test '*GivenUp*' src/communicator/failing.cc 'who is given up does not look at its limit' 's/ context.want_here = want_here();/ ;/'
mutant $far '*LeaveAreNone' $engine 'who has left is lost' 's/status == Status::kPeerLeft || (/(/'
mutant $far '*InAPart*' src/communicator/failing.cc 'a death in a part is not told to the whole' 's/ tell_kin(outcome.peer, .*/ ;/'
mutant $far '*AfterALeave*' src/communicator/failing.cc 'a death is told to groups that the rank had left' 's/if (there.status == Status::kPeerLeft) continue;/;/'
mutant communicator_test 'TwoLevelsFault.AMissing*' $engine "others' deadlines end a wait before its own" 's/failure_heard_ns_ < kOwnFindingNs/failure_heard_ns_ < 0/'
shrink=src/communicator/shrink.cc
mutant forming_deaths_test '*AtAnyMomentOfAShrink' $life 'a death on the host is not seen' '/^bool HostChannel::died/,/^}/s/if (peer == index_) return false;/return false;/'
mutant forming_deaths_test '*WhoseStoreSeesNobodyDie' $shrink 'a shrink forms in the time of the group' 's/ left(std::max<std::int64_t>(1, rest.*/ left(options.timeout);/'
mutant forming_steps_test '*OfAShrink' $shrink 'who signs in leaves no will' 's/if (witness_ != nullptr) witness_->leave_will({sign_in_key.*/;/'
mutant forming_steps_test '*OfAShrink' $shrink 'nobody looks for an open will' 's/if (sign_of(signs) != Sign::kDied)/if (sign_of(signs) != Sign::kAbsent)/'

socket=src/net/local_socket.cc protocol=src/bootstrap/host_protocol.cc poll=src/bootstrap/host_leader_poll.cc
local='*Host*:AnotherUser*'
mutant bootstrap_test "$local" $socket 'any user may connect' 's/ \&\& credentials.uid == ::geteuid();/;/'
mutant bootstrap_test "$local" $socket 'descriptors of half a message are kept' 's/  if ((header.msg_flags \& MSG_CTRUNC) == 0) return SocketStatus::kOk;/  return SocketStatus::kOk;/'
mutant host_last_message_test 'HostLastMessage.*' $socket 'an end is believed at once' 's/const bool ended = .*/const bool ended = false;/'
mutant host_last_message_test 'HostLastMessage.*' $socket 'an empty message is waited behind' 's/if (ended) return SocketStatus::kEnd;.*/;/'
mutant bootstrap_test "$local" $protocol 'a message of the host needs no proof' 's/if (!equal(digest, proof(name, body))) return std::nullopt;/;/'
mutant bootstrap_test "$local" $protocol 'a proof is not bound to the name of its message' 's/ name,$/ "",/'
mutant bootstrap_test "$local" $poll 'anyone may pass on a Hello' 's/if (entry->pid_ns == pid_namespace() \&\& entry->pid != peer.pid) return;/;/'
mutant bootstrap_test "$local" $poll 'silent strangers are never dropped' 's/if (strangers_.size() >= most) strangers_.pop_front();/;/'

# What the verifier of plans must not take for proven. Some faults only mutants of plans have.
cells=src/plan/verifier/memory.cc runs=src/plan/verifier/execution.cc lengths=src/plan/verifier/lengths.cc
mutant plan_test 'Verifier.*' $cells 'a read may come before its data' '/^void Memory::read(/,/^}/s/if (!seen) {/if (false) {/'
mutant plan_test 'Verifier.*' $cells 'a write over one in flight is no race' '/^void Memory::write(/,/^}/s/if (seen(writer)) continue;/continue;/'
mutant plan_test 'Verifier.*' $cells 'what is being read may be overwritten' '/^void Memory::write(/,/^}/s/if (happened_before(reader, actor, lane)) continue;/continue;/'
mutant plan_test 'Verifier.Lanes*' $cells 'lanes need no join' 's/return access.lane == lane;/return true;/'
mutant plan_test 'Mutation.Relaxed*' $runs 'a relaxed signal publishes' 's/if (acquires \&\& token.releases) {/if (acquires) {/'
mutant plan_test 'Verifier.*' $runs 'transfers of two thread blocks come in order' '/^Execution::Post Execution::posts_before/,/^}/s/if (precedes) {/if (true) {/'
mutant plan_test 'Verifier.TheSame*' $cells 'the same value comes after nothing' 's/if (follows || comes_after(past, actor, lane)) continue;/continue;/'
mutant plan_test 'Verifier.TheSame*' $cells 'who wrote a value before is forgotten' 's/for (const Access\& writer : state.writers) budget_.append(state.past, .*/;/'
mutant plan_test 'Verifier.TheSame*' $cells 'who read a value before is forgotten' 's/for (const Access\& reader : state.readers) budget_.append(state.past, .*/;/'
mutant plan_test 'Verifier.EveryUse*' $cells 'scratch of the call before needs no order' 's/if (!half.before.empty() \&\& !half.settled.contains(actor.key)) {/if (false) {/'
mutant plan_test 'Verifier.Repairs*' $cells 'a store into scratch lands at once' 's/ || !landed(half, other, actor)//'
mutant plan_test 'Verifier.WhatAPacket*' $cells 'what a lane knows its thread block knows' 's/lasting.clock = actor.lasting;/;/'
mutant plan_test 'Verifier.Rejects*' $runs 'calls are looked at in any order' 's/ \&\& (!oldest_call_only || block.invocation == oldest)//'
mutant plan_test 'Mutants.*' src/plan/verifier/verifier.cc 'both halves of scratch are used once' 's/plan.double_scratch ? 3 : 2/2/'
mutant plan_test 'Explorer.KnowsLoops*' $lengths 'loops count alike' 's/(credit + 2) \* uneven_rate(plan)/credit + 2/'
mutant plan_test 'VerifierLoops.Credits*' $lengths 'releases before a loop are no credit' 's/if (semaphore \&\& !in_loop .*/;/'
mutant plan_test 'Verifier.Limits*' $lengths 'a loop uses its scratch once' 's/if (ring > 0) cut.ring_units = .*/;/'
mutant plan_test 'Mutants.*' $lengths 'parts of a chunk begin anywhere' 's/parts = std::lcm(parts, .*/parts = 1;/'
mutant plan_test 'Verifier.*' $runs 'a semaphore begins with nothing' 's/counter.unraised = counter.initial;/;/'
mutant plan_test 'BoundsDeathTest.CountsWhat*' $runs 'a semaphore may end otherwise than it began' 's/if (counter.count() == counter.initial) continue;/continue;/'
mutant plan_test 'Verifier.ReportsTokens*' $runs 'signals may be left over' 's/if (counters\[i\].tokens.empty()) continue;/continue;/'
inputs=src/plan/verifier/input_writes.cc results=src/plan/verifier/expected.cc
mutant plan_test 'Verifier.ProtectsTheInput*' $inputs 'an input may be written' 's/if (plan.in_place || plan.writes_input) return std::nullopt;/return std::nullopt;/'
mutant plan_test 'Verifier.ProtectsTheInput*' $inputs 'a loop may write an input' 's/if (writes_an_input(plan, site.rank, block, inner)) return .*/;/'
mutant plan_test 'Verifier.ProtectsTheInput*' $inputs 'a multicast may write an input' 's/return plan.ranks\[rank\].switch_channels\[channel\].buffer == BufferKind::kInput;/return false;/'
mutant plan_test 'Bounds.*' src/plan/verifier/budget.cc 'a proof takes any number of steps' 's/if (steps_left_ < 0) refuse_steps();/;/'
mutant plan_test 'BoundsDeathTest.Memory*' src/plan/verifier/budget.h 'a proof takes any memory' 's/if (held_ > limits_.bytes) refuse_bytes();/;/'
mutant plan_test 'Verifier.Rejects*' src/plan/verifier/values.cc 'an input may count twice' 's/if ((node.members\[i\] \& part.members\[i\]) != 0 .*/;/'
mutant plan_test 'Verifier.Rejects*' $results 'an input may be missing' 's/^\( *\)is.count == ranks;/\1true;/'
mutant plan_test 'Mutation.AnotherOrder*' $results 'the reduction of any chunk will do' '/^std::string Expected::reduction_fault/,/^}/s/is.place == want.chunk \* layout_.cut().units + unit/true/'
mutant plan_test 'Verifier.AMessage*' $results 'two ranks may get the input of one' 's/if (taker_\[is.rank\] != rank) {/if (false) {/'
mutant plan_test 'Verifier.AMessage*' $results 'one rank may get the inputs of two' 's/if (source_\[rank\] != is.rank) {/if (false) {/'
mutant plan_test 'Verifier.RefusesAMix*' $results 'one call may reduce in two ways' 's/if (right \&\& is.reduced \&\& is.reduce != \*reduction_) {/if (false) {/'
mutant plan_test 'Verifier.TellsWhether*' $results 'all ranks get the same bits' 's/same_bits_ = same_bits_ \&\& first == value;/;/'
mutant plan_test 'Verifier.SaysWhat*' src/plan/verifier/verifier.cc 'a collective that nobody knows is proven' 's/^    require_known(plan);/    ;/'
mutant plan_test 'Verifier.Rejects*' $runs 'a chunk may pass through a shorter one' 's/if (memory_.shortest(cell) > position) {/if (false) {/'

# What a forked child finds dead, and what it and its parent leave to each other.
registry=src/base/registry.cc children=src/device/cpu/forked_children.cc shared=src/device/cpu/mapped_memory.cc
mutant base_test 'ForkedChild.*' $registry 'a child does not know that it is one' 's/forked_child_.store(true, .*/;/'
mutant base_test 'ExitHookTest.*' $registry 'a child says at its exit that its parent leaves' 's/if (forked_child_.load(.*)) return;.*/;/'
mutant base_test 'Release.*' src/base/release.h 'a child destroys what is its parent'"'"'s' 's/if (!forked_child()) delete object;/delete object;/'
mutant base_test 'Release.*' src/base/release.h 'a child destroys what it holds of others' 's/^  (static_cast<void>(new .*/  ;/'
mutant arena_test 'ArenaFork*' $children 'forks are not counted' 's/forks_.store(forks() + 1, .*/;/'
mutant arena_test 'ArenaFork*' $children 'a child is taken for ended' 's/own_life_ = std::move(new_write_end_);/new_write_end_.reset();/'
mutant arena_test 'ArenaFork*' $arena 'a child writes into its parent'"'"'s tensors' 's/replace_by_private_copy(mapping_.data() + part->begin, .*/;/'
mutant arena_test 'ArenaFork*' $shared 'a child reaches the memory of peers' 's/if (const std::shared_ptr<PeerArena> peer = entry.lock()) replace_by_nothing(.*/;/'
mutant tcp_test 'TcpFault.PeerKilledWhile*' src/transport/tcp/endpoint_fork.cc 'a child keeps its parent'"'"'s connections' 's/if (const auto stream = known.stream.lock()) stream->abandon();/;/'
mutant message_test 'MessageFail.*' $links 'a child says farewell for its parent' '/^void MessageEngine::say_farewell/,/^}/s/if (::getpid() != owner_) return;/;/'
mutant communicator_test '*ForkedRank*' src/communicator/failing.cc 'a child makes its parent'"'"'s calls' '/^void CommunicatorImpl::throw_if_forked/,/^}/s/if (forked_child())/if (false)/'
mutant communicator_test '*ForkedRank*' src/communicator/lifecycle.cc 'a child aborts its parent'"'"'s group' '/^void CommunicatorImpl::abort_because/,/^}/s/if (forked_child()) return;/;/'
mutant communicator_test '*ForkedRank*' $queue 'a child waits for its parent'"'"'s calls' '/^void WorkState::throw_if_forked/,/^}/s/if (forked_child())/if (false)/'

# What a call has lent to its peers and lost.
loans=src/device/cpu/loans.cc calls=src/communicator/collective.cc
mutant arena_test 'LentMemory*' $arena 'what is lost stays shared' '/^void MemfdArena::take_back/,/^}/s/^  settle();/  ;/'
mutant arena_test 'LentMemory*' $arena 'pages that nobody has written still show the file' 's/own = take_own_pages(data, bytes);/;/'
mutant arena_test 'LentMemory*' $arena 'the rest of a lost block is mapped' '/^void MemfdArena::take_back/,/^}/s/if (Block\* const block = find(range.data())) set_aside(block);/;/'
mutant arena_test 'LentMemory*' $arena 'an offset is given of what is not in the file' 's/return loans_.any_detached(pages_of(begin, bytes)) ? kNotMapped : begin;/return begin;/'
mutant arena_test 'LentMemory*' $arena 'small memory beside what is lost is given out' 's/if (!detached(\*block)) return block;/return block;/'
mutant arena_test 'LentMemory*' $arena 'a child sees again what its parent had lent' '/^void MemfdArena::after_fork_in_child/,/^}/s/loans_.first_shared(rest)/rest.begin < rest.end ? std::optional<ByteRange>(rest) : std::nullopt/'
mutant arena_test 'LentMemory*' $loans 'what is lost is lent again' 's/if (any_detached(range) || any_lost(range)) return false;/;/'
mutant arena_test 'LentMemory*' $loans 'calls of other groups lose what they lend, too' 's/if (!it->lost || lent) continue;/if (!it->lost) continue;/'
mutant communicator_test 'ResumedPeer.*' $calls 'a call that failed gives its tensors back' 's/  take_tensors_back(false);/  take_tensors_back(true);/'
mutant communicator_test 'MappedTensors.*' $calls 'an input counts as mapped on all ranks' 's/if (.* \&\& said.mapped_input == kNotMapped) shape.mapped_input = false;/;/'
mutant communicator_test 'MappedTensors.*' $calls 'an output counts as mapped on all ranks' 's/if (.* \&\& said.mapped_output == kNotMapped) shape.mapped_output = false;/;/'

# What ranks compare: while a group forms, and of each call.
agreed=src/bootstrap/agreed_settings.cc settings=src/communicator/formed_group.cc places=src/communicator/cuda/registrations.cc
mutant bootstrap_test 'AgreedSettings.*' $agreed 'ranks of different settings form a group' 's/if (required.empty()) return optional;/return optional;/'
mutant bootstrap_test 'AgreedSettings.*' $agreed 'the first setting alone is compared' 's/s < of_ranks.front().size(); ++s/s < 1; ++s/'
mutant bootstrap_test 'AgreedSettings.*' $agreed 'other settings are compared by their place' 's/if (same_names(of_ranks\[r\], of_ranks.front())) continue;/continue;/'
mutant subgroup_test '*' $settings 'sizes are not compared' 's/^ *size_setting(size),//'
mutant communicator_test 'Settings.Each*' $settings 'forced algorithms are not compared' 's/^ *text_setting("TUTTI_ALGORITHM.*//'
mutant communicator_test 'Settings.Each*' $settings 'plans are not compared' 's/^ *plan_setting(config.plan_path, .*//'
mutant communicator_test 'Settings.Each*' $settings 'staging areas are not compared' 's/^ *{"TUTTI_STAGE_BYTES", .*//'
mutant communicator_test 'TunedGroup.*' $settings 'tuning tables are not compared' 's/^ *tuning_setting(tuning.path, .*/};/'
mutant host_channel_test 'HostChannelModel.*' src/channel/host_segment.h 'sizes of uneven calls are kept for half the window' 's/sequence % kWindow \* static/sequence % (kWindow \/ 2) * static/'
mutant communicator_test 'Failure.Blocks*' $calls 'a block of another size is written' 's/if (host.sizes(r)\[rank_\] != room) {/if (false) {/'
mutant message_test 'Fingerprint.*' src/channel/call_record.cc 'algorithms that calls name are not compared' 's/if (record.algorithm != 0) h = mix(h, record.algorithm);/;/'
mutant communicator_test 'UserAlgorithms.*' $calls 'a call does not say what it names' 's/record.algorithm = fold(chosen->identity());/;/'
mutant communicator_test 'UserAlgorithms.*' src/communicator/algorithm_table.cc 'installed algorithms are not compared' 's/^    identity.add(algorithm->identity());/    ;/'
mutant communicator_test 'UserAlgorithms.*' src/algorithm/user/user_algorithm.cc 'limits are not compared' 's/^      .add(limits_.max_bytes)//'
mutant cuda_registration_test 'RegistrationTable.*' $places 'ranges of registered memory are not compared' 's/^    identity.add(buffer.range);/    ;/'
mutant cuda_registration_test 'DirectIdentity.*' $places 'half of an offset is compared' 's/identity.add(buffer.offset);/identity.add(static_cast<std::uint32_t>(buffer.offset));/'
mutant cuda_registration_test 'DirectIdentity.*' $places 'steps of one buffer cancel those of the other' 's/hash_ = mix64(hash_ \* 0x9e3779b97f4a7c15ULL + value + 1);/hash_ += mix64(value);/'
mutant cuda_registration_test 'DirectIdentity.*' $places 'numbers of blocks are not compared' 's/identity.add(static_cast<std::uint64_t>(blocks));/;/'
mutant cuda_registration_test 'RegistrationTable.*' $places 'a number is given to another range' 's/++made_, bytes,/static_cast<std::uint32_t>(entries_.size()) + 1, bytes,/'
mutant cuda_registration_test 'RegistrationTable.*' $places 'memory beyond a range is taken for registered' 's/ \&\& bytes <= found.second.bytes - offset ? / ? /'

# Calls that reach a GPU in parts, and what decides how one runs.
parts=src/communicator/call_parts.h
mutant cuda_plan_table_test 'CallParts.*' $parts 'the last segment is launched with what another needs' 's/const auto rest = last > 0 ? prepare(last) : whole;/const auto rest = whole;/'
mutant cuda_plan_table_test 'CallParts.*' $parts 'a call that was launched in part ends nothing' 's/if (launched() != before) fail/if (launched() < before) fail/'
mutant cuda_plan_table_test 'CallParts.*' $parts 'a call that was not launched ends the group' 's/if (launched() != before) fail/if (launched() >= before) fail/'
mutant cuda_plan_table_test 'PlanTable.*' src/communicator/cuda/plan_table.cc 'a function is asked while a kernel is forced' 's/if (table == nullptr || forced || /if (table == nullptr || /'
mutant cuda_call_log_test 'CallLog.*' src/communicator/cuda/call_log.h 'each kernel of a call takes a place of deadlines' 's/if (shared_ == 0) shared_ = /shared_ = /'
mutant cuda_call_log_test 'CallLog.*' src/communicator/cuda/call_log.h 'a call has ended before its last kernel' 's/if (last) return log_.open(timeout_);/;/'
mutant cuda_compiled_plans_test 'Requests.*' src/communicator/cuda/code_requests.cc 'code is asked for that will not be loaded' 's/if (!may_load || items_/if (items_/'

relax='s/std::memory_order_\(release\|acquire\)/std::memory_order_relaxed/'
ring=src/transport/shm/ring.cc
order host_channel_test 'HostOrder*' $host 'an announcement without release' "/^void HostChannel::store_and_wake/,/^}/{/word.store/$relax}"
order host_channel_test 'HostOrder*' $host 'an announcement without acquire' "/^Outcome HostChannel::verify_up_to/,/^}/$relax"
order host_channel_test 'HostSleep*' $host 'a step without release' "/^void HostChannel::store_and_wake/,/^}/{/word.store/$relax}"
order communicator_test '*Collectives*' $host 'a step without acquire' "/^Outcome HostChannel::await_step(/,/^}/$relax"
order message_test '*' $ring 'bytes of a ring without release' "s/\(header_->head.store(head_, std::memory_order_\)release/\1relaxed/"
order message_test '*' $ring 'bytes of a ring without acquire' "s/\(header_->head.load(std::memory_order_\)acquire/\1relaxed/"
order message_test '*' $ring 'room of a ring without release' "s/\(header_->tail.store(tail_, std::memory_order_\)release/\1relaxed/"
order message_test '*' $ring 'room of a ring without acquire' "s/\(header_->tail.load(std::memory_order_\)acquire/\1relaxed/"

[ ${#names[@]} -gt 0 ] || { echo "no mutant contains '$only'"; exit 2; }

if [ -n "$dry" ]; then
  stale=0
  for m in "${!names[@]}"; do
    file=${files[$m]}
    sed "${changes[$m]}" "$file" | cmp -s - "$file" || continue
    printf 'DOES NOT APPLY     %-36s %s\n' "$file" "${names[$m]}"
    stale=$((stale + 1))
  done
  echo "$((${#names[@]} - stale)) of ${#names[@]} mutants apply"
  [ "$stale" = 0 ]
  exit
fi

[ -n "$work" ] && mkdir -p "$work" || { work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; }
work=$(cd "$work" && pwd)

[ "$kind" = rules ] || test_limit=300
# What the mutants break is no matter of the optimiser or of the instruction set: -O1 and kernels for one set of them
# build several times faster.
fast=(-DCMAKE_CXX_FLAGS=-DHWY_COMPILE_ONLY_STATIC -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG')
[ "$kind" = rules ] || fast+=(-DTUTTI_SANITIZE=thread)

# The build that is copied: the sources and every target that is needed.
build_base() {
  local at=$work/base all
  mapfile -t all < <(printf '%s\n' "${targets[@]}" | sort -u)
  mkdir -p "$at/tree" "$at/build"
  # shellcheck disable=SC2086  # a list of names
  find $sources -type f -print0 | copy_different "$at/tree"
  { cmake -S "$at/tree" -B "$at/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${fast[@]}" -DTUTTI_CUDA=OFF -DTUTTI_BUILD_BENCH=OFF \
      -DTUTTI_BUILD_PYTHON=OFF -DTUTTI_BUILD_TORCH=OFF -DTUTTI_BUILD_TESTS=ON && make_movable "$at" &&
    make_in base "$(nproc)" "${all[@]}"; } >"$at/build.log" 2>&1 && return
  echo 'the build cannot be made:' >&2
  grep -q FAILED "$at/build.log" && grep -A 12 FAILED "$at/build.log" | head -40 >&2 || tail -20 "$at/build.log" >&2
  return 1
}

# Copies the listed files where they differ, so that a kept folder is built anew only as far as it must be.
copy_different() {
  local to=$1 file
  while IFS= read -r -d '' file; do
    cmp -s "$file" "$to/$file" || install -D -m "$(stat -c %a "$file")" "$file" "$to/$file"
  done
}

# make_movable FOLDER: names in the build of FOLDER become relative, so that a copy of it is up to date as it stands, and
# nothing configures it anew. Commands that change their folder get its name from the environment.
make_movable() {
  sed -i "/COMMAND = cd /s|$1/|\$\$MUTANT/|g; s|$1/|../|g" "$1/build/build.ninja" "$1/build/CMakeFiles/rules.ninja"
  sed -i '/^build .*: \(RERUN_CMAKE\|VERIFY_GLOBS\) /,/^$/d' "$1/build/build.ninja"
}

# make_in COPY COMPILERS TARGET...
make_in() {
  MUTANT=$work/$1 timeout -k 5 $build_limit ninja -C "$work/$1/build" -j "$2" "${@:3}"
}

# test_of COPY LOG TARGET FILTER [OPTION]: runs the tests; 0 if they pass, 124 or 137 if they hang.
test_of() {
  (cd "$work/$1/build" && timeout -k 5 $test_limit "$(find tests -type f -name "$3" -perm -u+x | head -1)" \
    --gtest_filter="$4" "${@:5}") >"$work/$1/$2.log" 2>&1
}

# failed_in LOG: the tests that failed, or the one that was running at the end.
failed_in() {
  local failed
  failed=$(sed -n 's/^\[  FAILED  \] \([^ ,]*\).* ([0-9]* ms)$/\1/p' "$1")
  echo "${failed:-$(sed -n 's/^\[ RUN      \] //p' "$1" | tail -1)}"
}

# What fails unchanged, of every set of tests that is used, is left out of it.
declare -A unfit=()  # by set of tests: what to leave out
test_unchanged() {
  local sets=() m n failed
  mapfile -t sets < <(for m in "${!targets[@]}"; do echo "${targets[$m]} ${filters[$m]}"; done | sort -u)
  local pids=()
  for n in "${!sets[@]}"; do test_of base "unchanged$n" ${sets[$n]% *} "${sets[$n]#* }" & pids+=($!); done
  for n in "${!sets[@]}"; do
    wait "${pids[$n]}" && continue
    for failed in $(failed_in "$work/base/unchanged$n.log"); do
      printf '%-18s %-20s %s\n' 'FAILS UNCHANGED' "${sets[$n]% *}" "$failed"
      unfit[${sets[$n]}]+=:$failed
    done
  done
}

# try COPY MUTANT: one line of the table.
try() {
  local at=$work/$1 m=$2 rc verdict by=''
  local file=${files[$m]} filter=${filters[$m]} left_out=${unfit[${targets[$m]} ${filters[$m]}]:-}
  [ -z "$left_out" ] || case $filter in *-*) filter+=$left_out ;; *) filter+=":-${left_out#:}" ;; esac
  sed -i "${changes[$m]}" "$at/tree/$file"
  if cmp -s "$file" "$at/tree/$file"; then
    verdict='DOES NOT APPLY'
  elif ! make_in "$1" "$compilers" "${targets[$m]}" >"$at/build.log" 2>&1; then
    verdict='DOES NOT COMPILE'
  else
    test_of "$1" test "${targets[$m]}" "$filter" --gtest_fail_fast
    rc=$?
    case $rc in 0) verdict=SURVIVED ;; 124 | 137) verdict='KILLED (hangs)' ;; *) verdict="KILLED ($rc)" ;; esac
    [ $rc = 0 ] || by=" | $(failed_in "$at/test.log" | head -1)"
  fi
  cp "$file" "$at/tree/$file"  # a new time: what was made of the mutant is made again
  printf '%-18s %-18s %-34s %s%s\n' "$verdict" "${targets[$m]}" "$file" "${names[$m]}" "$by"
}

worker() {
  local number=$1 m
  rm -rf "${work:?}/$number" && cp -a "$work/base" "$work/$number" || return 1
  while :; do
    m=$(flock "$work/next" bash -c 'read -r n <"$0"; echo $((n + 1)) >"$0"; echo "$n"' "$work/next")
    [ "$m" -lt ${#names[@]} ] || break
    try "$number" "$m" | tee -a "$work/table"
  done
  rm -rf "${work:?}/$number"
}

: >"$work/table" && echo 0 >"$work/next"
build_base || exit 1
test_unchanged
pids=()
for ((i = 1; i <= workers; ++i)); do worker $i & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid"; done
echo
sort "$work/table"
tried=$(wc -l <"$work/table") killed=$(grep -c '^KILLED' "$work/table")
echo "$killed of ${#names[@]} mutants are found, $((tried - killed)) are not, $((${#names[@]} - tried)) were not tried"
[ "$killed" = ${#names[@]} ] && [ ${#unfit[@]} = 0 ]
