// Reductions, broadcast and barriers.
#include <algorithm>

#include "aten/signals.h"
#include "aten/sparse.h"
#include "base/registry.h"
#include "torch/issue.h"

namespace tutti::face {
namespace {

using c10d::OpType;

// Coalesced tensors below this go through one flat buffer; larger ones gain nothing from a copy.
constexpr std::size_t kFlattenBelowBytes = 64 << 10;

void build_all_reduce(Prepared& prepared, const at::Tensor& tensor, const Reduction& reduction) {
  prepared.describe(Collective::kAllReduce, tensor);
  prepared.reduce_by(reduction);
  prepared.call.input = Blocks::single(prepared.output(tensor, /*read=*/true), Prepared::bytes_of(tensor));
  prepared.call.output = prepared.call.input;
}

// Which of the coalesced tensors are reduced together: the small ones of one dtype, in order of appearance. By what all
// ranks know alone: where a tensor lies is each rank's own.
using Parts = std::vector<std::vector<at::Tensor>>;

Parts parts_of(const std::vector<at::Tensor>& tensors) {
  // Of all before any is looked into: the memory of one whose storage was cut off may be another's by now.
  for (const at::Tensor& tensor : tensors) require_dense(tensor, "all_reduce_coalesced");
  Parts parts;
  std::vector<std::pair<at::ScalarType, std::size_t>> flat;  // dtype -> index in the parts
  for (const auto& tensor : tensors) {
    if (Prepared::bytes_of(tensor) >= kFlattenBelowBytes) {
      parts.push_back({tensor});
      continue;
    }
    auto found = std::find_if(flat.begin(), flat.end(), [&](const auto& f) { return f.first == tensor.scalar_type(); });
    if (found == flat.end()) {
      flat.emplace_back(tensor.scalar_type(), parts.size());
      parts.push_back({tensor});
    } else {
      parts[found->second].push_back(tensor);
    }
  }
  return parts;
}

// Whether some may share memory, a tensor that is given twice among them.
bool any_overlap(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<const std::byte*, const std::byte*>> extents;
  extents.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage() || tensor.numel() == 0) continue;
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * tensor.itemsize(); };
    const auto* const begin = static_cast<const std::byte*>(tensor.storage().data()) + bytes(tensor.storage_offset());
    extents.emplace_back(begin, begin + bytes(extent_of(tensor)));
  }
  std::ranges::sort(extents);
  return std::ranges::adjacent_find(extents, [](const auto& a, const auto& b) { return b.first < a.second; }) !=
         extents.end();
}

void build_flat_all_reduce(Prepared& prepared, const std::vector<at::Tensor>& tensors, const Reduction& reduction) {
  prepared.describe(Collective::kAllReduce, tensors.front());
  prepared.reduce_by(reduction);
  prepared.call.input = prepared.call.output = prepared.flatten(tensors);
}

}  // namespace

int ProcessGroupTutti::checked_root(int64_t root, const char* call) const {
  if (root >= 0 && root < size_) return static_cast<int>(root);
  refuse(std::string(call) + ": root " + std::to_string(root) + " is not in [0, " + std::to_string(size_) + ")");
}

C10dWorkPtr ProcessGroupTutti::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  if (tensor.is_sparse()) return run_sparse(tensor, options);
  require_dense(tensor, "all_reduce");
  const Reduction reduction = to_reduction(options.reduceOp, tensors);
  return issue({"tutti:all_reduce", OpType::ALLREDUCE}, tensors, tensors, options.asyncOp, options.timeout,
               [&](Prepared& prepared) { build_all_reduce(prepared, tensor, reduction); });
}

C10dWorkPtr ProcessGroupTutti::allreduce_into(at::Tensor& output, const at::Tensor& input,
                                              const c10d::AllreduceOptions& options) {
  constexpr const char* kCall = "all_reduce_into";
  require_dense(input, kCall);
  require_same_dtype(output, input, kCall);
  if (output.sizes() != input.sizes()) refuse(std::string(kCall) + ": input and output must have one shape");
  const Reduction reduction = to_reduction(options.reduceOp, output);
  return issue({"tutti:all_reduce", OpType::ALLREDUCE}, input, output, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kAllReduce, input);
                 prepared.reduce_by(reduction);
                 prepared.call.input = prepared.single_input(input);
                 prepared.call.output = prepared.single_output(output);
               });
}

