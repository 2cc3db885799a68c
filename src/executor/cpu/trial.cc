#include "executor/cpu/trial.h"

#include <algorithm>
#include <cstring>

#include "base/collective_traits.h"
#include "device/cpu/kernels.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::executor {

using plan::PlanCollective;

namespace {

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

template <class T>
std::vector<std::byte> bytes_of(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// One and two in every element type. Sums of a few of them are exact in all.
std::vector<std::byte> encode(DataType dtype, int value) {
  const bool two = value == 2;
  switch (dtype) {
    case DataType::kFloat8E4M3fn:
      return bytes_of<std::uint8_t>(two ? 0x40 : 0x38);
    case DataType::kFloat8E5M2:
      return bytes_of<std::uint8_t>(two ? 0x40 : 0x3c);
    case DataType::kFloat8E4M3fnuz:
      return bytes_of<std::uint8_t>(two ? 0x48 : 0x40);
    case DataType::kFloat8E5M2fnuz:
      return bytes_of<std::uint8_t>(two ? 0x44 : 0x40);
    case DataType::kFloat8E8M0fnu:
      return bytes_of<std::uint8_t>(two ? 0x80 : 0x7f);
    case DataType::kBfloat16:
      return bytes_of<std::uint16_t>(two ? 0x4000 : 0x3f80);
    case DataType::kFloat16:
      return bytes_of<std::uint16_t>(two ? 0x4000 : 0x3c00);
    case DataType::kFloat32:
      return bytes_of<float>(static_cast<float>(value));
    case DataType::kFloat64:
      return bytes_of<double>(value);
    case DataType::kComplex32:
      return bytes_of<std::uint32_t>(two ? 0x4000 : 0x3c00);
    case DataType::kComplex64:
      return bytes_of<std::uint64_t>(two ? 0x40000000 : 0x3f800000);
    case DataType::kComplex128: {
      std::vector<std::byte> bytes(16);
      const double real = value;
      std::memcpy(bytes.data(), &real, sizeof real);
      return bytes;
    }
    default: {
      std::vector<std::byte> bytes(size_of(dtype));
      bytes[0] = static_cast<std::byte>(dtype == DataType::kBool ? 1 : value);
      return bytes;
    }
  }
}

// The data of one trial and what must come of them.
class Trial {
 public:
  Trial(const plan::Plan& plan, const TrialRequest& request)
      : plan_(plan),
        request_(request),
        ranks_(static_cast<std::int32_t>(plan.ranks.size())),
        shape_(plan::shape_of(plan)),
        one_(encode(request.dtype, 1)),
        two_(encode(request.dtype, 2)) {
    for (int side = 0; side < 2; ++side) {
      bytes_[side] = static_cast<std::size_t>(shape_.blocks[side] * request.block_bytes);
    }
    given_.resize(static_cast<std::size_t>(ranks_));
    inputs_.resize(given_.size());
    outputs_.resize(given_.size());
  }

  // Fresh data. A guard behind every buffer shows who writes past its end.
  void fill(std::uint64_t seed) {
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      given_[r].resize(bytes_[0]);
      fill_rank(given_[r], rank, seed);
      inputs_[r].assign(bytes_[0] + kGuard, kGuardByte);
      outputs_[r].assign(bytes_[1] + kGuard, kGuardByte);
      if (!plan_.in_place) std::copy(given_[r].begin(), given_[r].end(), inputs_[r].begin());
      if (plan_.in_place) std::copy(given_[r].begin(), given_[r].end(), whole(r) + own_offset(rank));
    }
  }

  LocalMessage message() {
    LocalMessage message;
    message.dtype = request_.dtype;
    message.op = request_.op;
    message.input_block_bytes = message.output_block_bytes = request_.block_bytes;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const bool input_whole = bytes_[0] >= bytes_[1];
      const auto inside = static_cast<std::ptrdiff_t>(rank * request_.block_bytes);
      message.inputs.push_back(!plan_.in_place ? inputs_[r].data() : whole(r) + (input_whole ? 0 : inside));
      message.outputs.push_back(!plan_.in_place          ? outputs_[r].data()
                                : bytes_[1] >= bytes_[0] ? whole(r)
                                                         : whole(r) + inside);
    }
    return message;
  }

