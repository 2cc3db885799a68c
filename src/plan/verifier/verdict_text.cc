#include "plan/verifier/verdict_text.h"

#include <array>
#include <charconv>

namespace tutti::plan {
namespace {

constexpr std::size_t kMostRepairs = 1 << 20;
constexpr int kRepairFields = 7;

std::string header(std::string_view subject) {
  return "tutti verdict 1\nverifier " + std::string(verifier_build()) + "\nplan " + std::string(subject) + "\n";
}

// Takes `prefix` off the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes an integer and the character behind it.
template <typename Integer>
bool take_number(std::string_view& text, char behind, Integer& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || length == text.size() || *end != behind) return false;
  text.remove_prefix(length + 1);
  return true;
}

std::array<std::int64_t, kRepairFields> fields_of(const Repair& repair) {
  return {static_cast<std::int64_t>(repair.kind),
          repair.rank,
          repair.block,
          repair.op,
          repair.inner,
          repair.channel,
          repair.bytes};
}

bool take_repair(std::string_view& text, Repair& repair) {
  std::array<std::int64_t, kRepairFields> fields{};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!take_number(text, i + 1 < fields.size() ? ' ' : '\n', fields[i])) return false;
  }
  if (fields[0] < 0 || fields[0] > static_cast<std::int64_t>(Repair::Kind::kInput)) return false;
  for (int i = 1; i < kRepairFields - 1; ++i) {
    if (fields[i] != static_cast<std::int32_t>(fields[i])) return false;
  }
  const auto narrow = [&fields](int i) { return static_cast<std::int32_t>(fields[i]); };
  repair = {static_cast<Repair::Kind>(fields[0]), narrow(1), narrow(2), narrow(3), narrow(4), narrow(5), fields[6]};
  return true;
}

}  // namespace

std::string write_verdict(const Verdict& verdict, std::string_view subject) {
  std::string text = header(subject);
  text += "calls " + std::to_string(verdict.invocations) + "\n";
  text += "same bits " + std::to_string(verdict.same_bits ? 1 : 0) + "\n";
  for (const Repair& repair : verdict.repairs) {
    text += "repair";
    for (const std::int64_t field : fields_of(repair)) text += " " + std::to_string(field);
    text += "\n";
  }
  return text;
}

std::optional<Verdict> read_verdict(std::string_view text, std::string_view subject) {
  const std::string_view whole = text;
  Verdict verdict;
  std::int32_t same_bits = 0;
  if (!take(text, header(subject)) || !take(text, "calls ") || !take_number(text, '\n', verdict.invocations) ||
      !take(text, "same bits ") || !take_number(text, '\n', same_bits)) {
    return std::nullopt;
  }
  verdict.same_bits = same_bits == 1;
  while (take(text, "repair ")) {
    Repair repair;
    if (verdict.repairs.size() == kMostRepairs || !take_repair(text, repair)) return std::nullopt;
    verdict.repairs.push_back(repair);
  }
  verdict.outcome = verdict.repairs.empty() ? Outcome::kProven : Outcome::kProvenAfterRepair;
  if (!text.empty() || write_verdict(verdict, subject) != whole) return std::nullopt;
  return verdict;
}

}  // namespace tutti::plan
