// What the ranks of a group must have alike, because what they do follows from it: exchanged by name while the group
// forms, so that a difference names the setting, its values and the ranks that have them.
//
// Thread rule: values.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace tutti {

struct AgreedSetting {
  std::string name;       // "TUTTI_ALGORITHM"
  std::string value;      // as messages show it
  std::string compared;   // what has to be equal
  bool optional = false;  // where it differs, nobody uses it; else the group cannot form

  bool operator==(const AgreedSetting&) const = default;
};
using AgreedSettings = std::vector<AgreedSetting>;  // the same names in the same order on all ranks of one version

AgreedSetting version_setting();

void write_settings(ByteWriter& out, const AgreedSettings& settings);
AgreedSettings read_settings(ByteReader& in);

// Whether they are of one version, which has them in this order.
bool same_names(const AgreedSettings& a, const AgreedSettings& b);

// What differs between the ranks, which have the same names: "TUTTI_ALGORITHM is unset on rank 0 and ... on rank 1".
struct SettingsDifference {
  std::string required, optional;  // empty: nothing
};
SettingsDifference difference_of(const std::vector<AgreedSettings>& of_ranks);

// Compares what the ranks have, by rank; every rank finds the same. Throws KnownToAll(kMismatch) with what keeps
// communicator `id` from forming: "TUTTI_STAGE_BYTES is 4M on rank 0 and 1M on ranks 1 and 2". Gives back what is said
// so of optional ones; empty: they are equal.
std::string compare_settings(const std::string& id, const std::vector<AgreedSettings>& of_ranks);

}  // namespace tutti