  bool checkable() const {
    // Powers of two have no sums that come out the same in every order.
    if (request_.dtype == DataType::kFloat8E8M0fnu && reducing() && sums()) return false;
    return plan::rules_of(plan_.collective).defines_result;
  }

  // What is wrong, or nothing.
  std::string fault() {
    const LocalMessage at = message();
    std::vector<bool> taken(given_.size());
    for (std::int32_t rank = 0; rank < ranks_; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (const auto* buffer : {&inputs_[r], &outputs_[r]}) {
        if (std::any_of(buffer->end() - kGuard, buffer->end(), [](std::byte b) { return b != kGuardByte; })) {
          return "rank " + std::to_string(rank) + ": a buffer was written past its end";
        }
      }
      if (!plan_.in_place && !plan_.writes_input &&
          !std::equal(given_[r].begin(), given_[r].end(), inputs_[r].begin())) {
        return "rank " + std::to_string(rank) + ": its input was changed, and the plan does not say \"writes_input\"";
      }
      if (!checkable() || !has_output(rank)) continue;
      if (plan_.collective == PlanCollective::kSendRecv) {
        if (!takes_one(at.outputs[r], taken)) {
          return "rank " + std::to_string(rank) + ": its output is not the input of exactly one rank";
        }
        continue;
      }
      const std::vector<std::byte> expected = expect(rank);
      const auto* end = expected.data() + expected.size();
      const auto* wrong = std::mismatch(expected.data(), end, at.outputs[r]).first;
      if (wrong != end) {
        const auto element = static_cast<std::size_t>(wrong - expected.data()) / size_of(request_.dtype);
        return "rank " + std::to_string(rank) + ": element " + std::to_string(element) + " of " +
               std::to_string(expected.size() / size_of(request_.dtype)) + " is wrong";
      }
    }
    return "";
  }

 private:
  static constexpr std::ptrdiff_t kGuard = kTrialGuard;
  static constexpr std::byte kGuardByte{0xa5};

  bool reducing() const {
    const std::optional<Collective> call = plan::rules_of(plan_.collective).call;
    return call && reduces(*call);
  }
  bool sums() const {
    return request_.op == ReduceOp::kSum || request_.op == ReduceOp::kAvg || request_.op == ReduceOp::kPremulSum;
  }
  bool has_output(std::int32_t rank) const {
    const bool rooted = plan_.collective == PlanCollective::kReduce || plan_.collective == PlanCollective::kGather;
    return !rooted || rank == plan_.root;
  }
  // In place one buffer, the larger, holds both.
  std::byte* whole(std::size_t r) { return bytes_[1] >= bytes_[0] ? outputs_[r].data() : inputs_[r].data(); }
  std::ptrdiff_t own_offset(std::int32_t rank) const {
    return bytes_[1] > bytes_[0] ? static_cast<std::ptrdiff_t>(rank * request_.block_bytes) : 0;
  }

