// Point-to-point calls.
#include "base/thread.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

// The message thread lets a new call be for so long before it drives the port: most callers wait at once, and driving
// is faster from the waiting thread than through another.
constexpr auto kPatience = std::chrono::microseconds(100);

}  // namespace

void CommunicatorImpl::check_message(const void* data, std::size_t count, int peer, std::uint64_t tag,
                                     bool any_source) const {
  if ((peer < 0 || peer >= size_) && !(any_source && peer == kAnySource)) {
    throw_error(ErrorKind::kInvalidArgument, "peer " + std::to_string(peer) + " is not a rank of group '" +
                                                 options_.name + "' of " + std::to_string(size_) + " ranks");
  }
  if (data == nullptr && count != 0) throw_error(ErrorKind::kInvalidArgument, "send or recv of a null pointer");
  if (tag >> 62 != 0) throw_error(ErrorKind::kInvalidArgument, "tags of 2^62 and more are Tutti's own");
}

int CommunicatorImpl::transfer(bool is_send, void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                               std::chrono::milliseconds timeout) {
  with_memory([&] {
    check_message(data, count, peer, tag, !is_send);
    check_call_timeout(is_send ? "send" : "recv", timeout);
    throw_if_unusable();
  });
  const std::size_t bytes = count * size_of(dtype);
  const CallRecord record = record_of_message(is_send, count, dtype, tag);
  if (is_send) throw_if_gone(peer, record, effective(timeout));
  Deadline deadline = Deadline::after(effective(timeout));
  const std::uint64_t entry = recorder_.add(record, peer, FlightRecorder::State::kStarted, deadline.timeout().count());
  // relaxed: any count will do for sampling.
  const bool timed = bytes >= 8192 || small_messages_.fetch_add(1, std::memory_order_relaxed) % 64 == 0;
  const std::int64_t start = timed ? now_ns() : 0;
  MessageOp op;
  if (is_send) {
    port_->post_send(op, peer, tag, data, bytes, record);
  } else {
    port_->post_recv(op, peer, tag, data, bytes, record);
  }
  const Outcome outcome = port_->wait(op, deadline);
  if (!outcome.ok()) [[unlikely]] {
    port_->cancel(op);
    recorder_.update(entry, FlightRecorder::State::kFailed);
    std::rethrow_exception(message_failed(outcome, op, deadline.timeout()));
  }
  message_done(op, entry, timed ? now_ns() - start : -1);
  return op.source;
}

// Of a send, before it begins: what is small is done once the ring or the link has taken it, though nobody will ever
// read it. A receive may still find what has been sent.
void CommunicatorImpl::throw_if_gone(int peer, const CallRecord& record, std::chrono::milliseconds timeout) {
  const Outcome hopeless = formed_.waker != nullptr ? formed_.waker->check(peer) : kOkOutcome;
  if (hopeless.ok()) return;
  MessageOp op;
  op.peer = peer;
  op.record = record;
  std::rethrow_exception(message_failed(hopeless, op, timeout));
}

std::exception_ptr CommunicatorImpl::message_failed(Outcome outcome, const MessageOp& op,
                                                    std::chrono::milliseconds timeout) noexcept {
  FailureContext context;
  context.mine = context.ours = op.record;
  context.theirs = op.remote;
  context.timeout = timeout;
  if (outcome.peer < 0) outcome.peer = op.peer;
  return std::make_exception_ptr(poison(outcome, context));
}

void CommunicatorImpl::message_done(const MessageOp& op, std::uint64_t entry, std::int64_t total_ns) noexcept {
  recorder_.update(entry, FlightRecorder::State::kCompleted);
  const std::lock_guard lock(message_metrics_mutex_);
  metrics_.record(op.record.call, op.bytes, "messages", total_ns, 0);
}

void CommunicatorImpl::send(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                            std::chrono::milliseconds timeout) {
  transfer(true, const_cast<void*>(data), count, dtype, peer, tag, timeout);
}

int CommunicatorImpl::recv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                           std::chrono::milliseconds timeout) {
  return transfer(false, data, count, dtype, peer, tag, timeout);
}

WorkPtr CommunicatorImpl::isend(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                                std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) {
  return start(true, const_cast<void*>(data), count, dtype, peer, tag, timeout, std::move(keep_alive));
}

WorkPtr CommunicatorImpl::irecv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                                std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) {
  return start(false, data, count, dtype, peer, tag, timeout, std::move(keep_alive));
}

WorkPtr CommunicatorImpl::start(bool is_send, void* data, std::size_t count, DataType dtype, int peer,
                                std::uint64_t tag, std::chrono::milliseconds timeout,
                                std::shared_ptr<void> keep_alive) {
  const CallRecord record = record_of_message(is_send, count, dtype, tag);
  const auto limit = effective(timeout);
  std::uint64_t entry = 0;
  const std::shared_ptr<MessageWork> work = with_memory([&] {
    check_message(data, count, peer, tag, !is_send);
    check_call_timeout(is_send ? "send" : "recv", timeout);
    throw_if_unusable();
    if (is_send) throw_if_gone(peer, record, limit);
    entry = recorder_.add(record, peer, FlightRecorder::State::kStarted, limit.count());
    try {
      auto made = std::make_shared<MessageWork>(static_cast<MessageOwner&>(*this), entry, limit, std::move(keep_alive));
      outstanding_.add(made);
      return made;
    } catch (...) {
      recorder_.update(entry, FlightRecorder::State::kFailed);
      throw;
    }
  });
  const std::size_t bytes = count * size_of(dtype);
  if (is_send) {
    port_->post_send(work->op(), peer, tag, data, bytes, record);
  } else {
    port_->post_recv(work->op(), peer, tag, data, bytes, record);
  }
  if (!work->op().done()) port_->progress();
  if (work->op().done()) return work;
  try {
    wake_message_thread();
  } catch (const std::exception& error) {
    // Nobody would drive it. A receive that has met no message is taken back; else the peer would wait for the rest.
    MessageOp& op = work->op();
    if (!is_send) port_->cancel(op);
    if (op.done() && op.outcome.ok()) return work;
    recorder_.update(entry, FlightRecorder::State::kFailed);
    // relaxed: an old value makes the error less exact
    if (!is_send && op.source < 0 && !failed_.load(std::memory_order_relaxed)) with_memory([] { throw; });
    throw Error(starved_by(record, peer, error));
  }
  return work;
}

Error CommunicatorImpl::starved_by(const CallRecord& record, int peer, const std::exception& why) noexcept {
  FailureContext context;
  context.mine = context.ours = record;
  try {
    if (dynamic_cast<const Error*>(&why) != nullptr) context.detail = why.what();
  } catch (const std::bad_alloc&) {  // then the error says less
  }
  return poison({Status::kExhausted, peer}, context);
}

void CommunicatorImpl::wake_message_thread() {
  const std::lock_guard lock(message_thread_mutex_);
  if (!message_thread_.joinable()) message_thread_ = start_thread("of messages", [this] { message_loop(); });
  message_thread_wake_.notify_all();
}

void CommunicatorImpl::message_loop() noexcept {
  // acquire: pairs with the release in the destructor.
  const auto stopping = [this] { return stopping_.load(std::memory_order_acquire); };
  for (;;) {
    {
      std::unique_lock lock(message_thread_mutex_);
      message_thread_wake_.wait(lock, [&] { return stopping() || !outstanding_.empty(); });
      message_thread_wake_.wait_for(lock, kPatience, stopping);
      if (stopping()) return;
    }
    port_->drive([&] {
      outstanding_.expire_late();
      return stopping() || outstanding_.empty();
    });
  }
}

}  // namespace tutti
