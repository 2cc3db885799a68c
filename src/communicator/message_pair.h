// What the messages in one direction between two ranks of a group on devices go through, while it is being made and
// after.
//
// Ownership: holds the communicator, the thread that makes it and the messages that wait for it. Thread rule: as
// DeferredCalls (deferred_calls.h).
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "communicator/deferred_calls.h"
#include "tutti/device_communicator.h"

namespace tutti {

class MessagePair {
 public:
  // `made` is called once it can be found.
  MessagePair(int device, std::function<StreamCommunicatorPtr()> make, std::function<void(StreamCommunicator&)> made)
      : device_(device), calls_([this, make = std::move(make), made = std::move(made)] {
          const StreamCommunicatorPtr communicator = make();
          {
            const std::lock_guard lock(mutex_);
            made_ = communicator;
          }
          made(*communicator);
        }) {}

  int device() const noexcept { return device_; }
  // Null while it is being made or queued messages have not run. Throws what making threw.
  StreamCommunicatorPtr ready() const { return calls_.ready() ? made() : nullptr; }
  // Null while it is being made.
  StreamCommunicatorPtr made() const {
    const std::lock_guard lock(mutex_);
    return made_;
  }
  // False, and whatever it throws: the message is left.
  bool queue(std::unique_ptr<DeferredMessage>& message) {
    DeferredCalls::Call call = std::make_unique<Queued>(*this, message);
    const auto give_back = [&] { message = static_cast<Queued&>(*call).take(); };
    try {
      if (calls_.queue(call)) return true;
    } catch (...) {
      give_back();
      throw;
    }
    give_back();
    return false;
  }

 private:
  class Queued final : public DeferredCall {
   public:
    Queued(const MessagePair& pair, std::unique_ptr<DeferredMessage>& message)
        : pair_(pair), message_(std::move(message)) {}
    void run() noexcept override { message_->run(pair_.made()); }
    void fail(const std::exception_ptr& error) noexcept override { message_->fail(error); }
    void wake() noexcept override { message_->wake(); }
    void announce() noexcept override { message_->announce(); }
    std::unique_ptr<DeferredMessage> take() { return std::move(message_); }

   private:
    const MessagePair& pair_;  // it holds this call
    std::unique_ptr<DeferredMessage> message_;
  };

  const int device_;
  mutable std::mutex mutex_;  // guards made_; a leaf
  StreamCommunicatorPtr made_;
  DeferredCalls calls_;  // the last: its thread uses the others
};

}  // namespace tutti
