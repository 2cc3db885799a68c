#include "tools/probe_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "base/futex.h"

namespace tutti {

void reach_stage(ProbePage& page, std::uint32_t stage) noexcept {
  page.stage.store(stage, std::memory_order_release);
  futex_wake_all(&page.stage);
}

bool await_stage(ProbePage& page, std::uint32_t stage) noexcept {
  const std::int64_t end = now_ns() + kProbeNs;
  for (;;) {
    const std::uint32_t seen = page.stage.load(std::memory_order_acquire);
    if (seen >= stage) return true;
    const std::int64_t left = end - now_ns();
    if (left <= 0) return false;
    // In slices: where futexes do not cross processes, a probe still ends, and says so by its duration.
    futex_wait(&page.stage, seen, std::min<std::int64_t>(left, 100'000'000));
  }
}

Child::Child(const std::function<void()>& body) noexcept {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) body();
  ::_exit(0);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

ProbeMemory::ProbeMemory()
    : fd_(create_memfd("tutti-probe", kPageBytes)),
      mapping_(Mapping::shared(fd_.get(), kPageBytes)),
      page_(new (mapping_.data()) ProbePage) {}

}  // namespace tutti
