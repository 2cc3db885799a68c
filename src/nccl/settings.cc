#include "nccl/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "base/parse.h"

namespace tutti::nccl {
namespace {

constexpr std::array<const char*, kFunctions> kNames = {"all_reduce",     "broadcast",  "reduce", "all_gather",
                                                        "reduce_scatter", "all_to_all", "gather", "scatter",
                                                        "send",           "recv"};

// "AllReduce", "allreduce" and "all_reduce" are one name.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c != '_' && c != ' ') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::optional<std::size_t> collective_of(std::string_view name) {
  for (std::size_t c = 0; c < kCollectives; ++c) {
    if (plain(kNames[c]) == plain(name)) return c;
  }
  return std::nullopt;
}

std::optional<std::size_t> bytes_of(std::string_view text) {
  const auto bytes = parse_bytes(plain(text));
  return bytes && *bytes <= std::numeric_limits<std::size_t>::max() / 2 ? bytes : std::nullopt;
}

template <class Visit>
void each_part(std::string_view list, Visit&& visit) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) visit(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
}

class Reader {
 public:
  explicit Reader(const std::function<const char*(const char*)>& get) : get_(get) {}

  // The first of the names that is set: Tutti's own comes before its alias.
  std::string text(const char* name, const char* alias = nullptr) {
    for (const char* const each : {name, alias}) {
      const char* const value = each != nullptr ? get_(each) : nullptr;
      if (value != nullptr && *value != '\0') {
        name_ = each;
        return value;
      }
    }
    return {};
  }

  bool flag(const char* name) {
    const std::string value = plain(text(name));
    bool set = false;
    if (!value.empty() && !parse_bool(value, set)) refuse(value, "0 or 1");
    return set;
  }

  std::chrono::milliseconds milliseconds(const char* name, std::chrono::milliseconds otherwise) {
    const std::string value = text(name);
    auto number = static_cast<std::int64_t>(otherwise.count());
    if (!value.empty() && !parse_number<std::int64_t>(value, 10, 600'000, number)) refuse(value, "10 to 600000");
    return std::chrono::milliseconds(number);
  }

  void refuse(std::string_view value, std::string_view wanted) {
    if (!problem.empty()) return;
    problem = std::string(name_) + "=" + std::string(value) + ": must be " + std::string(wanted);
  }

  std::string problem;

 private:
  const std::function<const char*(const char*)>& get_;
  const char* name_ = "";
};

}  // namespace

const char* to_string(Function function) noexcept { return kNames[static_cast<std::size_t>(function)]; }

Settings parse_settings(const std::function<const char*(const char*)>& get) {
  Settings result;
  Reader reader(get);
  result.on = reader.flag("TUTTI_NCCL");
  result.report = reader.flag("TUTTI_NCCL_REPORT");
  result.library = reader.text("TUTTI_NCCL_LIB_PATH", "MSCCLPP_NCCL_LIB_PATH");
  result.plan_path = reader.text("TUTTI_PLAN_PATH", "MSCCLPP_EXECUTION_PLAN_DIR");
  each_part(reader.text("TUTTI_NCCL_MAX_BYTES"), [&](std::string_view part) {
    const std::size_t equal = part.find('=');
    const auto bytes = bytes_of(equal == std::string_view::npos ? part : part.substr(equal + 1));
    const auto only = equal == std::string_view::npos ? std::nullopt : collective_of(part.substr(0, equal));
    if (!bytes || (equal != std::string_view::npos && !only)) {
      reader.refuse(part, "a size such as 4MB, or a list such as all_reduce=4MB,broadcast=64KB");
    } else if (only) {
      result.max_bytes[*only] = *bytes;
    } else {
      result.max_bytes.fill(*bytes);
    }
  });
  each_part(reader.text("TUTTI_NCCL_LEAVE", "MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION"), [&](std::string_view part) {
    if (plain(part) == "all") {
      result.max_bytes.fill(0);
    } else if (const auto only = collective_of(part)) {
      result.max_bytes[*only] = 0;
    } else {
      reader.refuse(part, "all, or names of collectives such as all_reduce,broadcast");
    }
  });
  result.patience = reader.milliseconds("TUTTI_NCCL_PATIENCE_MS", result.patience);
  result.problem = reader.problem;
  return result;
}

const Settings& settings() {
  static const Settings* const value =
      new Settings(parse_settings([](const char* name) -> const char* { return std::getenv(name); }));
  return *value;
}

std::string nccl_setting(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string peer_access_problem() {
  // As NCCL reads them: 1 means so; a level by its name, or by a number of old. Below the last, SYS, it depends on how
  // far apart two GPUs are, which only NCCL knows.
  const std::string off = nccl_setting("NCCL_P2P_DISABLE"), level = nccl_setting("NCCL_P2P_LEVEL");
  if (std::strtol(off.c_str(), nullptr, 0) == 1) return "NCCL_P2P_DISABLE=" + off;
  constexpr std::array<const char*, 9> kBelow = {"LOC", "NVL", "NVB", "C2C", "PIX", "P2C", "PXB", "PXN", "PHB"};
  constexpr long kSystem = 4;
  const bool number = !level.empty() && std::isdigit(static_cast<unsigned char>(level[0])) != 0;
  const bool below = number ? std::strtol(level.c_str(), nullptr, 0) < kSystem
                            : std::find(kBelow.begin(), kBelow.end(), level) != kBelow.end();
  return below ? "NCCL_P2P_LEVEL=" + level : "";
}

}  // namespace tutti::nccl
