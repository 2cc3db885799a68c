// Groups: made, split, shrunk, ended.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/no_memory.h"
#include "c/boundary.h"
#include "tutti/group_id.h"

namespace {

using tutti::c::guarded;
using tutti::c::required;

static_assert(sizeof(tutti_id) == tutti::kGroupIdBytes);

tutti::CommunicatorOptions options_of(const tutti_options* given) {
  tutti::CommunicatorOptions options;
  options.config = tutti::config_from_environment();
  if (given == nullptr) return options;
  if (given->size < sizeof(tutti_options) || given->timeout_ms < 0) {
    tutti::throw_error(tutti::ErrorKind::kInvalidArgument,
                       "tutti_group_create: options.size is not sizeof(tutti_options), or the timeout is negative");
  }
  if (given->timeout_ms > 0) options.timeout = std::chrono::milliseconds(given->timeout_ms);
  if (given->name != nullptr) options.name = given->name;
  return options;
}

tutti::GroupId bytes_of(const tutti_id* id, const char* function) {
  tutti::GroupId bytes;
  std::memcpy(bytes.data(), required(id, function, "id").bytes, bytes.size());
  return bytes;
}

}  // namespace

tutti_result tutti_make_id(const char* address, tutti_id* id) {
  return guarded([&] {
    tutti_id& result = required(id, "tutti_make_id", "id");
    const tutti::GroupId made =
        tutti::make_group_id(tutti::config_from_environment(), address != nullptr ? address : "");
    std::memcpy(result.bytes, made.data(), made.size());
  });
}

tutti_result tutti_group_create(const tutti_id* id, int rank, int size, const tutti_options* options,
                                tutti_group** group) {
  return guarded([&] {
    tutti_group*& result = required(group, "tutti_group_create", "group");
    result = nullptr;
    const tutti::GroupId bytes = bytes_of(id, "tutti_group_create");
    auto made = tutti::naming_want(
        [] { return std::make_unique<tutti_group>(); },
        [] { return std::string("tutti_group_create: no memory. Nothing has been sent: free some and call again"); });
    made->communicator = tutti::join_group(bytes, rank, size, [options] { return options_of(options); });
    result = made.release();
  });
}

tutti_result tutti_group_split(tutti_group* group, int color, int key, const char* name, tutti_group** part) {
  return guarded([&] {
    tutti_group*& result = required(part, "tutti_group_split", "part");
    result = nullptr;
    tutti::Communicator& parent = *required(group, "tutti_group_split", "group").communicator;
    auto made = std::make_unique<tutti_group>();
    made->communicator = tutti::split_group(
        parent, color, key, name != nullptr ? name : parent.name() + " with color " + std::to_string(color));
    if (made->communicator != nullptr) result = made.release();
  });
}

tutti_result tutti_group_shrink(tutti_group* group, const tutti_id* id, int64_t timeout_ms, int* members,
                                tutti_group** smaller) {
  return guarded([&] {
    tutti_group*& result = required(smaller, "tutti_group_shrink", "smaller");
    result = nullptr;
    tutti::Communicator& whole = *required(group, "tutti_group_shrink", "group").communicator;
    const tutti::GroupId bytes = bytes_of(id, "tutti_group_shrink");
    auto made = std::make_unique<tutti_group>();
    std::vector<int> ranks;
    made->communicator = tutti::shrink_group(whole, bytes, std::chrono::milliseconds(timeout_ms), &ranks);
    if (members != nullptr) std::ranges::copy(ranks, members);
    result = made.release();
  });
}

void tutti_group_destroy(tutti_group* group) {
  const std::unique_ptr<tutti_group> ended(group);
  if (ended != nullptr) ended->communicator->shutdown();
}

void tutti_group_abort(tutti_group* group, const char* reason) {
  static_cast<void>(guarded([&] {
    required(group, "tutti_group_abort", "group").communicator->abort(reason != nullptr ? reason : "no reason given");
  }));
}

int tutti_group_rank(const tutti_group* group) { return group != nullptr ? group->communicator->rank() : -1; }
int tutti_group_size(const tutti_group* group) { return group != nullptr ? group->communicator->size() : -1; }
