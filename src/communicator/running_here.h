// The collectives that this thread is in, innermost first: one may drive messages, whose callback, or a handler of a
// signal, may make another or wait for one.
//
// Thread rule: each thread has its own; RunningHere::is_in() takes addresses and looks at nothing behind them.
#pragma once

namespace tutti {

class CallRunner;

class RunningHere {
 public:
  // `innermost`: this thread's; a call looks it up once, which costs a call in a shared library.
  RunningHere(const RunningHere*& innermost, const CallRunner* group) noexcept
      : group_(group), outer_(innermost), place_(&innermost) {
    innermost = this;
  }
  ~RunningHere() { *place_ = outer_; }
  RunningHere(const RunningHere&) = delete;
  RunningHere& operator=(const RunningHere&) = delete;

  static const RunningHere*& innermost() noexcept {
    static thread_local const RunningHere* at = nullptr;
    return at;
  }
  static bool is_in(const RunningHere* at, const CallRunner* group) noexcept {
    while (at != nullptr && at->group_ != group) at = at->outer_;
    return at != nullptr;
  }

 private:
  const CallRunner* const group_;
  const RunningHere* const outer_;
  const RunningHere** const place_;
};

}  // namespace tutti
