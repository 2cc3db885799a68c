// Collectives that move blocks between ranks: all-gather, gather, scatter, reduce-scatter, all-to-all.
#include "torch/issue.h"

namespace tutti::face {
namespace {

using c10d::OpType;
using TensorList = at::ArrayRef<at::Tensor>;

std::string counts(std::int64_t got, std::int64_t wanted) {
  return "has " + std::to_string(got) + " elements where " + std::to_string(wanted) + " are needed";
}

// The one list of `size` tensors (of `like`'s dtype) that a list collective takes on a rank.
TensorList list_of(const std::vector<std::vector<at::Tensor>>& lists, const at::Tensor& like, int size,
                   const char* call) {
  if (lists.size() != 1 || static_cast<int>(lists.front().size()) != size) {
    refuse(std::string(call) + " takes one list of " + std::to_string(size) + " tensors (one a rank), got " +
           (lists.size() == 1 ? std::to_string(lists.front().size()) + " tensors"
                              : std::to_string(lists.size()) + " lists"));
  }
  for (const auto& tensor : lists.front()) require_same_dtype(tensor, like, call);
  return lists.front();
}

bool all_same_size(TensorList tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.numel() != tensors.front().numel()) return false;
  }
  return true;
}

void require_size(const at::Tensor& tensor, std::int64_t elements, const char* call, const char* which) {
  if (tensor.numel() == elements) return;
  refuse(std::string(call) + ": the " + which + " tensor " + counts(tensor.numel(), elements));
}

void require_rooted_list(bool is_root, bool empty, const char* call, const char* which) {
  if (!is_root && !empty) refuse(std::string(call) + ": only the root passes " + which + " tensors");
}

void build_all_gather_list(Prepared& prepared, const at::Tensor& input, TensorList outputs, bool uneven) {
  prepared.describe(Collective::kAllGather, input);
  prepared.call.uneven = uneven;
  prepared.call.input = prepared.single_input(input);
  prepared.call.output = prepared.output_list(outputs);
}

void check_whole(const at::Tensor& whole, const at::Tensor& part, int size, const char* call, const char* which) {
  require_dense(part, call);
  require_same_dtype(whole, part, call);
  require_size(whole, part.numel() * size, call, which);
}

void build_all_gather_whole(Prepared& prepared, const at::Tensor& output, const at::Tensor& input) {
  prepared.describe(Collective::kAllGather, input);
  prepared.call.input = prepared.single_input(input);
  prepared.call.output = {static_cast<std::byte*>(prepared.output(output)), Prepared::bytes_of(input), nullptr,
                          nullptr};
}

void build_reduce_scatter_whole(Prepared& prepared, const at::Tensor& output, const at::Tensor& input,
                                const Reduction& reduction) {
  prepared.describe(Collective::kReduceScatter, output);
  prepared.reduce_by(reduction);
  prepared.call.input = {static_cast<std::byte*>(prepared.input(input)), Prepared::bytes_of(output), nullptr, nullptr};
  prepared.call.output = prepared.single_output(output);
}

// The rows that each rank gives or gets, as all_to_all_single checks them.
void check_splits(const at::Tensor& tensor, at::ArrayRef<std::int64_t> splits, int size, const char* which) {
  const std::string call = "all_to_all_single: the ";
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    if (tensor.dim() == 0 || rows % size != 0) {
      refuse(call + which + " tensor's first dimension does not divide by " + std::to_string(size) + " ranks");
    }
    return;
  }
  if (static_cast<int>(splits.size()) != size) {
    refuse(call + which + " split sizes are " + std::to_string(splits.size()) + ", one for each of " +
           std::to_string(size) + " ranks is needed");
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) {
    if (split < 0) refuse(call + which + " split sizes must not be negative");
    // More than there are, and the sum might not fit.
    if (split > rows - sum) {
      refuse(call + which + " split sizes add up to more than the " + std::to_string(rows) + " rows of the tensor");
    }
    sum += split;
  }
  if (sum != rows) {
    refuse(call + which + " split sizes add up to " + std::to_string(sum) + ", the tensor has " + std::to_string(rows) +
           " rows");
  }
}

