#include "base/whole_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string refusal_of(const std::string& path) {
  return test::refusal([&] { whole_file(path); });
}

TEST(WholeFile, GivesWhatIsInIt) {
  const test::TemporaryFolder here;
  for (const std::size_t bytes : {0, 1, 65'535, 65'536, 200'000}) {
    std::string text(bytes, 'x');
    if (bytes > 1) text[bytes / 2] = '\0';
    EXPECT_EQ(whole_file(here.write("file", text)), text);
  }
  EXPECT_NE(whole_file("/proc/self/status").find("Pid:"), std::string::npos) << "a file without a size";
}

// None of these may wait, or fill the memory.
TEST(WholeFile, WhatHasNoEndOrIsNoneIsRefused) {
  const test::TemporaryFolder here;
  ASSERT_EQ(::mkfifo(here.file("pipe").c_str(), 0600), 0);
  for (const std::string& path : {here.path(), here.file("pipe"), std::string("/dev/zero"), std::string("/dev/null")}) {
    EXPECT_EQ(refusal_of(path), "is no regular file") << path;
  }
  EXPECT_EQ(refusal_of(here.file("missing")), "cannot be read: " + describe_errno(ENOENT));
  const std::string large = here.write("large", "");
  for (const std::size_t bytes : {kMostFileBytes + 1, std::size_t{3} << 30}) {  // without a block on the disk
    ASSERT_EQ(::truncate(large.c_str(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(refusal_of(large), "has more than the 64 MB that are read");
  }
  ASSERT_EQ(::truncate(large.c_str(), static_cast<off_t>(kMostFileBytes)), 0);
  EXPECT_EQ(whole_file(large).size(), kMostFileBytes);
}

}  // namespace
}  // namespace tutti
