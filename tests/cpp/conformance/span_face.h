// A face by the recipe of docs/contributing.md, as small as one can be: groups for programs whose data lie in spans and
// vectors. It needs the public headers and libtutti.so alone.
//
// Thread rule: that of tutti::Communicator. Errors: see translated().
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <vector>

#include "tutti/group_id.h"

namespace span_face {

// `work()`, with an Error as what users of this face expect.
template <class Work>
auto translated(const Work& work) {
  try {
    return work();
  } catch (const tutti::Error& error) {
    if (error.kind() == tutti::ErrorKind::kInvalidArgument) throw std::invalid_argument(error.what());
    if (error.kind() != tutti::ErrorKind::kTimeout) throw std::runtime_error(error.what());
    throw std::system_error(std::make_error_code(std::errc::timed_out), error.what());
  }
}

template <class T>
constexpr tutti::DataType type_of() {
  if constexpr (std::is_same_v<T, float>) return tutti::DataType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return tutti::DataType::kFloat64;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "spans of float or double");
}

template <class T>
tutti::Call sum_of(std::span<T> data) {
  const tutti::Blocks block = tutti::Blocks::single(data.data(), data.size_bytes());
  return {.collective = tutti::Collective::kAllReduce,
          .dtype = type_of<T>(),
          .count = data.size(),
          .input = block,
          .output = block};
}

class Team {
 public:
  Team(const tutti::GroupId& id, int rank, int size)
      : group_(translated([&] {
          return tutti::join_group(
              id, rank, size, [] { return tutti::CommunicatorOptions{.config = tutti::config_from_environment()}; });
        })) {}

  template <class T>
  void sum(std::span<T> data) {
    translated([&] { group_->run(sum_of(data)); });
  }
  // The vector lives until the Work is done, whatever the caller does with it.
  template <class T>
  tutti::WorkPtr start_sum(const std::shared_ptr<std::vector<T>>& data) {
    return translated([&] { return group_->submit(sum_of(std::span(*data)), {}, data); });
  }

 private:
  std::shared_ptr<tutti::Communicator> group_;
};

}  // namespace span_face
