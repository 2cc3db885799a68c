// How the ranks of one communicator on one host meet: announcements, slots, steps and staging in shared memory.
//
// This is the memory channel of the built-in algorithms. They see only what is here: who has announced which call,
// memory to put payloads in, and counters to publish and await. All waits are noexcept and return an Outcome; every one
// of them ends by itself when the deadline passes, a needed peer dies, leaves or fails, or this rank aborts.
//
// Ranks here are indexes on the host, 0 to ranks()-1, ascending with the communicator's ranks.
//
// Memory order: a publisher writes payload and record, then stores its word with release; the reader's acquire load
// of that word makes them visible. Where few ranks share a host, publishers do not fence before they look at the
// sleeping flags: a thread about to sleep sets its flag and then executes heavy_barrier(), after which either the
// publisher's store is visible to the sleeper's last look, or the publisher sees the flag. That barrier interrupts all
// ranks, so where they are many the sleepers of one wait would delay everybody into sleeping, too: there each publish
// has a store-load fence (it waits for the word's line to be owned, 60-100 ns a call here). Rejected: a futex on each
// word (a waiter that needs one of several cannot sleep on it).
//
// Thread rule: announcements, steps and their waits belong to the one thread that runs a collective; abort(), leave()
// and the message lane may be used from any thread.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/outcome.h"
#include "base/spin.h"
#include "bootstrap/host_group.h"
#include "channel/bell.h"
#include "channel/host_segment.h"
#include "device/cpu/arena.h"

namespace tutti {

// The kernel is asked about the peers at most this often.
inline constexpr std::int64_t kLookNs = 50'000'000;

class HostChannel {
 public:
  // Takes the group's descriptors. Throws Error(kExhausted) if the segment cannot be mapped.
  HostChannel(HostGroup group, const SegmentLayout& layout, WaitPolicy policy);
  ~HostChannel();
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

  // Waits until all ranks of the host have mapped the segment and agrees on what they can do. Call first, and
  // again to go on waiting after kTimeout.
  Outcome join(Deadline& deadline) noexcept;

  int ranks() const noexcept { return layout_.shape().ranks; }
  int index() const noexcept { return index_; }
  std::size_t stage_bytes() const noexcept { return layout_.shape().stage_bytes; }

  // ---- one call ------------------------------------------------------------------------------------------------
  // Waits until call `record.sequence` may be announced (see kLag), and copies nothing yet.
  Outcome begin(const CallRecord& record, Deadline& deadline) noexcept;
  // Where this rank's payload of the current call goes: up to the slot_bytes of the layout.
  std::byte* payload_area(std::size_t bytes) noexcept {
    return bytes <= kInlineBytes ? cell(index_, sequence_).payload : layout_.slot(base_, index_, sequence_);
  }
  // Makes record and payload visible to all.
  void announce() noexcept;
  // begin() and announce() of a call without payload.
  Outcome begin_and_announce(const CallRecord& record, Deadline& deadline) noexcept;
  // Between begin() and announce(): completes the record.
  void amend(const CallRecord& record) noexcept { mine_[sequence_ % kWindow] = record; }
  // Fetches the line of a peer's next announcement, which in rooted calls is there before this rank asks for it.
  void look_ahead(int peer) const noexcept { __builtin_prefetch(&cell(peer, sequence_ + 1)); }
  // Waits for a peer's announcement of the current call and compares it with ours; kMismatch names the peer.
  Outcome await(int peer, Deadline& deadline) noexcept;
  Outcome await_all(Deadline& deadline) noexcept;
  // The same, then copies what all ranks said of the call.
  Outcome await_records(Deadline& deadline) noexcept;
  const std::byte* peer_payload(int peer, std::size_t bytes) const noexcept {
    return bytes <= kInlineBytes ? cell(peer, sequence_).payload : layout_.slot(base_, peer, sequence_);
  }
  // What a rank said of the current call, as await_records() found it: whatever the rank writes later, what is checked
  // is what is used.
  const CallRecord& peer_record(int peer) const noexcept { return records_[static_cast<std::size_t>(peer)]; }
  // Says that the current call differs from a peer's in something that the fingerprint does not cover.
  void blame(int peer) noexcept;
  // After kPeerFailed: a peer whose announcement of the current call differs from ours, as blame() says it; -1 for
  // none.
  int find_mismatch() noexcept;
  // After kMismatch: what the two said of the call in which they differ.
  const CallRecord& mismatched_mine() const noexcept { return mismatch_mine_; }
  const CallRecord& mismatched_theirs() const noexcept { return mismatch_theirs_; }
  // Peers that have not announced the current call.
  std::vector<int> missing() const;

