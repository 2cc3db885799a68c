// What the ranks of a group compare by name while it forms, whatever memory its calls are on.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>

#include "bootstrap/agreed_settings.h"
#include "tutti/user_algorithm.h"

namespace tutti {

AgreedSetting size_setting(int size);
AgreedSetting text_setting(const std::string& name, const std::string& value);
// The plans that the choice of algorithms begins with: by what they say.
AgreedSetting plan_setting(const std::string& path, std::uint32_t identity);
// What a program gives to a group before it forms: names, and what tells it from another; empty: nothing. By that text
// it is compared.
std::string given_text(const AlgorithmSet& set);
AgreedSetting given_setting(const std::string& text);
// The tuning table, which counts only where all ranks have the same: by what it says. `identity` 0: none.
AgreedSetting tuning_setting(const std::string& path, std::uint64_t identity);

// What rank 0 says of optional settings that differ.
std::string not_used(const std::string& group, const std::string& differences);

}  // namespace tutti
