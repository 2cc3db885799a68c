#include "plan/verifier/budget.h"

#include <string>

#include "base/interruption.h"
#include "tutti/error.h"

namespace tutti::plan {

void Budget::look() {
  if (steps_left_ < 0) refuse_steps();
  throw_if_interrupted("the proof of a plan");
  next_look_ = look_after(steps_left_);
}

void Budget::refuse_steps() const {
  throw_error(ErrorKind::kUnsupported,
              "not proven: the proof needs more than " + std::to_string(limits_.steps) + " steps");
}

void Budget::refuse_bytes() const {
  throw_error(ErrorKind::kUnsupported,
              "not proven: the proof needs more than " + std::to_string(limits_.bytes >> 20) + " MB of memory");
}

}  // namespace tutti::plan
