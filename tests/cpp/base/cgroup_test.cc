// Quotas of control groups, from the texts that kernels show.
#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <map>

namespace tutti {
namespace {

FileReader files(std::map<std::string, std::string> contents) {
  return [contents = std::move(contents)](const std::string& path) -> std::optional<std::string> {
    const auto found = contents.find(path);
    return found == contents.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Cgroup, ParsesVersion2) {
  EXPECT_EQ(parse_cpu_max("150000 100000\n"), 1.5);
  EXPECT_EQ(parse_cpu_max("max 100000\n"), std::nullopt);
  for (const char* text : {"", "100000", "0 100000", "100000 0", "-1 100000", "1x 100000", "1 2 3"}) {
    EXPECT_EQ(parse_cpu_max(text), std::nullopt) << text;
  }
}

TEST(Cgroup, ParsesVersion1) {
  EXPECT_EQ(parse_cfs_quota("50000\n", "100000\n"), 0.5);
  EXPECT_EQ(parse_cfs_quota("-1\n", "100000\n"), std::nullopt);
}

TEST(Cgroup, NoFilesMeansNoQuota) { EXPECT_EQ(cgroup_cpu_quota(files({})), std::nullopt); }

TEST(Cgroup, TheTightestGroupOnTheWayUpCounts) {
  const auto read = files({{"/proc/self/cgroup", "0::/a/b\n"},
                           {"/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"},
                           {"/sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
                           {"/sys/fs/cgroup/cpu.max", "max 100000\n"}});
  EXPECT_EQ(cgroup_cpu_quota(read), 2.0);
}

TEST(Cgroup, AContainerThatSeesItsPathFromOutsideFindsItsRoot) {
  const auto read = files({{"/proc/self/cgroup", "0::/docker/1234\n"}, {"/sys/fs/cgroup/cpu.max", "100000 100000\n"}});
  EXPECT_EQ(cgroup_cpu_quota(read), 1.0);
}

TEST(Cgroup, Version1IsFoundByItsControllerAndNotByPartOfAName) {
  const auto read = files({{"/proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/job:7\n1:name=systemd:/\n0::/\n"},
                           {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "1"},
                           {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000"},
                           {"/sys/fs/cgroup/cpu,cpuacct/job:7/cpu.cfs_quota_us", "300000\n"},
                           {"/sys/fs/cgroup/cpu,cpuacct/job:7/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(cgroup_cpu_quota(read), 3.0);
}

TEST(Cgroup, ParsesLimitsOfMemory) {
  EXPECT_EQ(parse_memory_limit("1073741824\n"), std::uint64_t{1} << 30);
  for (const char* text : {"", "max\n", "-1", "1x", "99999999999999999999"}) {
    EXPECT_EQ(parse_memory_limit(text), std::nullopt) << text;
  }
}

TEST(Cgroup, TheTightestLimitOfMemoryCounts) {
  EXPECT_EQ(cgroup_memory_limit(files({})), std::nullopt);
  EXPECT_EQ(cgroup_memory_limit(files({{"/proc/self/cgroup", "0::/a/b\n"},
                                       {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                                       {"/sys/fs/cgroup/a/memory.max", "8000\n"},
                                       {"/sys/fs/cgroup/a/memory.high", "7000\n"},
                                       {"/sys/fs/cgroup/memory.max", "9000\n"}})),
            7000u);
  EXPECT_EQ(cgroup_memory_limit(files({{"/proc/self/cgroup", "4:memory:/docker/1234\n2:cpu:/x\n0::/\n"},
                                       {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n"},
                                       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"}})),
            5000u);
}

TEST(Cgroup, MalformedLinesAreSkipped) {
  const auto read = files({{"/proc/self/cgroup", "nonsense\n:\n\n0::/"}, {"/sys/fs/cgroup/cpu.max", "50000 100000"}});
  EXPECT_EQ(cgroup_cpu_quota(read), 0.5);
}

}  // namespace
}  // namespace tutti
