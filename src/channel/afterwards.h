// What runs when all ops of a port that have ended together are done, on the thread that drove them: callbacks of the
// program, which may wait for any of those ops.
//
// Ownership: objects are the callers'. Thread rule: each thread has a list of its own, which only it sees.
#pragma once

namespace tutti {

class Afterwards {
 public:
  virtual void run_afterwards() noexcept = 0;

  // From an on_done (channel/message_port.h). The object is alive until it has run.
  static void add(Afterwards& what) noexcept;
  // What this thread still has to run: a wait on it may be for what they do.
  static void run_here() noexcept;

 protected:
  ~Afterwards() = default;

 private:
  Afterwards* next_ = nullptr;
};

}  // namespace tutti