void require_pairs(std::size_t outputs, std::size_t inputs, const char* call) {
  if (outputs != inputs || outputs == 0) refuse(std::string(call) + " takes as many outputs as inputs, at least one");
}

}  // namespace

C10dWorkPtr ProcessGroupTutti::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only_dense(inputs, "all_gather");
  const TensorList list = list_of(outputs, input, size_, "all_gather");
  require_size(list[rank_], input.numel(), "all_gather", "own output");
  const bool uneven = !all_same_size(list);
  return issue({"tutti:all_gather", OpType::ALLGATHER}, inputs, list, options.asyncOp, options.timeout,
               [&](Prepared& prepared) { build_all_gather_list(prepared, input, list, uneven); });
}

C10dWorkPtr ProcessGroupTutti::_allgather_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::AllgatherOptions& options) {
  check_whole(output, input, size_, "all_gather_into_tensor", "output");
  return issue({"tutti:all_gather_into_tensor", OpType::_ALLGATHER_BASE}, input, output, options.asyncOp,
               options.timeout, [&](Prepared& prepared) { build_all_gather_whole(prepared, output, input); });
}

C10dWorkPtr ProcessGroupTutti::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_coalesced";
  if (static_cast<int>(outputs.size()) != size_) refuse(std::string(kCall) + " takes one output list a rank");
  Tensors flat;
  for (const auto& list : outputs) {
    require_pairs(list.size(), inputs.size(), kCall);
    flat.insert(flat.end(), list.begin(), list.end());
  }
  TensorLists by_input(inputs.size());  // the outputs of each input, by rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    require_dense(inputs[i], kCall);
    for (const auto& list : outputs) {
      require_same_dtype(list[i], inputs[i], kCall);
      by_input[i].push_back(list[i]);
    }
    require_size(by_input[i][rank_], inputs[i].numel(), kCall, "own output");
  }
  return issue_many({"tutti:all_gather", OpType::ALLGATHER_COALESCED}, inputs, flat, options.asyncOp, options.timeout,
                    inputs.size(), [&](std::size_t i, Prepared& prepared) {
                      build_all_gather_list(prepared, inputs[i], by_input[i], !all_same_size(by_input[i]));
                    });
}

C10dWorkPtr ProcessGroupTutti::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor_coalesced";
  require_pairs(outputs.size(), inputs.size(), kCall);
  for (std::size_t i = 0; i < inputs.size(); ++i) check_whole(outputs[i], inputs[i], size_, kCall, "output");
  return issue_many({"tutti:all_gather_into_tensor", OpType::ALLGATHER_COALESCED}, inputs, outputs, options.asyncOp,
                    options.timeout, inputs.size(), [&](std::size_t i, Prepared& prepared) {
                      build_all_gather_whole(prepared, outputs[i], inputs[i]);
                    });
}

C10dWorkPtr ProcessGroupTutti::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = only_dense(inputs, "gather");
  const int root = checked_root(options.rootRank, "gather");
  const bool is_root = rank_ == root;
  require_rooted_list(is_root, outputs.empty(), "gather", "output");
  const TensorList list = is_root ? list_of(outputs, input, size_, "gather") : TensorList();
  for (const auto& output : list) require_size(output, input.numel(), "gather", "output");
  return issue({"tutti:gather", OpType::GATHER}, inputs, list, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kGather, input);
                 prepared.call.root = root;
                 prepared.call.input = prepared.single_input(input);
                 if (is_root) prepared.call.output = prepared.output_list(list);
               });
}

C10dWorkPtr ProcessGroupTutti::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = only_dense(outputs, "scatter");
  const int root = checked_root(options.rootRank, "scatter");
  const bool is_root = rank_ == root;
  require_rooted_list(is_root, inputs.empty(), "scatter", "input");
  const TensorList list = is_root ? list_of(inputs, output, size_, "scatter") : TensorList();
  for (const auto& input : list) require_size(input, output.numel(), "scatter", "input");
  return issue({"tutti:scatter", OpType::SCATTER}, list, outputs, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kScatter, output);
                 prepared.call.root = root;
                 if (is_root) prepared.call.input = prepared.input_list(list);
                 prepared.call.output = prepared.single_output(output);
               });
}