  void fill_rank(std::vector<std::byte>& data, std::int32_t rank, std::uint64_t seed) const {
    const std::size_t element = size_of(request_.dtype);
    const bool bits = request_.op == ReduceOp::kBand || request_.op == ReduceOp::kBor || request_.op == ReduceOp::kBxor;
    if (!reducing() || (bits && request_.dtype != DataType::kBool)) {
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<std::byte>(mix(seed + (static_cast<std::uint64_t>(rank) << 40) + i));
      }
      return;
    }
    for (std::size_t i = 0; i < data.size() / element; ++i) {
      // At most seven ranks contribute to an element, in a pattern that differs from element to element.
      const std::uint64_t random = mix(seed + i);
      const auto distance =
          static_cast<std::uint64_t>((rank + ranks_ - static_cast<std::int32_t>(i % ranks_)) % ranks_);
      const bool contributes = distance < 7 && (random >> distance & 1) != 0;
      std::byte* to = data.data() + i * element;
      std::memset(to, 0, element);
      if (sums() && !contributes) continue;
      std::memcpy(to, !sums() && contributes ? two_.data() : one_.data(), element);
    }
  }

  std::vector<std::byte> expect(std::int32_t rank) const {
    const auto block = static_cast<std::size_t>(request_.block_bytes);
    const auto piece = [&](std::int32_t from, std::int32_t index) {
      return given_[static_cast<std::size_t>(from)].data() + static_cast<std::size_t>(index) * block;
    };
    std::vector<std::byte> result(bytes_[1]);
    if (reducing()) {
      std::vector<const void*> sources;
      const std::int32_t index = plan_.collective == PlanCollective::kReduceScatter ? rank : 0;
      for (std::int32_t from = 0; from < ranks_; ++from) sources.push_back(piece(from, index));
      void* target = result.data();
      cpu::reduce(&target, 1, sources.data(), ranks_, block / size_of(request_.dtype), request_.dtype, request_.op,
                  ranks_);
      return result;
    }
    for (std::int32_t i = 0; i < shape_.blocks[1]; ++i) {
      const std::byte* from = nullptr;
      switch (plan_.collective) {
        case PlanCollective::kAllToAll:
          from = piece(i, rank);
          break;
        case PlanCollective::kBroadcast:
          from = piece(plan_.root, 0);
          break;
        case PlanCollective::kScatter:
          from = piece(plan_.root, rank);
          break;
        default:
          from = piece(i, 0);
      }
      std::copy(from, from + block, result.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * block));
    }
    return result;
  }

  bool takes_one(const std::byte* output, std::vector<bool>& taken) const {
    if (bytes_[1] == 0) return true;
    for (std::size_t from = 0; from < given_.size(); ++from) {
      if (taken[from] || !std::equal(given_[from].begin(), given_[from].end(), output)) continue;
      taken[from] = true;
      return true;
    }
    return false;
  }

  const plan::Plan& plan_;
  const TrialRequest& request_;
  std::int32_t ranks_;
  plan::Shape shape_;
  std::vector<std::byte> one_, two_;
  std::size_t bytes_[2] = {0, 0};
  std::vector<std::vector<std::byte>> given_;  // the inputs; runs in place overwrite their own
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<std::byte>> outputs_;
};

}  // namespace

TrialReport try_plan(const plan::Plan& plan, const TrialRequest& request, const RunMessage& run) {
  TrialReport report;
  Trial trial(plan, request);
  report.checked = trial.checkable();
  LocalOptions once = request.options;
  once.invocations = 1;
  for (int round = 0; round < request.rounds && report.fault.empty(); ++round) {
    trial.fill(static_cast<std::uint64_t>(round) * 7919);
    const LocalResult result = run(trial.message(), once);
    report.fault = result.outcome.ok() ? trial.fault() : "it cannot go on: " + result.waiting;
  }
  if (report.fault.empty() && request.options.invocations > 0) {
    const LocalResult timed = run(trial.message(), request.options);
    if (!timed.outcome.ok()) report.fault = "it cannot go on: " + timed.waiting;
    report.nanoseconds = timed.nanoseconds;
  }
  return report;
}

TrialReport try_plan(std::shared_ptr<const plan::Plan> plan, const TrialRequest& request) {
  check_request(*plan, request);
  LocalWorld world(plan, request.block_bytes, request.block_bytes);
  return try_plan(*plan, request, [&world](const LocalMessage& message, const LocalOptions& options) {
    return world.run(message, options);
  });
}

void check_request(const plan::Plan& plan, const TrialRequest& request) {
  if (request.block_bytes < 0 || request.block_bytes % static_cast<std::int64_t>(size_of(request.dtype)) != 0) {
    throw_error(ErrorKind::kInvalidArgument, std::to_string(request.block_bytes) + " bytes are no whole number of " +
                                                 std::string(to_string(request.dtype)) + " elements");
  }
  if (const char* reason = refusal(plan, request.dtype, request.op)) {
    throw_error(ErrorKind::kUnsupported, "plan \"" + plan.name + "\" " + reason);
  }
}

}  // namespace tutti::executor
