// Parsing of the TUTTI_* variables: defaults, every accepted form, and errors that name what is wrong.
#include "tutti/config.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/refusal.h"

namespace tutti {
namespace {

Config parse(const std::map<std::string, std::string>& environment) {
  return parse_config([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const std::string& name, const std::string& value) {
  return test::refusal([&] { parse({{name, value}}); });
}

TEST(Config, NothingSetGivesTheDefaults) {
  const Config config = parse({});
  const Config defaults;
  EXPECT_EQ(config.log_level, "warning");
  EXPECT_EQ(config.stage_bytes, 0u);
  EXPECT_EQ(config.shared_threshold_bytes, 65536u);
  EXPECT_FALSE(config.shared_allocator);
  EXPECT_EQ(config.spins, -1);
  EXPECT_EQ(config.heartbeat, defaults.heartbeat);
}

TEST(Config, EmptyCountsAsUnset) { EXPECT_EQ(parse({{"TUTTI_SPINS", ""}, {"TUTTI_LOG_LEVEL", ""}}).spins, -1); }

TEST(Config, ReadsEveryVariable) {
  const Config config = parse({{"TUTTI_LOG_LEVEL", "DEBUG"},
                               {"TUTTI_HOST_ID", "left"},
                               {"TUTTI_SECRET", "open sesame"},
                               {"TUTTI_SOCKET_IFNAME", "enp94s0f0np0000,enp94s0f1"},
                               {"TUTTI_STAGE_BYTES", "64K"},
                               {"TUTTI_ARENA_BYTES", "2G"},
                               {"TUTTI_SHARED_THRESHOLD", "1"},
                               {"TUTTI_SHARED_ALLOCATOR", "1"},
                               {"TUTTI_SPINS", "0"},
                               {"TUTTI_FLIGHT_RECORDER_ENTRIES", "10"},
                               {"TUTTI_ALGORITHM", "all_reduce=ring,all_gather=staged"},
                               {"TUTTI_TUNING_PATH", "/tables"},
                               {"TUTTI_CACHE_DIR", "none"},
                               {"TUTTI_CUDA_MAX_BLOCKS", "16"},
                               {"TUTTI_CUDA_WATCHDOG", "end"},
                               {"TUTTI_HEARTBEAT_MS", "50"}});
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.cuda_watchdog, "end");
  EXPECT_EQ(config.host_id, "left");
  EXPECT_EQ(config.secret, "open sesame");
  EXPECT_EQ(config.interface, "enp94s0f0np0000,enp94s0f1");
  EXPECT_EQ(config.stage_bytes, 64u << 10);
  EXPECT_EQ(config.arena_bytes, std::size_t{2} << 30);
  EXPECT_EQ(config.shared_threshold_bytes, 1u);
  EXPECT_TRUE(config.shared_allocator);
  EXPECT_EQ(config.spins, 0);
  EXPECT_EQ(config.flight_recorder_entries, 10);
  EXPECT_EQ(config.cuda_max_blocks, 16);
  EXPECT_EQ(config.algorithm, "all_reduce=ring,all_gather=staged");
  EXPECT_EQ(config.tuning_path, "/tables");
  EXPECT_EQ(config.cache_dir, "none");
  EXPECT_EQ(config.heartbeat, std::chrono::milliseconds(50));
}

TEST(Config, TheUsersFoldersFollowTheXdgSpecification) {
  const Config at_home = parse({{"HOME", "/home/ada"}});
  EXPECT_EQ(at_home.user_config, "/home/ada/.config/tutti");
  EXPECT_EQ(at_home.user_cache, "/home/ada/.cache/tutti");
  const Config elsewhere = parse({{"HOME", "/home/ada"}, {"XDG_CONFIG_HOME", "/c"}, {"XDG_CACHE_HOME", "relative"}});
  EXPECT_EQ(elsewhere.user_config, "/c/tutti");
  EXPECT_EQ(elsewhere.user_cache, "/home/ada/.cache/tutti") << "a relative path counts as unset";
  EXPECT_EQ(parse({}).user_config, "") << "without a home there is no folder";
}

TEST(Config, SizesTakeBinaryUnits) {
  const std::map<std::string, std::size_t> sizes{{"4096", 4096},     {"4096B", 4096},  {"4k", 4096},
                                                 {"4KB", 4096},      {"4KiB", 4096},   {"2M", 2u << 20},
                                                 {"1mib", 1u << 20}, {"1G", 1u << 30}, {"0", 0}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse({{"TUTTI_STAGE_BYTES", text}}).stage_bytes, bytes) << text;
}

TEST(Config, BooleansTakeTheUsualWords) {
  for (const char* word : {"1", "true", "YES", "on"}) {
    EXPECT_TRUE(parse({{"TUTTI_SHARED_ALLOCATOR", word}}).shared_allocator) << word;
  }
  for (const char* word : {"0", "False", "no", "off"}) {
    EXPECT_FALSE(parse({{"TUTTI_SHARED_ALLOCATOR", word}}).shared_allocator) << word;
  }
}

TEST(Config, ErrorsNameVariableValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of("TUTTI_SPINS", "many"),
            "TUTTI_SPINS=many is not valid: it may be -1 (chosen from cores and ranks) or 0 to 1000000000");
  EXPECT_EQ(error_of("TUTTI_LOG_LEVEL", "loud"),
            "TUTTI_LOG_LEVEL=loud is not valid: it may be error, warning, info or debug");
}

TEST(Config, RefusesWhatIsNotExactlyAValue) {
  const std::multimap<std::string, std::string> refused{
      {"TUTTI_LOG_LEVEL", "4"},
      {"TUTTI_HOST_ID", "two words"},
      {"TUTTI_HOST_ID", std::string(256, 'a')},
      {"TUTTI_SOCKET_IFNAME", "a-name-past-15-characters"},
      {"TUTTI_STAGE_BYTES", "64X"},
      {"TUTTI_STAGE_BYTES", "64Kx"},
      {"TUTTI_STAGE_BYTES", "K"},
      {"TUTTI_STAGE_BYTES", "-1"},
      {"TUTTI_STAGE_BYTES", " 64K"},
      {"TUTTI_STAGE_BYTES", "1.5M"},
      {"TUTTI_STAGE_BYTES", "255"},
      {"TUTTI_STAGE_BYTES", "2G"},
      {"TUTTI_ARENA_BYTES", "1M"},
      {"TUTTI_ARENA_BYTES", "18446744073709551616"},
      {"TUTTI_ARENA_BYTES", "18446744073709551615T"},
      {"TUTTI_SHARED_THRESHOLD", "0"},
      {"TUTTI_SHARED_ALLOCATOR", "2"},
      {"TUTTI_SPINS", "-2"},
      {"TUTTI_SPINS", "1e3"},
      {"TUTTI_SPINS", "99999999999999999999"},
      {"TUTTI_FLIGHT_RECORDER_ENTRIES", "-1"},
      {"TUTTI_ALGORITHM", "ring"},
      {"TUTTI_ALGORITHM", "all_reduce="},
      {"TUTTI_ALGORITHM", "allreduce=ring"},
      {"TUTTI_ALGORITHM", "all_reduce=ring,"},
      {"TUTTI_CUDA_MAX_BLOCKS", "65"},
      {"TUTTI_CUDA_WATCHDOG", "abort"},
      {"TUTTI_HEARTBEAT_MS", "9"},
      {"TUTTI_HEARTBEAT_MS", "1s"},
  };
  for (const auto& [name, value] : refused) {
    const std::string message = error_of(name, value);
    EXPECT_EQ(message.rfind(name + "=" + value + " is not valid: it may be ", 0), 0u)
        << name << "=" << value << ": " << message;
  }
}

TEST(Config, TheSecretIsInNoMessageAndNoTable) {
  const std::string secret(5000, 's');
  EXPECT_EQ(error_of("TUTTI_SECRET", secret).find("sss"), std::string::npos);
  for (const ConfigVariable& row : describe(parse({{"TUTTI_SECRET", "sesame"}}))) {
    EXPECT_EQ(row.value.find("sesame"), std::string::npos);
    if (row.name == "TUTTI_SECRET") {
      EXPECT_EQ(row.value, "set");
    }
  }
}

TEST(Config, DescribeShowsWhatIsInForce) {
  std::map<std::string, std::string> shown;
  for (const ConfigVariable& row :
       describe(parse({{"TUTTI_STAGE_BYTES", "65536"}, {"TUTTI_SPINS", "7"}, {"TUTTI_ARENA_BYTES", "1536M"}}))) {
    EXPECT_TRUE(shown.emplace(row.name, row.value).second) << row.name << " is listed twice";
    EXPECT_FALSE(row.help.empty()) << row.name;
  }
  EXPECT_EQ(shown["TUTTI_STAGE_BYTES"], "64K");
  EXPECT_EQ(shown["TUTTI_ARENA_BYTES"], "1536M");
  EXPECT_EQ(shown["TUTTI_SPINS"], "7");
  EXPECT_EQ(shown["TUTTI_HOST_ID"], "unset");
  EXPECT_EQ(shown["TUTTI_HEARTBEAT_MS"], "500");
}

}  // namespace
}  // namespace tutti