C10dWorkPtr ProcessGroupTutti::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                              const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only_dense(outputs, "reduce_scatter");
  const TensorList list = list_of(inputs, output, size_, "reduce_scatter");
  require_size(list[rank_], output.numel(), "reduce_scatter", "own input");
  const Reduction reduction = to_reduction(options.reduceOp, outputs);
  return issue({"tutti:reduce_scatter", OpType::REDUCE_SCATTER}, list, outputs, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kReduceScatter, output);
                 prepared.reduce_by(reduction);
                 prepared.call.uneven = !all_same_size(list);
                 prepared.call.input = prepared.input_list(list);
                 prepared.call.output = prepared.single_output(output);
               });
}

C10dWorkPtr ProcessGroupTutti::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::ReduceScatterOptions& options) {
  check_whole(input, output, size_, "reduce_scatter_tensor", "input");
  const Reduction reduction = to_reduction(options.reduceOp, output);
  return issue({"tutti:reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE}, input, output, options.asyncOp,
               options.timeout,
               [&](Prepared& prepared) { build_reduce_scatter_whole(prepared, output, input, reduction); });
}

C10dWorkPtr ProcessGroupTutti::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                               const c10d::ReduceScatterOptions& options) {
  constexpr const char* kCall = "reduce_scatter_tensor_coalesced";
  require_pairs(outputs.size(), inputs.size(), kCall);
  for (std::size_t i = 0; i < inputs.size(); ++i) check_whole(inputs[i], outputs[i], size_, kCall, "input");
  const Reduction reduction = to_reduction(options.reduceOp, outputs);
  return issue_many({"tutti:reduce_scatter_tensor", OpType::COALESCED}, inputs, outputs, options.asyncOp,
                    options.timeout, inputs.size(), [&](std::size_t i, Prepared& prepared) {
                      build_reduce_scatter_whole(prepared, outputs[i], inputs[i], reduction);
                    });
}

C10dWorkPtr ProcessGroupTutti::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                             std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  require_dense(output, "all_to_all_single");
  require_same_dtype(input, output, "all_to_all_single");
  check_splits(output, output_splits, size_, "output");
  check_splits(input, input_splits, size_, "input");
  const bool uneven = !output_splits.empty() || !input_splits.empty();
  if (!uneven) require_size(output, input.numel(), "all_to_all_single", "output");
  return issue({"tutti:all_to_all", OpType::ALLTOALL_BASE}, input, output, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kAllToAll, input);
                 prepared.call.uneven = uneven;
                 if (!uneven) {
                   const std::size_t bytes = Prepared::bytes_of(input) / static_cast<std::size_t>(size_);
                   prepared.call.count /= static_cast<std::size_t>(size_);
                   prepared.call.input = {static_cast<std::byte*>(prepared.input(input)), bytes, nullptr, nullptr};
                   prepared.call.output = {static_cast<std::byte*>(prepared.output(output)), bytes, nullptr, nullptr};
                 } else {
                   prepared.call.input = prepared.input_rows(input, input_splits, size_);
                   prepared.call.output = prepared.output_rows(output, output_splits, size_);
                 }
               });
}

C10dWorkPtr ProcessGroupTutti::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (static_cast<int>(outputs.size()) != size_ || static_cast<int>(inputs.size()) != size_) {
    refuse("all_to_all takes " + std::to_string(size_) + " outputs and inputs (one a rank), got " +
           std::to_string(outputs.size()) + " and " + std::to_string(inputs.size()));
  }
  for (const auto& tensor : inputs) require_same_dtype(tensor, inputs.front(), "all_to_all");
  for (const auto& tensor : outputs) require_same_dtype(tensor, inputs.front(), "all_to_all");
  return issue({"tutti:all_to_all", OpType::ALLTOALL}, inputs, outputs, options.asyncOp, options.timeout,
               [&](Prepared& prepared) {
                 prepared.describe(Collective::kAllToAll, inputs.front());
                 // Whether the blocks of all pairs are equal is known to no rank alone.
                 prepared.call.uneven = true;
                 prepared.call.input = prepared.input_list(inputs);
                 prepared.call.output = prepared.output_list(outputs);
               });
}

}  // namespace tutti::face
