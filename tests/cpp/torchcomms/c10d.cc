// The stand-in's part of TorchComms under torch.distributed: a c10d backend over a communicator, as far as tests go.
#include "c10d.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

#include <comms/torchcomms/TorchCommBackend.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

namespace {

using namespace torch::comms;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = std::shared_ptr<TorchCommBackend>;

class WorkWrapper final : public c10d::Work {
 public:
  WorkWrapper(c10::intrusive_ptr<TorchWork> work, Tensors outputs)
      : work_(std::move(work)), outputs_(std::move(outputs)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    work_->wait();
    return true;
  }
  void synchronize() override { work_->wait(); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->future_of(outputs_); }

 private:
  const c10::intrusive_ptr<TorchWork> work_;
  const Tensors outputs_;
};

ReduceOp translated(const c10d::ReduceOp& op) {
  using Type = ReduceOp::RedOpType;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Type::SUM;
    case c10d::ReduceOp::AVG:
      return Type::AVG;
    case c10d::ReduceOp::MIN:
      return Type::MIN;
    case c10d::ReduceOp::MAX:
      return Type::MAX;
    default:
      TORCH_CHECK(false, "the stand-in does not know this operation");
  }
}

template <typename Options, typename Given>
Options with_timeout_of(const Given& given) {
  Options options;
  if (given.timeout.count() > 0) options.timeout = given.timeout;
  return options;
}

class BackendWrapper final : public c10d::Backend {
 public:
  explicit BackendWrapper(BackendPtr comm) : Backend(comm->getRank(), comm->getSize()), comm_(std::move(comm)) {}

  const BackendPtr& comm() const { return comm_; }
  const std::string getBackendName() const override { return std::string(comm_->getBackendName()); }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(getBackendName(), comm_->getOptions().timeout);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { comm_->setTimeout(timeout); }
  // destroy_process_group() has finalized the communicators that it made, by then.
  void shutdown() override {
    if (comm_->isInitialized()) comm_->finalize();
  }
  void abort() override { comm_->abort(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto options = with_timeout_of<BroadcastOptions>(opts);
    return over(comm_->broadcast(tensors.at(0), static_cast<int>(opts.rootRank), opts.asyncOp, options), tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const auto options = with_timeout_of<AllReduceOptions>(opts);
    return over(comm_->all_reduce(tensors.at(0), translated(opts.reduceOp), opts.asyncOp, options), tensors);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto options = with_timeout_of<AllGatherOptions>(opts);
    return over(comm_->all_gather(outputs.at(0), inputs.at(0), opts.asyncOp, options), outputs.at(0));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    const auto options = with_timeout_of<AllGatherSingleOptions>(opts);
    return over(comm_->all_gather_single(output, input, opts.asyncOp, options), {output});
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const auto options = with_timeout_of<ReduceScatterSingleOptions>(opts);
    return over(comm_->reduce_scatter_single(output, input, translated(opts.reduceOp), opts.asyncOp, options),
                {output});
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return over(comm_->barrier(opts.asyncOp, with_timeout_of<BarrierOptions>(opts)), {});
  }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    SendOptions options;
    options.tag = tag;
    return over(comm_->send(tensors.at(0), peer, /*async=*/true, options), {});
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    RecvOptions options;
    options.tag = tag;
    return over(comm_->recv(tensors.at(0), peer, /*async=*/true, options), tensors);
  }

  // The parts meet over the communicator, whatever store torch gives.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& /*store*/, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override {
    BackendPtr part = comm_->split(ranks, opts->group_name, CommOptions());
    if (part == nullptr) return nullptr;
    return c10::make_intrusive<BackendWrapper>(std::move(part));
  }

 private:
  static WorkPtr over(c10::intrusive_ptr<TorchWork> work, Tensors outputs) {
    return c10::make_intrusive<WorkWrapper>(std::move(work), std::move(outputs));
  }

  const BackendPtr comm_;
};

}  // namespace

void bind_c10d(py::module_& module) {
  py::class_<BackendWrapper, c10d::Backend, c10::intrusive_ptr<BackendWrapper>>(module, "_BackendWrapper")
      .def(py::init<BackendPtr>())
      .def("get_comm", &BackendWrapper::comm);
}
