#include "base/interruption.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// A wait may wake very often; asking an interpreter takes its lock.
constexpr std::int64_t kSeldomNs = 5'000'000;

thread_local Interruption* innermost = nullptr;

}  // namespace

Interruption::Interruption(RunHandlers run, Abort abort) noexcept
    : run_(run), abort_(std::move(abort)), outer_(innermost) {
  innermost = this;
}

Interruption::~Interruption() { innermost = outer_; }

bool Interruption::go_on() noexcept {
  if (raised_ != nullptr || elsewhere_) return false;
  const std::int64_t now = now_ns();
  if (now - asked_ns_ < kSeldomNs || !on_main_thread()) return true;
  asked_ns_ = now;
  const pid_t process = ::getpid();
  std::string name;
  std::exception_ptr raised = run_(name);
  elsewhere_ = ::getpid() != process;
  if (elsewhere_) return false;
  if (raised == nullptr) return true;
  raised_ = std::move(raised);
  if (abort_) abort_("interrupted by " + name);
  return false;
}

bool go_on_waiting() noexcept { return innermost == nullptr || innermost->go_on(); }

bool must_ask() noexcept { return innermost != nullptr; }

bool waits_in_fork() noexcept { return innermost != nullptr && innermost->elsewhere(); }

void throw_if_interrupted(const std::string& who) {
  if (!go_on_waiting()) throw_error(ErrorKind::kAborted, who + " was interrupted");
}

}  // namespace tutti
