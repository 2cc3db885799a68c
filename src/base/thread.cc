#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "tutti/error.h"

namespace tutti {
namespace {

thread_local bool library_thread = false;

// A thread inherits the mask of the one that starts it.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

std::thread start(const char* what, std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw_system_error(ErrorKind::kExhausted, std::string("starting the thread ") + what, error.code().value());
  }
}

}  // namespace

std::thread start_thread(const char* what, std::function<void()> body) {
  return start(what, [body = std::move(body)] {
    library_thread = true;
    body();
  });
}

std::thread start_joined_thread(const char* what, std::function<void()> body) { return start(what, std::move(body)); }

bool on_main_thread() noexcept {
#if defined(__APPLE__)
  return ::pthread_main_np() != 0;
#else
  return ::syscall(SYS_gettid) == ::getpid();
#endif
}

bool on_library_thread() noexcept { return library_thread; }

CountsAsLibraryThread::CountsAsLibraryThread() noexcept : before_(std::exchange(library_thread, true)) {}
CountsAsLibraryThread::~CountsAsLibraryThread() { library_thread = before_; }

}  // namespace tutti
