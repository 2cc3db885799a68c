#include "plan/verifier/budget.h"

#include <string>

#include "tutti/error.h"

namespace tutti::plan {

void Budget::refuse_steps() const {
  throw_error(ErrorKind::kUnsupported,
              "not proven: the proof needs more than " + std::to_string(limits_.steps) + " steps");
}

void Budget::refuse_bytes() const {
  throw_error(ErrorKind::kUnsupported,
              "not proven: the proof needs more than " + std::to_string(limits_.bytes >> 20) + " MB of memory");
}

}  // namespace tutti::plan
