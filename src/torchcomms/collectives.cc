// Collectives: the arguments of TorchComms as those of c10d.
#include <numeric>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "aten/compat.h"
#include "torchcomms/backend.h"
#include "torchcomms/work.h"

namespace tutti::torchcomms {
namespace {

template <typename Options>
Options with(std::chrono::milliseconds timeout, bool async) {
  Options options;
  options.timeout = timeout.count() > 0 ? timeout : c10d::kUnsetTimeout;
  options.asyncOp = async;
  return options;
}

template <typename Options>
Options with(std::chrono::milliseconds timeout, bool async, int root) {
  Options options = with<Options>(timeout, async);
  options.rootRank = root;
  return options;
}

const at::Tensor* first(const std::vector<at::Tensor>& tensors) { return tensors.empty() ? nullptr : &tensors.front(); }

}  // namespace

c10d::ReduceOp TorchCommTutti::reduction(const comms::ReduceOp& op, const char* operation) const {
  using Theirs = comms::ReduceOp::RedOpType;
  switch (op.type()) {
    case Theirs::SUM:
      return c10d::ReduceOp::SUM;
    case Theirs::PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case Theirs::MIN:
      return c10d::ReduceOp::MIN;
    case Theirs::MAX:
      return c10d::ReduceOp::MAX;
    case Theirs::BAND:
      return c10d::ReduceOp::BAND;
    case Theirs::BOR:
      return c10d::ReduceOp::BOR;
    case Theirs::BXOR:
      return c10d::ReduceOp::BXOR;
    case Theirs::AVG:
      return c10d::ReduceOp::AVG;
    case Theirs::PREMUL_SUM: {
      if (!op.factor().has_value()) refuse(operation, "PREMUL_SUM needs a factor (ReduceOp.PREMUL_SUM(factor))");
      c10d::ReduceOp scaled;
      scaled.op_ = c10d::ReduceOp::PREMUL_SUM;
      scaled.supplement_ = std::visit(
          [](const auto& factor) -> c10::intrusive_ptr<c10d::_SupplementBase> {
            return c10::make_intrusive<face::PremulSumSupplement>(factor);
          },
          *op.factor());
      return scaled;
    }
  }
  refuse(operation, "reduce operation " + std::to_string(static_cast<int>(op.type())) + " is not known: tutti was " +
                        "built for another torchcomms");
}

WorkPtr TorchCommTutti::broadcast(at::Tensor& tensor, int root, bool async, const comms::BroadcastOptions& options) {
  checked_rank(root, "broadcast", "root");
  return run("broadcast", &tensor, async, given(options), [&](c10d::Backend& group) {
    Tensors tensors{tensor};
    return group.broadcast(tensors, with<c10d::BroadcastOptions>(options.timeout, async, root));
  });
}

WorkPtr TorchCommTutti::all_reduce(at::Tensor& tensor, const comms::ReduceOp& op, bool async,
                                   const comms::AllReduceOptions& options) {
  return run("all_reduce", &tensor, async, given(options), [&](c10d::Backend& group) {
    auto call = with<c10d::AllreduceOptions>(options.timeout, async);
    call.reduceOp = reduction(op, "all_reduce");
    Tensors tensors{tensor};
    return group.allreduce(tensors, call);
  });
}

WorkPtr TorchCommTutti::reduce(const at::Tensor& tensor, int root, const comms::ReduceOp& op, bool async,
                               const comms::ReduceOptions& options) {
  checked_rank(root, "reduce", "root");
  return run("reduce", &tensor, async, given(options), [&](c10d::Backend& group) {
    auto call = with<c10d::ReduceOptions>(options.timeout, async, root);
    call.reduceOp = reduction(op, "reduce");
    Tensors tensors{tensor};
    return group.reduce(tensors, call);
  });
}

WorkPtr TorchCommTutti::gather_lists(const char* operation, const Tensors& outputs, const at::Tensor& input, bool async,
                                     const Given& options) {
  return run(operation, &input, async, options, [&](c10d::Backend& group) {
    std::vector<Tensors> lists{outputs};
    Tensors inputs{input};
    return group.allgather(lists, inputs, with<c10d::AllgatherOptions>(options.timeout, async));
  });
}

WorkPtr TorchCommTutti::all_gather(const Tensors& outputs, const at::Tensor& input, bool async,
                                   const comms::AllGatherOptions& options) {
  for (const at::Tensor& output : outputs) {
    if (output.numel() == input.numel()) continue;
    refuse("all_gather", "an output has " + std::to_string(output.numel()) + " elements, the input " +
                             std::to_string(input.numel()) + ": all_gather_v takes different sizes");
  }
  return gather_lists("all_gather", outputs, input, async, given(options));
}

WorkPtr TorchCommTutti::all_gather_v(const Tensors& outputs, const at::Tensor& input, bool async,
                                     const comms::AllGatherOptions& options) {
  return gather_lists("all_gather_v", outputs, input, async, given(options));
}

WorkPtr TorchCommTutti::all_gather_single(at::Tensor& output, const at::Tensor& input, bool async,
                                          const comms::AllGatherSingleOptions& options) {
  return run("all_gather_single", &input, async, given(options), [&](c10d::Backend& group) {
    at::Tensor given = input;
    return group._allgather_base(output, given, with<c10d::AllgatherOptions>(options.timeout, async));
  });
}

WorkPtr TorchCommTutti::scatter_lists(const char* operation, at::Tensor& output, const Tensors& inputs,
                                      const comms::ReduceOp& op, bool async, const Given& options) {
  return run(operation, &output, async, options, [&](c10d::Backend& group) {
    auto call = with<c10d::ReduceScatterOptions>(options.timeout, async);
    call.reduceOp = reduction(op, operation);
    Tensors outputs{output};
    std::vector<Tensors> lists{inputs};
    return group.reduce_scatter(outputs, lists, call);
  });
}

WorkPtr TorchCommTutti::reduce_scatter(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                                       const comms::ReduceScatterOptions& options) {
  for (const at::Tensor& input : inputs) {
    if (input.numel() == output.numel()) continue;
    refuse("reduce_scatter", "an input has " + std::to_string(input.numel()) + " elements, the output " +
                                 std::to_string(output.numel()) + ": reduce_scatter_v takes different sizes");
  }
  return scatter_lists("reduce_scatter", output, inputs, op, async, given(options));
}

WorkPtr TorchCommTutti::reduce_scatter_v(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op,
                                         bool async, const comms::ReduceScatterOptions& options) {
  return scatter_lists("reduce_scatter_v", output, inputs, op, async, given(options));
}

WorkPtr TorchCommTutti::reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const comms::ReduceOp& op,
                                              bool async, const comms::ReduceScatterSingleOptions& options) {
  return run("reduce_scatter_single", &output, async, given(options), [&](c10d::Backend& group) {
    auto call = with<c10d::ReduceScatterOptions>(options.timeout, async);
    call.reduceOp = reduction(op, "reduce_scatter_single");
    at::Tensor given = input;
    return group._reduce_scatter_base(output, given, call);
  });
}

