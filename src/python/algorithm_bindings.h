// Algorithms that a program names, and memory that all ranks map: what python/tutti/algorithms stands on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/call.h"
#include "tutti/user_algorithm.h"

namespace tutti {

using AddressAndBytes = std::pair<std::uintptr_t, std::size_t>;

// The call of `size` ranks that `algorithm` computes, on these ends; `op` and `root` may be left to the algorithm.
// Throws Error.
Call named_call(int size, const UserAlgorithm& algorithm, AddressAndBytes input, AddressAndBytes output,
                const std::string& dtype, const std::optional<std::string>& op, int root);

// With a Python function that chooses, or None.
AlgorithmSet algorithm_set(const std::vector<std::shared_ptr<UserAlgorithm>>& algorithms, nanobind::object selector);

void bind_algorithms(nanobind::module_& m);

}  // namespace tutti
