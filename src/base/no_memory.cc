#include "base/no_memory.h"

namespace tutti {
namespace {

// Never destroyed: whoever fails while the process ends may still say so.
const Error& nothing_more = *new Error(ErrorKind::kExhausted, "no memory: free some, or start with more");

}  // namespace

const Error& no_memory_to_say_more() noexcept { return nothing_more; }

}  // namespace tutti
