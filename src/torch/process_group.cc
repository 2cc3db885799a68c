#include "torch/process_group.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <new>
#include <utility>

#include "aten/allocator.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "aten/tensors.h"
#include "base/interruption.h"
#include "base/names.h"
#include "base/registry.h"
#include "bootstrap/exchange.h"
#include "communicator/subgroup.h"
#include "interpreter/without_python.h"
#include "torch/store_adapter.h"
#include "tutti/config.h"

namespace tutti::face {
namespace {

// torch.distributed.SHRINK_ABORT
constexpr int kShrinkAbort = 1;

CommunicatorOptions communicator_options(const GroupOptions& options, const std::string& id) {
  if (!options.refused.empty()) throw_error(ErrorKind::kInvalidArgument, options.refused);
  CommunicatorOptions result;
  result.config = config_from_environment();
  if (!options.algorithm.empty()) result.config.algorithm = options.algorithm;
  result.timeout = options.timeout;
  result.name = options.group_name.empty() ? id : options.group_name;
  return result;
}

std::shared_ptr<Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store, const std::string& id,
                                                int rank, int size, const GroupOptions& options) {
  return translated([&] {
    StoreAdapter adapter(store);
    return interruptible([&] {
      const auto settings = telling(adapter, id, rank, [&] { return communicator_options(options, id); });
      return Communicator::create(adapter, id, rank, size, settings);
    });
  });
}

std::shared_ptr<DeviceCommunicator> make_devices(Communicator& communicator, const GroupOptions& options) {
  DeviceOptions result;
  result.lasting_streams = true;  // cuda_streams.h
  result.config = communicator.options().config;
  if (options.max_blocks > 0) result.config->cuda_max_blocks = options.max_blocks;
  return DeviceCommunicator::create("cuda", communicator, result);
}

constexpr const char* kWant = "it has no memory to form the group";

// `make(id)` with what `name()` gives: a group that forms. Want of memory is told to the others by `tell(id)`.
template <class Name, class Make, class Tell>
auto telling_want(const Name& name, const Make& make, const Tell& tell) {
  std::string id;
  try {
    id = name();
    return make(id);
  } catch (const std::bad_alloc&) {
    if (id.empty()) id = name();
    tell(id);
    throw;
  }
}

// The same of a group that forms over the store, of which this rank is `rank`.
template <class Name, class Make>
auto telling_want(const c10::intrusive_ptr<c10d::Store>& store, int rank, const Name& name, const Make& make) {
  return telling_want(name, make, [&](const std::string& id) {
    StoreAdapter adapter(store);
    give_reason(adapter, id, rank, kWant);
  });
}

// False as well where a member is gone.
bool can_still_form_in(Communicator& parent, const std::vector<int>& ranks) noexcept {
  try {
    return can_form_in(parent, ranks);
  } catch (const std::exception&) {
    return false;
  }
}

// A group of some ranks of another: in its messages, or over the store where it has failed. A rank may learn of that in
// the course of it, and others, before they began, may have gone to the store: they are told there. Without a store it
// is no more to be had then.
std::shared_ptr<Communicator> make_part(Communicator& parent, const std::vector<int>& ranks,
                                        const c10::intrusive_ptr<c10d::Store>& store, const std::string& id,
                                        const GroupOptions& options) {
  const auto rank = static_cast<int>(std::ranges::find(ranks, parent.rank()) - ranks.begin());
  const std::string in_store = id + ":" + joined(ranks, ",");  // which keeps what others have said under the same name
  const auto tell = [&](const std::exception& error) {
    if (store == nullptr) return;
    StoreAdapter adapter(store);
    tell_failure(adapter, in_store, rank, error);
  };
  const auto can = [&] {
    try {
      return can_form_in(parent, ranks);
    } catch (const std::exception& error) {  // others may know less, and have gone to the store
      tell(error);
      throw;
    }
  };
  if (!translated(can)) {
    if (store == nullptr) throw_as_torch(*parent.failure());
    return make_communicator(store, in_store, rank, static_cast<int>(ranks.size()), options);
  }
  return translated([&] {
    return interruptible([&] {
      try {
        return form_in(parent, ranks, id, [&] { return communicator_options(options, id); });
      } catch (const std::exception& error) {
        if (!waits_in_fork() && !can_still_form_in(parent, ranks)) tell(error);
        throw;
      }
    });
  });
}

}  // namespace

ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     const std::string& id, const c10::intrusive_ptr<GroupOptions>& options)
    : ProcessGroupTutti(store, make_communicator(store, id, rank, size, *options), id, options) {}

