// Threads of the library's own.
//
// All signals are blocked on them: a signal belongs to the program, whose handlers run on its own threads.
// Thread rule: any thread.
#pragma once

#include <functional>
#include <thread>

namespace tutti {

// Throws Error(kExhausted) that names `what` the thread is for.
std::thread start_thread(const char* what, std::function<void()> body);

// The same for a part of what the caller does, who joins it before it returns: what ends on it may wait, as on the
// caller's own thread.
std::thread start_joined_thread(const char* what, std::function<void()> body);

// Whether the caller is the thread that the process began with, or that made this process by fork().
bool on_main_thread() noexcept;

// Whether the caller is one of start_thread(), or counts as one: it must not wait for the end of a thread that may be
// itself, or wait for it.
bool on_library_thread() noexcept;

// While it lives, the calling thread counts as one of the library's.
class CountsAsLibraryThread {
 public:
  CountsAsLibraryThread() noexcept;
  ~CountsAsLibraryThread();
  CountsAsLibraryThread(const CountsAsLibraryThread&) = delete;
  CountsAsLibraryThread& operator=(const CountsAsLibraryThread&) = delete;

 private:
  const bool before_;
};

}  // namespace tutti