  // Sizes in bytes of the blocks that `rank` sends to each rank in the current (uneven) call.
  std::uint64_t* sizes(int rank) noexcept { return layout_.sizes(base_, rank, sequence_); }
  // In their place, in an even call: where the block that `rank` has for each rank lies in its process.
  std::uint64_t* addresses(int rank) noexcept { return sizes(rank); }

  // ---- steps of large calls --------------------------------------------------------------------------------------
  std::byte* stage(int rank) noexcept { return layout_.stage(base_, rank); }
  // Before this rank fills a place of `bytes` in its own area, at `offset`: the pages are there, and their neighbours,
  // which a peer that reads one of them then maps by the same fault; of many ranks each faults for the pages of each.
  // Of large places each peer may read a small part: what lies around it would be mapped in vain.
  void make_stage(std::size_t offset, std::size_t bytes) noexcept {
    if (bytes > kStageRun / 4) return;
    for (std::size_t run = offset / kStageRun; run <= (offset + bytes - 1) / kStageRun; ++run) {
      if (!stage_made_[run]) make_stage_run(run);
    }
  }
  // Counters run on from call to call: each call uses base + 1 ... base + n and then advances the base by n, the same
  // n on all ranks whether or not they took part.
  std::uint64_t step_base() const noexcept { return step_base_; }
  void advance_steps(std::uint64_t steps) noexcept { step_base_ += steps; }
  void publish(StepLane lane, std::uint64_t value) noexcept;
  Outcome await_step(int peer, StepLane lane, std::uint64_t value, Deadline& deadline) noexcept;
  Outcome await_step_all(StepLane lane, std::uint64_t value, Deadline& deadline) noexcept;
  // How far a peer is.
  std::uint64_t stepped(int peer, StepLane lane) const noexcept;

  // ---- anything else -----------------------------------------------------------------------------------------------
  // Waits until `condition` holds; it is asked again and again until it has said so once, and whoever may have made it
  // true rings this rank's doorbell of the collective lane, within Publishing. `peer`: who is awaited, or -1.
  class Condition {
   public:
    virtual bool holds() noexcept = 0;

   protected:
    ~Condition() = default;
  };
  Outcome await_condition(int peer, Condition& condition, Deadline& deadline) noexcept;

  // In between this rank may store what others of its host wait for in the lane, and rings them: after the end, who
  // waits and has not been rung has been missed. One thread at a time in each lane, and not nested. Two stores to a
  // line that others read in long waits only.
  void begin_publishing(WaitLane lane) noexcept {
    // relaxed: the release of what is stored next publishes it too
    control(index_).publishing[static_cast<int>(lane)].value.store(++publishing_[static_cast<int>(lane)],
                                                                   std::memory_order_relaxed);
  }
  void end_publishing(WaitLane lane) noexcept {
    // release: after the rings; pairs with the acquire in published()
    control(index_).publishing[static_cast<int>(lane)].value.store(++publishing_[static_cast<int>(lane)],
                                                                   std::memory_order_release);
  }
  // Both in the collective lane.
  class Publishing {
   public:
    // `channel` may be null.
    explicit Publishing(HostChannel* channel) noexcept : channel_(channel) {
      if (channel_ != nullptr) channel_->begin_publishing(WaitLane::kCollective);
    }
    ~Publishing() {
      if (channel_ != nullptr) channel_->end_publishing(WaitLane::kCollective);
    }
    Publishing(const Publishing&) = delete;
    Publishing& operator=(const Publishing&) = delete;

   private:
    HostChannel* const channel_;
  };
  // Whether no peer is publishing. What one has stored and the caller has acquired, it has rung for by then.
  bool nobody_publishes() const noexcept;