C10dWorkPtr ProcessGroupTutti::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run_sparse(only(tensors, "all_reduce"), options);
}

// The sizes of the later exchanges depend on the first one's result, so all of it runs here, also when it was asked
// for asynchronously.
C10dWorkPtr ProcessGroupTutti::run_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& options) {
  if (tensor.is_cuda()) {  // indices are sorted and merged on the host, whichever device they come from
    at::Tensor host = tensor.cpu();
    run_sparse(host, options);
    tensor.copy_(host);
    return c10::make_intrusive<CompletedWork>(rank_, OpType::_ALLREDUCE_SPARSE, tensor);
  }
  SparseReduction reduction(tensor, options.reduceOp, rank_, size_);
  const Event event{"tutti:sparse_all_reduce", OpType::_ALLREDUCE_SPARSE};
  for (bool first = true; reduction.next(); first = false) {
    if (first) {
      run_reported(event, tensor, reduction.call(), options.timeout);
    } else {
      run_here(reduction.call(), options.timeout);
    }
  }
  reduction.finish();
  return c10::make_intrusive<CompletedWork>(rank_, event.op, tensor);
}

C10dWorkPtr ProcessGroupTutti::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (tensors.empty()) refuse("all_reduce_coalesced takes at least one tensor");
  const Reduction reduction = to_reduction(options.reduceOp, tensors);
  const Parts parts = parts_of(tensors);
  const bool overlap = any_overlap(tensors);  // then each is read before any is written
  return issue_many({"tutti:all_reduce", OpType::ALLREDUCE_COALESCED}, tensors, tensors, options.asyncOp,
                    options.timeout, parts.size(), [&](std::size_t i, Prepared& prepared) {
                      if (parts[i].size() == 1 && !overlap) {
                        build_all_reduce(prepared, parts[i].front(), reduction);
                      } else {
                        build_flat_all_reduce(prepared, parts[i], reduction);
                      }
                    });
}

C10dWorkPtr ProcessGroupTutti::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only_dense(tensors, "reduce");
  const int root = checked_root(options.rootRank, "reduce");
  const Reduction reduction = to_reduction(options.reduceOp, tensors);
  return issue(
      {"tutti:reduce", OpType::REDUCE}, tensors, tensors, options.asyncOp, options.timeout, [&](Prepared& prepared) {
        prepared.describe(Collective::kReduce, tensor);
        prepared.reduce_by(reduction);
        prepared.call.root = root;
        if (rank_ == root) {
          prepared.call.input = Blocks::single(prepared.output(tensor, /*read=*/true), Prepared::bytes_of(tensor));
          prepared.call.output = prepared.call.input;
        } else {
          prepared.call.input = prepared.single_input(tensor);
        }
      });
}

C10dWorkPtr ProcessGroupTutti::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only_dense(tensors, "broadcast");
  const int root = checked_root(options.rootRank, "broadcast");
  return issue({"tutti:broadcast", OpType::BROADCAST}, tensors, tensors, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kBroadcast, tensor);
                 prepared.call.root = root;
                 prepared.call.input = rank_ == root ? prepared.single_input(tensor) : prepared.single_output(tensor);
                 prepared.call.output = prepared.call.input;
               });
}

// On a GPU as on the CPU: the host waits, here for its current stream first. So what every rank has enqueued before is
// done when one leaves. PyTorch does not hand on which device is meant: it is the GPU that the group has made calls on.
C10dWorkPtr ProcessGroupTutti::barrier(const c10d::BarrierOptions& options) {
  if (!forked_child()) drain_cuda();
  return issue({"tutti:barrier", OpType::BARRIER}, {}, {}, options.asyncOp, options.timeout,
               [](Prepared& prepared) { prepared.call.collective = Collective::kBarrier; });
}

void ProcessGroupTutti::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const bool unset = options.timeout == c10d::kUnsetTimeout;
  if (!unset && options.timeout.count() <= 0) {
    throw_backend_error("Rank " + std::to_string(rank_) + " timed out in monitoredBarrier after " +
                        std::to_string(options.timeout.count()) + " ms.");
  }
  const auto timeout = unset ? communicator_->timeout() : options.timeout;
  translated(
      [&] { interruptible(*communicator_, [&] { communicator_->monitored_barrier(timeout, wait_all_ranks); }); });
}

}  // namespace tutti::face
