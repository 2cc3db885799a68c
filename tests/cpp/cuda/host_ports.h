// Ports on the host: ring, proxy and channels are the real ones; copies are made by a thread a peer that takes its
// time.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "channel/cuda/port_proxy.h"

namespace tutti::cuda::test {

// The copy engines' stand-in: in order a peer, at any speed, between peers in any order.
class ThreadEngine final : public CopyEngine {
 public:
  explicit ThreadEngine(int ranks, std::size_t most_marks = 3) : most_marks_(most_marks) {
    for (int p = 0; p < ranks; ++p) lanes_.push_back(std::make_unique<Lane>());
  }
  ~ThreadEngine() override {
    for (auto& lane : lanes_) {
      {
        const std::lock_guard lock(lane->mutex);
        lane->stopping = true;
      }
      lane->changed.notify_all();
      if (lane->thread.joinable()) lane->thread.join();
    }
  }

  void begin_thread() override {
    for (auto& lane : lanes_) lane->thread = std::thread([&l = *lane] { l.run(); });
  }
  void copy(int peer, std::byte* to, const std::byte* from, std::size_t bytes) override {
    give(peer, [=] { std::memcpy(to, from, bytes); });
  }
  void store(int peer, std::uint64_t* word, std::uint64_t value) override {
    give(peer, [=] { device::store_release(word, value); });
  }
  bool mark(int peer) override {
    Lane& lane = *lanes_[static_cast<std::size_t>(peer)];
    if (lane.marked - lane.looked >= most_marks_) return false;
    ++lane.marked;
    give(peer, [&lane] { lane.reached.fetch_add(1, std::memory_order_release); });
    return true;
  }
  int take_reached(int peer) override {
    Lane& lane = *lanes_[static_cast<std::size_t>(peer)];
    const std::size_t reached = lane.reached.load(std::memory_order_acquire);
    const auto fresh = static_cast<int>(reached - lane.looked);
    lane.looked = reached;
    return fresh;
  }
  void finish() override {
    for (auto& lane : lanes_) {
      std::unique_lock lock(lane->mutex);
      lane->changed.wait(lock, [&] { return lane->work.empty(); });
    }
  }
  // While held, nothing given for the peer happens.
  void hold(int peer, bool held) {
    Lane& lane = *lanes_[static_cast<std::size_t>(peer)];
    {
      const std::lock_guard lock(lane.mutex);
      lane.held = held;
    }
    lane.changed.notify_all();
  }

 private:
  struct Lane {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;  // the front one is under way
    bool stopping = false, held = false;
    std::size_t marked = 0, looked = 0;
    std::atomic<std::size_t> reached{0};
    std::thread thread;

    void run() {
      std::minstd_rand random(1);
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [&] { return stopping || (!held && !work.empty()); });
        if (work.empty() || held) return;
        const std::function<void()> next = work.front();
        lock.unlock();
        for (auto n = random() % 8; n > 0; --n) std::this_thread::yield();
        next();
        lock.lock();
        work.pop_front();
        changed.notify_all();
      }
    }
  };

  void give(int peer, std::function<void()> what) {
    Lane& lane = *lanes_[static_cast<std::size_t>(peer)];
    {
      const std::lock_guard lock(lane.mutex);
      lane.work.push_back(std::move(what));
    }
    lane.changed.notify_all();
  }

  const std::size_t most_marks_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// One rank's half of the ring's memory, its control words, its proxy.
struct PortRank {
  PortRank(int rank_, int ranks, std::uint32_t ring) : rank(rank_), size(ranks), slots(ring), flushed(8) {
    host.timeout_ns = 60'000'000'000;
    control.rank = rank;
    control.size = ranks;
    control.failed = &failed;
    control.poison = &poison;
    control.host = &host;
    fifo = {slots.data(), &tail, &head, &known_tail, ring};
    auto made = std::make_unique<ThreadEngine>(ranks);
    engine = made.get();
    proxy = std::make_unique<PortProxy>(
        std::move(made), PortProxy::Shared{slots.data(), &tail, flushed.data(), ring, &host}, rank, ranks);
  }

  int rank, size;
  std::vector<device::PortSlot> slots;
  std::vector<std::uint64_t> flushed;
  std::uint64_t tail = 0, head = 0, known_tail = 0, failed = 0, poison = 0;
  device::HostControl host;
  device::Control control;
  device::PortFifo fifo;
  ThreadEngine* engine = nullptr;
  std::unique_ptr<PortProxy> proxy;
};

// Ranks with memory of `bytes` each, that all can write, and ports between all pairs.
class HostPorts {
 public:
  HostPorts(int size, std::size_t bytes, std::uint32_t ring = 8) {
    for (int r = 0; r < size; ++r) {
      memory_.emplace_back(bytes);
      words_.emplace_back();
    }
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<PortRank>(r, size, ring));
      std::vector<std::byte*> data;
      for (auto& memory : memory_) data.push_back(memory.data());
      memory_number_.push_back(ranks_.back()->proxy->add_memory(data, bytes));
    }
  }

  PortRank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  std::byte* memory(int r) { return memory_[static_cast<std::size_t>(r)].data(); }
  std::uint32_t memory_number(int r) const { return memory_number_[static_cast<std::size_t>(r)]; }

  // Once a pair: the words count from the start.
  device::PortChannel port(int r, int peer) {
    PortRank& own = rank(r);
    device::PortChannel channel;
    channel.control = own.control;
    channel.peer = peer;
    channel.port = own.proxy->add_port(peer, &words(peer, r).inbound);
    channel.to_memory = channel.from_memory = memory_number(r);
    channel.fifo = own.fifo;
    channel.flushed = &own.flushed[static_cast<std::size_t>(peer)];
    channel.semaphore.inbound = &words(r, peer).inbound;
    channel.semaphore.seen = &words(r, peer).seen;
    return channel;
  }

 private:
  struct Words {
    std::uint64_t inbound = 0, seen = 0;
  };
  Words& words(int owner, int other) {
    return words_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(other)];
  }

  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::array<Words, 8>> words_;
  std::vector<std::unique_ptr<PortRank>> ranks_;  // after the memory: the proxies stop first
  std::vector<std::uint32_t> memory_number_;
};

}  // namespace tutti::cuda::test
