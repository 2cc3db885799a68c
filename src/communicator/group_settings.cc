#include "communicator/group_settings.h"

#include "algorithm/user/identity.h"
#include "base/bytes.h"

namespace tutti {

AgreedSetting size_setting(int size) { return text_setting("the number of ranks", std::to_string(size)); }

AgreedSetting text_setting(const std::string& name, const std::string& value) {
  return {name, value.empty() ? "unset" : value, value};
}

AgreedSetting plan_setting(const std::string& path, std::uint32_t identity) {
  const std::string plans = hexadecimal(identity);
  return {"TUTTI_PLAN_PATH", path.empty() ? "unset" : path + " (with the plans " + plans + ")", plans};
}

std::string given_text(const AlgorithmSet& set) {
  if (set.empty()) return {};
  std::string names;
  Identity all;
  for (const UserAlgorithmPtr& each : set.algorithms) {
    names += (names.empty() ? "" : ", ") + each->name();
    all.add(each->identity());
  }
  if (set.choose) names += (names.empty() ? "" : ", ") + std::string("by a function");
  return names + " (" + hexadecimal(all.value()) + ")";
}

AgreedSetting given_setting(const std::string& text) {
  return {"the algorithms given (AlgorithmCollectionBuilder)", text.empty() ? "none" : text, text};
}

AgreedSetting tuning_setting(const std::string& path, std::uint64_t identity) {
  const char* const name = "the tuning table (TUTTI_TUNING_PATH)";
  if (identity == 0) return {name, "none", "none", true};
  return {name, path, hexadecimal(identity), true};
}

std::string not_used(const std::string& group, const std::string& differences) {
  return "group '" + group + "': " + differences + ": none is used, for all ranks must have the same";
}

}  // namespace tutti