  // ---- mapped tensors ----------------------------------------------------------------------------------------------
  // Address here of a peer's arena; null when it is not mapped. Own arena included.
  std::byte* arena(int rank) const noexcept { return arenas_[static_cast<std::size_t>(rank)]; }
  // Address here of [offset, offset + bytes) of a rank's arena; null where it does not lie in it.
  std::byte* in_arena(int rank, std::uint64_t offset, std::size_t bytes) const noexcept;
  bool arenas_mapped() const noexcept { return arenas_mapped_; }

  // Half of what each rank may take of the last cache: an output beyond it is not there any more when it is read.
  std::size_t cache_share() const noexcept { return cache_share_; }

  // ---- tensors that nobody maps ----------------------------------------------------------------------------------
  // Whether all ranks of the host can read each other's memory by the kernel, and it pays; the same on all, once all
  // have announced a call.
  bool reads_across() noexcept;
  // Reads at `from` in a peer's process. 0 or an errno. By the kernel in this process, too: where a peer has given the
  // call up its memory may be gone.
  int read(int peer, void* to, std::uint64_t from, std::size_t bytes) const noexcept;

  // Whether a publisher fences before it looks for sleepers. All ranks give the same answer.
  bool publishers_fence() const noexcept { return !light_barrier_; }

  // Some rank shares its core with another, so a wait costs a switch of threads. All ranks give the same answer.
  bool crowded() const noexcept { return crowded_; }

  // ---- rings, doorbells, life
  // ----------------------------------------------------------------------------------------
  std::byte* ring(int src, int dst) noexcept { return layout_.ring(base_, src, dst); }
  void ring_doorbell(int peer, WaitLane lane) noexcept;  // if that rank sleeps in the lane
  void ring_own_doorbell(WaitLane lane) noexcept;        // wakes this rank's own sleepers
  std::uint32_t doorbell(WaitLane lane) const noexcept;  // to be read before announcing sleep
  // Followed by a barrier when asleep. `awaited`: the only rank whose publishing shall wake, or -1.
  void announce_sleep(WaitLane lane, bool asleep, int awaited = -1) noexcept;
  void sleep(WaitLane lane, std::uint32_t seen, std::int64_t timeout_ns) noexcept;
  // Where others sleep at bells, those are rung with this one; null: there are none. Before the first call.
  void ring_with(const Bell* ringer) noexcept { ringer_ = ringer; }
  // The next sleep of the message lane is by polling this bell, which rings wherever the doorbell would; null: at its
  // doorbell. To be called while the lane does not sleep.
  void sleep_at(const Bell* bell) noexcept;

  // Why waiting for `peer` (-1: for whoever may come) is hopeless. kPeerFailed with this rank itself to blame: it has
  // found so elsewhere, by the look below.
  Outcome check(int peer) noexcept;
  // A group of several hosts: whether waiting for ranks of this one is hopeless for what has become of the rest. Asked
  // about as often as the kernel is about the ranks here, without locks. Before the first call.
  void look_elsewhere(std::function<bool()> hopeless) { hopeless_elsewhere_ = std::move(hopeless); }
  // A rank that has failed or died, as its place on this host, by a look at all; not one that has left in good order.
  Outcome find_lost() const noexcept;
  void abort() noexcept;  // every wait here ends with kAborted
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  void leave() noexcept;  // tells the peers: a clean end
  // Tells the peers: a failure; the first one counts. `sequence`: of the collective that failed, if it was one; peers
  // that complete it or a later one all the same learn of it by check_given_up(). `reason`: why, in words; what does
  // not fit is cut off.
  void report(Outcome outcome, std::uint64_t sequence = 0, std::string_view reason = {}) noexcept;
  // After the current call's last look at peers' memory: whether a peer has given that call up, and so what was read
  // there may be nobody's any more.
  Outcome check_given_up() const noexcept;
  // What a peer has reported.
  Outcome reported(int peer) const noexcept;
  // The words to it; empty where it gave none.
  std::string reason_of(int peer) const;
  int pid(int peer) const noexcept { return group_.members[static_cast<std::size_t>(peer)].pid; }
  bool died(int peer) const noexcept;

  // Nanoseconds spent in waits since the last call of this function, once timing has been asked for.
  void time_waits(bool on) noexcept {
    timing_ = on;
    waited_ns_ = 0;
  }
  std::int64_t waited_ns() const noexcept { return waited_ns_; }

