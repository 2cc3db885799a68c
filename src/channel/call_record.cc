#include "channel/call_record.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/collective_traits.h"

namespace tutti {
namespace {

// One round of a multiply-xorshift mixer: every input bit reaches every output bit over two rounds.
std::uint64_t mix(std::uint64_t state, std::uint64_t value) noexcept {
  state = (state ^ value) * 0x9e3779b97f4a7c15ULL;
  return state ^ (state >> 29);
}

std::uint32_t folded(std::uint64_t state) noexcept {
  const std::uint64_t h = mix(state, state >> 32);
  const auto half = static_cast<std::uint32_t>(h ^ (h >> 32));
  return half != 0 ? half : 1;
}

bool is_collective(std::uint8_t call) noexcept { return call < kCollectiveCount; }

bool is_reduction(std::uint8_t call) noexcept { return is_collective(call) && reduces(static_cast<Collective>(call)); }

// Records come from other processes: a code out of range is named, never looked up.
std::string name_of_call(std::uint8_t call) {
  if (is_collective(call)) return std::string(to_string(static_cast<Collective>(call)));
  if (call == kCallSend) return "send";
  if (call == kCallRecv) return "recv";
  if (call == kCallAddRmsNorm) return "all_reduce_add_rms_norm";
  if (call == kCallQuantized) return "all_reduce_quantized";
  return "call " + std::to_string(call);
}

std::string name_of_dtype(std::uint8_t dtype) {
  if (dtype < kDataTypeCount) return std::string(to_string(static_cast<DataType>(dtype)));
  return "dtype " + std::to_string(dtype);
}

// Empty where the call names none. Records come from other processes: what cannot be printed is not.
std::string named_algorithm(const CallRecord& record) {
  if (!is_collective(record.call) || record.uneven != 0) return {};
  std::string text;
  for (const char c : record.name) {
    if (c == 0) break;
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  return text;
}

}  // namespace

void name_algorithm(CallRecord& record, std::string_view name) noexcept {
  auto& kept = record.name;
  kept = {};
  if (name.size() <= kept.size()) {
    std::memcpy(kept.data(), name.data(), name.size());
  } else {
    // Names of a family differ at their ends.
    constexpr std::size_t kEnd = 7;
    std::memcpy(kept.data(), name.data(), kEnd);
    std::memcpy(kept.data() + kEnd, "..", 2);
    std::memcpy(kept.data() + kEnd + 2, name.data() + name.size() - kEnd, kEnd);
  }
}

std::uint32_t fingerprint(const CallRecord& record) noexcept {
  std::uint64_t h = 0x74757474692e3031ULL;
  h = mix(h, record.call | std::uint64_t{record.dtype} << 8 |
                 (is_reduction(record.call) ? std::uint64_t{record.op} + 1 : 0) << 16 |
                 (record.uneven != 0 ? std::uint64_t{1} : 0) << 24 |
                 static_cast<std::uint64_t>(static_cast<std::uint32_t>(record.root)) << 32);
  h = mix(h, record.uneven != 0 ? 0 : record.count);
  if (record.algorithm != 0) h = mix(h, record.algorithm);
  return folded(h);
}

std::uint32_t with_number(std::uint32_t hash, std::uint64_t number) noexcept { return folded(mix(hash, number)); }

std::string describe(const CallRecord& record, std::string_view algorithm) {
  std::string text = name_of_call(record.call);
  if (is_collective(record.call)) text += " #" + std::to_string(record.sequence);
  if (record.call == static_cast<std::uint8_t>(Collective::kBarrier)) return text;
  text += " " + name_of_dtype(record.dtype);
  text += record.uneven != 0 ? "[uneven]" : "[" + std::to_string(record.count) + "]";
  if (is_reduction(record.call)) {
    text += " ";
    text += record.op < kReduceOpCount ? std::string(to_string(static_cast<ReduceOp>(record.op)))
                                       : "op " + std::to_string(record.op);
  }
  if (is_collective(record.call)) {
    if (record.root >= 0) text += " root " + std::to_string(record.root);
  } else if (record.call == kCallAddRmsNorm) {
    text += " in rows of " + std::to_string(record.tag);
  } else if (record.call == kCallQuantized) {
    text += " in blocks of " + std::to_string(record.tag);
  } else {
    text += " tag " + std::to_string(record.tag);
  }
  if (const std::string name = named_algorithm(record); !name.empty()) {
    text += " by ";
    text += algorithm.empty() ? std::string_view(name) : algorithm;
    text += " (" + hexadecimal(record.algorithm) + ")";
  } else if (record.algorithm != 0) {
    text += " with the plans ";
    text += hexadecimal(record.algorithm);
  }
  return text;
}

}  // namespace tutti
