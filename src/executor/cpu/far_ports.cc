#include "executor/cpu/far_ports.h"

#include <algorithm>

#include "executor/cpu/packet_operations.h"

namespace tutti::executor {

FarPorts::FarPorts(const Tables& tables, std::int32_t rank) : tables_(tables), rank_(rank) {
  outgoing_.resize(tables.plan().ranks[static_cast<std::size_t>(rank)].channels_of(plan::ChannelKind::kPort).size());
}

FarPorts::~FarPorts() { close(); }

FarPorts::Stream& FarPorts::stream_of(const Inflow& inflow) {
  for (const auto& stream : incoming_) {
    if (stream->peer == inflow.peer && stream->number == inflow.stream) return *stream;
  }
  auto made = std::make_unique<Stream>();
  made->peer = inflow.peer;
  made->number = inflow.stream;
  return *incoming_.emplace_back(std::move(made));
}

void FarPorts::prepare(const Program& program) {
  for (const Inflow& inflow : program.inflows()) {
    Stream& stream = stream_of(inflow);
    std::size_t most = stream.packet_bytes;
    for (const Arrival& arrival : inflow.arrivals) {
      if (arrival.packets) most = std::max(most, static_cast<std::size_t>(arrival.bytes));
    }
    if (most == stream.packet_bytes) continue;
    stream.packets.resize(kWindow * most);
    stream.packet_bytes = most;
  }
  active_.reserve(incoming_.size());
}

void FarPorts::open(MessagePort& port, const CallRecord& record, std::uint64_t tag) noexcept {
  port_ = &port;
  record_ = record;
  tag_ = tag;
}

template <class Visit>
void FarPorts::each_unfinished(const Visit& visit) const {
  const auto look = [&visit](const Window& window) {
    for (std::uint64_t i = window.ended; i < window.begun; ++i) visit(window.op(i));
  };
  for (const Window& window : outgoing_) look(window);
  for (const auto& stream : incoming_) look(stream->window);
}

void FarPorts::close() noexcept {
  if (port_ == nullptr) return;
  each_unfinished([this](MessageOp& op) {
    if (!op.done()) port_->cancel(op);
  });
  for (Window& window : outgoing_) window.ended = window.begun;
  for (const auto& stream : incoming_) stream->window.ended = stream->window.begun;
  receiving_ = sending_ = 0;
  port_ = nullptr;
}

void FarPorts::begin(const Program& program, std::byte* const* bases, CounterWord* counters) noexcept {
  bases_ = bases;
  pointers_ = program.pointers().data();
  counters_ = counters;
  receiving_ = 0;
  active_.clear();
  for (const Inflow& inflow : program.inflows()) {
    Stream& stream = stream_of(inflow);  // there since prepare()
    stream.inflow = &inflow;
    stream.base = stream.window.begun;
    receiving_ += inflow.arrivals.size();
    active_.push_back(&stream);  // within what prepare() has reserved
    fill(stream);
  }
}

void FarPorts::fill(Stream& stream) noexcept {
  Window& window = stream.window;
  const std::vector<Arrival>& arrivals = stream.inflow->arrivals;
  while (!window.full() && window.begun - stream.base < arrivals.size()) {
    const Arrival& arrival = arrivals[window.begun - stream.base];
    std::byte* to = nullptr;
    if (arrival.packets) {
      to = stream.packets.data() + window.begun % kWindow * stream.packet_bytes;
    } else if (arrival.bytes != 0) {
      const Pointer& pointer = pointers_[arrival.pointer];
      to = bases_[pointer.base] + pointer.offset;
    }
    port_->post_recv(window.op(window.begun), stream.peer, tag_ + stream.number, to,
                     static_cast<std::size_t>(arrival.bytes), record_);
    ++window.begun;
  }
}

void FarPorts::land(Stream& stream, const Arrival& arrival) noexcept {
  if (arrival.packets) {
    const Pointer& pointer = pointers_[arrival.pointer];
    const std::byte* from = stream.packets.data() + stream.window.ended % kWindow * stream.packet_bytes;
    store_packets(packets_at(bases_[pointer.base] + pointer.offset), from,
                  arrival.bytes / static_cast<std::int64_t>(sizeof(PacketWord)));
  }
  if (arrival.signals == 0) return;
  std::atomic<std::uint64_t>& word = counters_[stream.inflow->counter - tables_.first_counter(rank_)].value;
  // relaxed: this thread alone writes the counter of a channel from another host. release: as every signal.
  word.store(word.load(std::memory_order_relaxed) + arrival.signals, std::memory_order_release);
}

// In order: a later message may have come whole before an earlier one.
bool FarPorts::take(Stream& stream) noexcept {
  Window& window = stream.window;
  bool moved = false;
  while (window.ended < window.begun && window.first().done() && window.first().outcome.ok()) {
    land(stream, stream.inflow->arrivals[window.ended - stream.base]);
    ++window.ended;
    --receiving_;
    moved = true;
  }
  if (moved) fill(stream);
  return moved;
}

bool FarPorts::collect(Window& window) noexcept {
  const std::uint64_t before = window.ended;
  while (window.ended < window.begun && window.first().done() && window.first().outcome.ok()) {
    ++window.ended;
    --sending_;
  }
  return window.ended != before;
}

bool FarPorts::advance() noexcept {
  bool moved = false;
  if (receiving_ != 0) {
    for (Stream* stream : active_) moved = take(*stream) || moved;
  }
  if (sending_ != 0) {
    for (Window& window : outgoing_) moved = collect(window) || moved;
  }
  return moved;
}

bool FarPorts::ready(std::uint32_t channel) noexcept {
  Window& window = outgoing_[channel];
  if (window.full()) collect(window);
  return !window.full();
}

void FarPorts::send(std::uint32_t channel, std::int32_t peer, std::uint32_t stream, const std::byte* data,
                    std::int64_t bytes) noexcept {
  Window& window = outgoing_[channel];
  ++sending_;
  port_->post_send(window.op(window.begun++), peer, tag_ + stream, data, static_cast<std::size_t>(bytes), record_);
  collect(window);  // most small ones have left at once
}

bool FarPorts::drained(std::uint32_t channel) noexcept {
  Window& window = outgoing_[channel];
  collect(window);
  return window.ended == window.begun;
}

Outcome FarPorts::verdict(CallRecord& remote) const noexcept {
  Outcome worst;
  each_unfinished([&](const MessageOp& op) {
    if (!op.done() || weight_of(op.outcome.status) <= weight_of(worst.status)) return;
    worst = op.outcome;
    if (worst.status == Status::kMismatch) remote = op.remote;
  });
  return worst;
}

std::int32_t FarPorts::awaited() const noexcept {
  std::int32_t peer = -1;
  each_unfinished([&peer](const MessageOp& op) {
    if (!op.done()) peer = op.peer;
  });
  return peer;
}

std::string FarPorts::describe() const {
  std::string text;
  each_unfinished([&](const MessageOp& op) {
    if (op.done() || !text.empty()) return;
    text = op.is_send ? "for rank " + std::to_string(op.peer) + " to take what is put there"
                      : "for what rank " + std::to_string(op.peer) + " puts here";
  });
  return text;
}

}  // namespace tutti::executor