  // Waits in the collective lane, so far, that ended by their time slice though whoever had stored what they waited for
  // had looked for sleepers since: wake-ups that were lost. Exact but for one thing: a peer that is just publishing
  // something else is given the benefit of the doubt. Any thread.
  std::uint64_t rescued_waits() const noexcept {
    return rescued_waits_.load(std::memory_order_relaxed);  // relaxed: a count, nothing else depends on it
  }

 private:
  AnnounceCell& cell(int rank, std::uint64_t sequence) const noexcept {
    return control(rank).cells[sequence % kWindow];
  }
  RankControl& control(int rank) const noexcept { return layout_.control(base_, rank); }
  // As far as Linux maps around a fault on a page what is there, by default.
  static constexpr std::size_t kStageRun = 65536;
  void make_stage_run(std::size_t run) noexcept;
  bool can_read_peers() const noexcept;
  Outcome verify_up_to(int peer, std::uint64_t sequence, Deadline& deadline) noexcept;
  Outcome look_at_processes(int peer) noexcept;
  template <class Value>
  void store_and_wake(std::atomic<Value>& word, Value value) noexcept;
  // What `awaited`, or if that is -1 what any peer, has published in the lane so far: a sum, which only grows.
  struct Published {
    std::uint64_t sum = 0;
    bool over = true;  // nobody of them is at it
  };
  Published published(int awaited, WaitLane lane) const noexcept;
  bool missed_by(int awaited, std::uint64_t before, std::uint32_t seen) const noexcept;
  void wake_sleepers(WaitLane lane) noexcept;
  void wake(int peer, WaitLane lane, std::uint16_t how) noexcept;
  // `awaited`: the only rank that can make `ready` true by publishing, or -1.
  template <class Ready>
  Outcome wait(int peer, int awaited, Deadline& deadline, const Ready& ready) noexcept;
  template <class Ready>
  Outcome wait_slowly(int peer, int awaited, Deadline& deadline, const Ready& ready) noexcept;

  HostGroup group_;
  std::vector<std::shared_ptr<const UniqueFd>> pidfds_;  // by rank; shared by all groups of this process
  SegmentLayout layout_;
  std::shared_ptr<PeerArena> segment_;  // the mapping; shared by rank threads of one process
  std::byte* base_ = nullptr;
  std::vector<bool> stage_made_;  // of this rank's own area, by run
  int index_ = 0;
  WaitPolicy policy_;
  const Bell* ringer_ = nullptr;
  std::function<bool()> hopeless_elsewhere_;  // empty: there is nothing else
  bool at_bell_ = false;                      // where the message lane sleeps next; the group waker's lock
  bool light_barrier_ = false;                // sleepers make publishers' fences, by heavy_barrier()
  std::vector<std::shared_ptr<PeerArena>> peer_arenas_;
  std::vector<std::byte*> arenas_;
  bool arenas_mapped_ = false;
  bool crowded_ = false;
  std::size_t cache_share_ = 0;
  std::uint64_t probe_word_ = 0;         // what peers read to know this process by
  std::atomic<std::uint32_t> reads_{0};  // of all ranks; 0: not known yet

  std::mutex state_mutex_;  // guards this rank's state and its note, which several threads may want to write; a leaf

  std::uint64_t sequence_ = 0;  // of the current call
  std::uint64_t step_base_ = 0;
  std::uint64_t publishing_[kWaitLanes] = {};  // as in the segment
  std::mutex look_mutex_;                // guards the two below; a leaf; a thread that does not get it skips the look
  std::vector<pollfd> life_;             // pidfds by rank; fd -1 where there is none
  std::int64_t looked_ns_ = 0;           // when check() last asked the kernel
  std::vector<std::uint64_t> verified_;  // per peer: its announcements up to here agree with ours
  std::uint64_t verified_by_all_ = 0;    // lower bound of the minimum over peers
  CallRecord mine_[kWindow];             // our own last calls, to compare late announcements with
  std::vector<CallRecord> records_;      // by rank: copies of what all said of the current call
  CallRecord mismatch_mine_, mismatch_theirs_;
  bool timing_ = false;
  std::int64_t waited_ns_ = 0;
  std::atomic<std::uint64_t> rescued_waits_{0};
  std::atomic<bool> aborted_{false};
};

}  // namespace tutti
