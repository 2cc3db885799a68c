// What ranks tell each other before memory is exchanged.
#pragma once

#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti::cuda {

// Of a card that has been read. Throws Error(kInternal) unless all was there.
inline void require_done(const ByteReader& in) {
  if (in.done()) return;
  throw_error(ErrorKind::kInternal, "a rank's card of GPU memory cannot be read: use one version on all ranks");
}

}  // namespace tutti::cuda
