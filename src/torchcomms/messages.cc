// Messages between two ranks, and batches of them.
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torchcomms/backend.h"

namespace tutti::torchcomms {

using Type = comms::BatchSendRecv::P2POp::OpType;

WorkPtr TorchCommTutti::transfer(const char* operation, at::Tensor tensor, int peer, int tag, bool async,
                                 const Given& options, bool receive) {
  checked_rank(peer, operation, receive ? "source" : "destination");
  return run(
      operation, &tensor, async, options,
      [&](c10d::Backend& group) {
        Tensors tensors{tensor};
        return receive ? group.recv(tensors, peer, tag) : group.send(tensors, peer, tag);
      },
      options.timeout);
}

WorkPtr TorchCommTutti::send(const at::Tensor& tensor, int peer, bool async, const comms::SendOptions& options) {
  return transfer("send", tensor, peer, options.tag, async, given(options), /*receive=*/false);
}

WorkPtr TorchCommTutti::recv(at::Tensor& tensor, int peer, bool async, const comms::RecvOptions& options) {
  return transfer("recv", tensor, peer, options.tag, async, given(options), /*receive=*/true);
}

WorkPtr TorchCommTutti::batch_op_issue(const std::vector<comms::BatchSendRecv::P2POp>& messages, bool async,
                                       const comms::BatchP2POptions& options) {
  constexpr const char* kOperation = "batch_op_issue";
  if (messages.empty()) refuse(kOperation, "the batch is empty: add a send or a recv before issue()");
  for (const auto& message : messages) checked_rank(message.peer, kOperation, "peer");
  return run(
      kOperation, &messages.front().tensor, async, given(options),
      [&](c10d::Backend& group) {
        group.startCoalescing();
        for (const auto& message : messages) {
          Tensors tensors{message.tensor};
          message.type == Type::SEND ? group.send(tensors, message.peer, 0) : group.recv(tensors, message.peer, 0);
        }
        return group.endCoalescing();
      },
      options.timeout);
}

}  // namespace tutti::torchcomms