ProcessGroupTutti::ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store,
                                     std::shared_ptr<Communicator> communicator, const std::string& id,
                                     const c10::intrusive_ptr<GroupOptions>& options)
    : c10d::Backend(communicator->rank(), communicator->size()),
      store_(store),
      id_(id),
      options_(options),
      // Owners in C++, a DDP's reducer for one, let go of a group under Python's lock.
      communicator_(ending_without_python(std::move(communicator))),
      cuda_(make_devices(*communicator_, *options)),
      buffers_(*communicator_, cuda_) {}

ProcessGroupTutti::~ProcessGroupTutti() = default;

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupTutti::getBackendOptions() {
  // A copy: torch writes the child's name and timeout into what it gets here.
  auto copy = c10::make_intrusive<GroupOptions>(*options_);
  copy->timeout = communicator_->timeout();
  return copy;
}

void ProcessGroupTutti::setTimeout(Milliseconds timeout) {
  translated([&] {
    communicator_->set_timeout(timeout);
    devices().set_timeout(timeout);
  });
}

void ProcessGroupTutti::set_algorithms(const AlgorithmSet& set) {
  translated([&] {
    interruptible(*communicator_, [&] {
      communicator_->set_algorithms(set);
      devices().set_algorithms(set);
    });
  });
}

std::optional<Error> ProcessGroupTutti::failure() const {
  auto failure = communicator_->failure();
  return failure.has_value() ? failure : devices().failure();
}

Metrics ProcessGroupTutti::metrics() const { return merged_metrics(*communicator_, devices()); }

void ProcessGroupTutti::reset_metrics() noexcept {
  if (forked_child()) return;
  communicator_->reset_metrics();
  devices().reset_metrics();
}

c10d::ErrorType ProcessGroupTutti::getError() {
  const auto poison = failure();
  if (!poison.has_value()) return c10d::ErrorType::SUCCESS;
  switch (poison->kind()) {
    case ErrorKind::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorKind::kPeerLost:
    case ErrorKind::kMismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTutti::abort_because(const std::string& reason) noexcept {
  if (forked_child()) return;
  communicator_->abort(reason);
  devices().abort(reason);
}

void ProcessGroupTutti::shutdown() {
  if (forked_child()) return;
  devices().shutdown();
  interruptible(*communicator_, [&] { communicator_->shutdown(); });
}

std::string ProcessGroupTutti::next_id(const std::string& kind, const std::string& shown) {
  if (forked_child()) throw_as_torch(*communicator_->failure());  // before a lock that the parent may have held
  const std::lock_guard<std::mutex> lock(mutex_);
  int& generation = generations_[kind];
  std::string id = id_ + "/" + shown + "/" + std::to_string(generation);
  ++generation;  // last: whoever has no memory for an id gets the same one when it asks again
  return id;
}

std::string ProcessGroupTutti::next_part(const std::string& name, const std::vector<int>& ranks) {
  const std::string counted = name + ":" + joined(ranks, ",");
  return next_id(counted, name);
}

c10::intrusive_ptr<GroupOptions> ProcessGroupTutti::options_for(
    const c10::intrusive_ptr<c10d::Backend::Options>& options) const {
  auto copy = c10::make_intrusive<GroupOptions>(*options_);
  copy->timeout = communicator_->timeout();
  if (options == nullptr) return copy;
  if (const auto* own = dynamic_cast<const GroupOptions*>(options.get())) {
    copy->algorithm = own->algorithm;
    copy->overlap_futures = own->overlap_futures;
    copy->max_blocks = own->max_blocks;
  }
  copy->timeout = options->timeout;
  copy->group_name = options->group_name;
  copy->group_desc = options->group_desc;
  copy->global_ranks_in_group = options->global_ranks_in_group;
  return copy;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const std::vector<int>& ranks,
                                                           const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) refuse("split: rank " + std::to_string(rank) + " is not in the group");
  }
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  return make_named_part(
      store, ranks, [&] { return "split:" + joined(ranks, ","); }, [&] { return options_for(options); });
}

