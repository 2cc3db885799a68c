// The headers that a compiled plan includes, kept in the library: they are compiled where no source tree is.
//
// Thread rule: constants.
#pragma once

#include <span>

namespace tutti {

struct EmbeddedFile {
  const char* name;  // by which it is included
  const char* text;
};

std::span<const EmbeddedFile> compiled_plan_headers() noexcept;

}  // namespace tutti
