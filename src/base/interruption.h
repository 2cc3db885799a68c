// How a program's signals are handled while one of its threads waits in the library.
//
// The system runs only a stub of a handler that an interpreter has been given; the handler itself runs when the
// interpreter is next asked. So a face wraps the calls that may wait in interruptible(), and a wait asks between its
// sleeps, by go_on_waiting(): never while it polls, so a call that does not sleep pays for nothing. A handler that
// returns lets the wait go on. One that raises ends it: what is waited for is aborted, and its exception is the call's.
//
// Ownership: an Interruption lives on the stack of the thread that makes the call. Thread rule: each belongs to its
// thread; they nest, for a handler may make calls of its own. Handlers run on the main thread of the process, and with
// none of the library's locks held but the order of the calls of the group that waits.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace tutti {

// Wakes a wait that nothing else wakes, to ask.
inline constexpr std::int64_t kAskEveryMs = 50;

class Interruption {
 public:
  // Runs the handlers of the signals that have come. Gives what one of them has raised, and its name; else null.
  using RunHandlers = std::exception_ptr (*)(std::string& name) noexcept;
  // Ends what is waited for on this thread; may be empty where the wait itself gives up. Must not throw.
  using Abort = std::function<void(const std::string& reason)>;

  Interruption(RunHandlers run, Abort abort) noexcept;
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // False once a handler has raised.
  bool go_on() noexcept;
  // A fork by a handler has come here, into the child: what is waited for is the parent's.
  bool elsewhere() const noexcept { return elsewhere_; }
  // Throws what a handler has raised, if one has.
  void rethrow() const {
    if (raised_ != nullptr) std::rethrow_exception(raised_);
  }

 private:
  const RunHandlers run_;
  const Abort abort_;
  Interruption* const outer_;
  std::int64_t asked_ns_ = 0;
  bool elsewhere_ = false;
  std::exception_ptr raised_;
};

// Whether the wait on this thread goes on. To be asked after each sleep, with no lock held that a handler may take.
bool go_on_waiting() noexcept;

// Whether this thread's waits must ask now and then, at least every kAskEveryMs.
bool must_ask() noexcept;

// go_on_waiting() for waits that throw: Error(kAborted) saying that `who` was interrupted.
void throw_if_interrupted(const std::string& who);

// Whether this thread's wait has come into a forked child by a handler: nothing is to be said in the parent's name.
bool waits_in_fork() noexcept;

// `call()`, whose waits run the program's handlers. What a handler raises takes precedence over what the call does.
template <class Call>
std::invoke_result_t<Call> interruptible(Interruption::RunHandlers run, Interruption::Abort abort, Call&& call) {
  Interruption here(run, std::move(abort));
  if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
    try {
      call();
    } catch (...) {
      here.rethrow();
      throw;
    }
    here.rethrow();
  } else {
    auto result = [&] {
      try {
        return call();
      } catch (...) {
        here.rethrow();
        throw;
      }
    }();
    here.rethrow();
    return result;
  }
}

}  // namespace tutti