c10::intrusive_ptr<ProcessGroupTutti> ProcessGroupTutti::make_part(const c10::intrusive_ptr<c10d::Store>& store,
                                                                   const std::vector<int>& ranks,
                                                                   const std::string& name,
                                                                   const c10::intrusive_ptr<GroupOptions>& options) {
  return make_named_part(
      store, ranks, [&] { return name; }, [&] { return options; });
}

c10::intrusive_ptr<ProcessGroupTutti> ProcessGroupTutti::make_named_part(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const std::function<std::string()>& name, const std::function<c10::intrusive_ptr<GroupOptions>()>& options) {
  return telling_want(
      [&] { return next_part(name(), ranks); },
      [&](const std::string& id) {
        const c10::intrusive_ptr<GroupOptions> own = options();
        return c10::make_intrusive<ProcessGroupTutti>(store, face::make_part(*communicator_, ranks, store, id, *own),
                                                      id, own);
      },
      [&](const std::string& id) { tell_in(*communicator_, ranks, id, Error(ErrorKind::kExhausted, kWant)); });
}

void ProcessGroupTutti::tell_want_of_part(const std::vector<int>& ranks, const std::string& name) {
  tell_in(*communicator_, ranks, next_part(name, ranks), Error(ErrorKind::kExhausted, kWant));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTutti::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                                           const int& rank, const int& size) {
  // The groups that merge share nothing but the store, which is the merged group's own.
  return telling_want(
      store, rank, [] { return std::string("merge"); },
      [&](const std::string& id) {
        return c10::make_intrusive<ProcessGroupTutti>(store, rank, size, id, options_for(options));
      });
}

void ProcessGroupTutti::refuse_without_store() const {
  if (store_ == nullptr) refuse("shrink: the group was made without a store, in which its ranks could meet");
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTutti::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                                            const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::vector<int> members;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) == ranks_to_exclude.end()) {
      members.push_back(rank);
    }
  }
  const auto own = std::find(members.begin(), members.end(), rank_);
  if (own == members.end()) refuse("shrink: rank " + std::to_string(rank_) + " excludes itself");
  refuse_without_store();
  if (flags & kShrinkAbort) abort_because("shrink with SHRINK_ABORT");
  const auto rank = static_cast<int>(own - members.begin());
  const auto size = static_cast<int>(members.size());
  return telling_want(
      store_, rank, [&] { return next_id("shrink:" + joined(members, ",")); },
      [&](const std::string& id) {
        return c10::make_intrusive<ProcessGroupTutti>(store_, rank, size, id, options_for(options));
      });
}

std::pair<c10::intrusive_ptr<ProcessGroupTutti>, std::vector<int>> ProcessGroupTutti::shrink_to_survivors(
    Milliseconds timeout) {
  refuse_without_store();
  // Before it counts: ranks that count apart do not meet.
  if (timeout.count() < 0) refuse_negative("shrink", timeout);
  const std::string id = next_id("survivors");
  std::vector<int> members;
  auto smaller = translated([&] {
    StoreAdapter adapter(store_);
    return interruptible([&] { return communicator_->shrink(adapter, id, timeout, &members); });
  });
  return {c10::make_intrusive<ProcessGroupTutti>(store_, std::move(smaller), id, options_for(nullptr)), members};
}

std::shared_ptr<c10::Allocator> ProcessGroupTutti::getMemAllocator() {
  // Never freed: tensors may outlive the group.
  return std::shared_ptr<c10::Allocator>(std::shared_ptr<void>(), &arena_allocator());
}

at::Tensor ProcessGroupTutti::allocateTensor(long size, at::TensorOptions options) {
  return allocate_with(size, options, [](std::int64_t bytes, c10::Device device) {
    try {
      return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    } catch (const c10::OutOfMemoryError&) {
      return at::Tensor();
    }
  });
}

at::Tensor ProcessGroupTutti::allocate_with(long size, const at::TensorOptions& options, GroupBuffers::Source source) {
  if (size < 0) refuse("allocate_tensor: the size is " + std::to_string(size));
  if (options.device().is_cuda()) return translated([&] { return buffers_.allocate(size, options, source); });
  if (!options.device().is_cpu()) refuse("allocate_tensor: tutti allocates CPU and CUDA tensors");
  return empty_in_arena({size}, options.dtype().toScalarType());
}

}  // namespace tutti::face