WorkPtr TorchCommTutti::all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async,
                                          const comms::AllToAllSingleOptions& options) {
  return run("all_to_all_single", &input, async, given(options), [&](c10d::Backend& group) {
    at::Tensor given = input;
    std::vector<std::int64_t> equal_outputs, equal_inputs;
    return group.alltoall_base(output, given, equal_outputs, equal_inputs,
                               with<c10d::AllToAllOptions>(options.timeout, async));
  });
}

WorkPtr TorchCommTutti::all_to_all_v_single(at::Tensor& output, const at::Tensor& input, const Splits& output_splits,
                                            const Splits& input_splits, bool async,
                                            const comms::AllToAllvSingleOptions& options) {
  constexpr const char* kOperation = "all_to_all_v_single";
  // TorchComms lets the splits end before the tensor does; the rest is not touched.
  const auto used = [&](const at::Tensor& tensor, const Splits& splits, const char* which) {
    if (splits.size() != static_cast<std::size_t>(size_)) {
      refuse(kOperation, "there are " + std::to_string(splits.size()) + " " + which + " split sizes, one for each of " +
                             std::to_string(size_) + " ranks is needed");
    }
    const auto rows = tensor.dim() == 0 ? 0 : static_cast<std::uint64_t>(tensor.size(0));
    std::uint64_t sum = 0;
    for (const std::uint64_t split : splits) {
      if (split > rows - sum) {
        refuse(kOperation, std::string("the ") + which + " split sizes are more than the tensor's " +
                               std::to_string(rows) + " rows");
      }
      sum += split;
    }
    return sum == rows ? tensor : tensor.narrow(0, 0, static_cast<std::int64_t>(sum));
  };
  ready(kOperation);
  at::Tensor into = used(output, output_splits, "output");
  at::Tensor from = used(input, input_splits, "input");
  return run(kOperation, &input, async, given(options), [&](c10d::Backend& group) {
    std::vector<std::int64_t> outputs(output_splits.begin(), output_splits.end());
    std::vector<std::int64_t> inputs(input_splits.begin(), input_splits.end());
    return group.alltoall_base(into, from, outputs, inputs, with<c10d::AllToAllOptions>(options.timeout, async));
  });
}

