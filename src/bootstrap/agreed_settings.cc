#include "bootstrap/agreed_settings.h"

#include <algorithm>

#include "bootstrap/exchange.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::uint8_t kOptional = 1;
constexpr std::uint8_t kShownAsCompared = 2;  // one text is both

// Of one setting, which the ranks have differently; else empty.
std::string difference_in(const std::vector<AgreedSettings>& of_ranks, std::size_t setting) {
  const AgreedSetting& first = of_ranks.front()[setting];
  const AgreedSetting* other = nullptr;
  std::vector<int> alike, others;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    const AgreedSetting& theirs = of_ranks[r][setting];
    if (theirs.compared == first.compared) {
      alike.push_back(static_cast<int>(r));
    } else if (other == nullptr || theirs.compared == other->compared) {
      other = &theirs;
      others.push_back(static_cast<int>(r));
    }
  }
  if (other == nullptr) return {};
  return first.name + " is " + first.value + " on " + name_ranks(alike) + " and " + other->value + " on " +
         name_ranks(others);
}

}  // namespace

bool same_names(const AgreedSettings& a, const AgreedSettings& b) {
  return std::ranges::equal(a, b, {}, &AgreedSetting::name, &AgreedSetting::name);
}

AgreedSetting version_setting() { return {"the version of Tutti", TUTTI_VERSION, TUTTI_VERSION}; }

void write_settings(ByteWriter& out, const AgreedSettings& settings) {
  out.u32(static_cast<std::uint32_t>(settings.size()));
  for (const AgreedSetting& s : settings) {
    const bool one = s.value == s.compared;
    const unsigned flags = (s.optional ? kOptional : 0u) | (one ? kShownAsCompared : 0u);
    out.text(s.name).text(s.compared).u8(static_cast<std::uint8_t>(flags));
    if (!one) out.text(s.value);
  }
}

AgreedSettings read_settings(ByteReader& in) {
  AgreedSettings settings;
  const std::uint32_t count = in.u32();
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    AgreedSetting& s = settings.emplace_back();
    s.name = in.text();
    s.compared = in.text();
    const std::uint8_t flags = in.u8();
    s.optional = (flags & kOptional) != 0;
    s.value = (flags & kShownAsCompared) != 0 ? s.compared : in.text();
  }
  return settings;
}

SettingsDifference difference_of(const std::vector<AgreedSettings>& of_ranks) {
  SettingsDifference found;
  for (std::size_t s = 0; s < of_ranks.front().size(); ++s) {
    const std::string difference = difference_in(of_ranks, s);
    std::string& text = of_ranks.front()[s].optional ? found.optional : found.required;
    if (!difference.empty()) text += (text.empty() ? "" : "; ") + difference;
  }
  return found;
}

std::string compare_settings(const std::string& id, const std::vector<AgreedSettings>& of_ranks) {
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    if (same_names(of_ranks[r], of_ranks.front())) continue;
    throw KnownToAll(ErrorKind::kMismatch, "rank " + std::to_string(r) +
                                               " speaks another version of Tutti than rank 0: install one version "
                                               "everywhere");
  }
  const auto [required, optional] = difference_of(of_ranks);
  if (required.empty()) return optional;
  throw KnownToAll(ErrorKind::kMismatch, "communicator \"" + id +
                                             "\" cannot form, for its ranks have different settings: " + required +
                                             ". Give all ranks the same");
}

}  // namespace tutti
