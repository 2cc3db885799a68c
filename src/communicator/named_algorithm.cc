#include "communicator/named_algorithm.h"

#include <string>

#include "tutti/error.h"

namespace tutti {

void check_computes(const UserAlgorithm& algorithm, const CallShape& shape) {
  const std::string head = "\"" + algorithm.name() + "\" ";
  if (algorithm.collective() && *algorithm.collective() != shape.collective) {
    throw_error(ErrorKind::kInvalidArgument, head + "computes " + std::string(to_string(*algorithm.collective())) +
                                                 ", not " + std::string(to_string(shape.collective)));
  }
  if (shape.uneven) throw_error(ErrorKind::kInvalidArgument, head + "needs blocks of equal size");
}

void refuse_named(const UserAlgorithm& algorithm, const CallShape& shape, const char* reason) {
  if (reason == nullptr) return;
  // A predicate, as "needs blocks of equal size", or a sentence: "rank 0 reaches rank 3 of another host".
  throw_error(ErrorKind::kInvalidArgument, "\"" + algorithm.name() + "\" cannot run this " +
                                               std::string(to_string(shape.collective)) + " of " +
                                               std::to_string(shape.bytes) + " bytes a rank block: " + reason);
}

AlgorithmRequest request_of(const Call& call, const CallShape& shape, int rank) noexcept {
  AlgorithmRequest request;
  request.collective = call.collective;
  request.dtype = call.dtype;
  request.op = call.op;
  request.bytes = shape.bytes;
  request.rank = rank;
  request.ranks = shape.ranks;
  request.ranks_per_host = shape.ranks / shape.hosts;
  request.root = shape.root;
  request.input = call.input.pointers != nullptr ? call.input.pointers[0] : call.input.base;
  request.output = call.output.pointers != nullptr ? call.output.pointers[0] : call.output.base;
  // The root may have two buffers: whether a call is in place must not depend on the rank.
  if (call.collective == Collective::kBroadcast) request.input = request.output;
  return request;
}

}  // namespace tutti