WorkPtr TorchCommTutti::all_to_all(const Tensors& outputs, const Tensors& inputs, bool async,
                                   const comms::AllToAllOptions& options) {
  return run("all_to_all", first(inputs), async, given(options), [&](c10d::Backend& group) {
    Tensors into = outputs;
    Tensors from = inputs;
    return group.alltoall(into, from, with<c10d::AllToAllOptions>(options.timeout, async));
  });
}

// On a GPU a call on the current stream like any other, so that it can be asynchronous and captured: a sum of zeros.
// One that is neither makes the host wait, too.
WorkPtr TorchCommTutti::barrier(bool async, const comms::BarrierOptions& options) {
  constexpr const char* kOperation = "barrier";
  if (!device_.is_cuda()) {
    return run(kOperation, nullptr, async, given(options), [&](c10d::Backend& group) {
      auto call = with<c10d::BarrierOptions>(options.timeout, async);
      call.device = device_;
      return group.barrier(call);
    });
  }
  ready(kOperation);
  return run(kOperation, &nothing_, async, given(options), [&](c10d::Backend& group) {
    Tensors tensors{nothing_};
    const bool host = !async && !capturing(device_);
    auto call = group.allreduce(tensors, with<c10d::AllreduceOptions>(options.timeout, /*async=*/async || host));
    if (host) call->wait(kAsLongAsTheCall);
    return call;
  });
}

WorkPtr TorchCommTutti::scatter(at::Tensor& output, const Tensors& inputs, int root, bool async,
                                const comms::ScatterOptions& options) {
  checked_rank(root, "scatter", "root");
  return run("scatter", &output, async, given(options), [&](c10d::Backend& group) {
    Tensors outputs{output};
    std::vector<Tensors> lists;
    if (rank_ == root) lists.push_back(inputs);
    return group.scatter(outputs, lists, with<c10d::ScatterOptions>(options.timeout, async, root));
  });
}

WorkPtr TorchCommTutti::gather(const Tensors& outputs, const at::Tensor& input, int root, bool async,
                               const comms::GatherOptions& options) {
  checked_rank(root, "gather", "root");
  return run("gather", &input, async, given(options), [&](c10d::Backend& group) {
    std::vector<Tensors> lists;
    if (rank_ == root) lists.push_back(outputs);
    Tensors inputs{input};
    return group.gather(lists, inputs, with<c10d::GatherOptions>(options.timeout, async, root));
  });
}

WorkPtr TorchCommTutti::gather_single(at::Tensor& output, const at::Tensor& input, int root, bool async,
                                      const comms::GatherSingleOptions& options) {
  constexpr const char* kOperation = "gather_single";
  ready(kOperation);
  checked_rank(root, kOperation, "root");
  Tensors parts;
  if (rank_ == root) {
    if (output.dim() == 0 || output.numel() != input.numel() * size_ || output.size(0) % size_ != 0) {
      refuse(kOperation, "the output has " + std::to_string(output.numel()) + " elements; " +
                             std::to_string(input.numel() * size_) + " are needed, whose first dimension divides by " +
                             std::to_string(size_) + " ranks");
    }
    parts = output.chunk(size_, 0);
  }
  comms::GatherOptions gather_options;
  gather_options.timeout = options.timeout;
  gather_options.hints = options.hints;
  return gather(parts, input, root, async, gather_options);
}

TorchCommTutti::AllGatherPHandle TorchCommTutti::all_gather_p_init(at::Tensor& output,
                                                                   const comms::AllGatherPInitOptions& options) {
  constexpr const char* kOperation = "all_gather_p_init";
  ready(kOperation);
  refuse_if(kOperation, wrong_hint_of_call(options.hints));
  if (!output.defined() || output.numel() % size_ != 0) {
    refuse(kOperation, "the output's elements must divide by the " + std::to_string(size_) + " ranks");
  }
  auto* const handle = new Persistent{output};
  persistent_.insert(handle);
  return handle;
}

WorkPtr TorchCommTutti::all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async,
                                          const comms::AllGatherPExecOptions& options) {
  if (persistent_.count(handle) == 0) {
    refuse("all_gather_p_exec", "the handle is not one of this communicator's all_gather_p_init, or was freed");
  }
  comms::AllGatherSingleOptions call;
  call.timeout = options.timeout;
  call.hints = options.hints;
  return all_gather_single(static_cast<Persistent*>(handle)->output, input, async, call);
}

void TorchCommTutti::all_gather_p_free(AllGatherPHandle handle) {
  if (persistent_.erase(handle) == 0) {
    refuse("all_gather_p_free", "the handle is not one of this communicator's all_gather_p_init, or was freed");
  }
  delete static_cast<Persistent*>(handle);
}

}  // namespace tutti::torchcomms
