#include "base/private_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "base/file_stamp.h"
#include "base/machine.h"
#include "support/temporary_folder.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST(PrivateFolder, KeepsFilesInFoldersThatItMakes) {
  const TemporaryFolder here;
  const PrivateFolder folder = PrivateFolder::open(here.file("a/b"));
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder.read("x", 100), std::nullopt);
  EXPECT_TRUE(folder.write("x", "one"));
  EXPECT_TRUE(folder.write("x", "two"));
  EXPECT_EQ(folder.read("x", 100), "two");
  EXPECT_EQ(folder.read("x", 2), std::nullopt) << "longer than what is wanted";
  EXPECT_EQ(fs::status(here.file("a/b")).permissions(), fs::perms::owner_all);
  EXPECT_EQ(std::distance(fs::directory_iterator(here.file("a/b")), {}), 1) << "nothing temporary stays";
}

TEST(PrivateFolder, RefusesAFolderThatLetsOthersIn) {
  const TemporaryFolder here;
  fs::create_directory(here.file("open"));
  fs::permissions(here.file("open"), fs::perms::owner_all | fs::perms::others_write);
  const PrivateFolder folder = PrivateFolder::open(here.file("open"));
  EXPECT_FALSE(folder);
  EXPECT_FALSE(folder.write("x", "one"));
  EXPECT_EQ(folder.read("x", 10), std::nullopt);
  EXPECT_TRUE(fs::is_empty(here.file("open")));
}

TEST(PrivateFolder, RefusesAFolderOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only the superuser can give a folder away";
  const TemporaryFolder here;
  const std::string theirs = here.file("theirs");
  fs::create_directory(theirs);
  fs::permissions(theirs, fs::perms::owner_all);
  ASSERT_EQ(::chown(theirs.c_str(), 12345, 12345), 0);
  EXPECT_FALSE(PrivateFolder::open(theirs));
}

TEST(PrivateFolder, FollowsNoLinks) {
  const TemporaryFolder here;
  const PrivateFolder real = PrivateFolder::open(here.file("real"));
  ASSERT_TRUE(real.write("x", "one"));
  fs::create_directory_symlink(here.file("real"), here.file("link"));
  EXPECT_FALSE(PrivateFolder::open(here.file("link")));
  fs::create_symlink(here.file("real/x"), here.file("real/y"));
  EXPECT_EQ(real.read("y", 100), std::nullopt);
  ASSERT_EQ(::mkfifo(here.file("real/pipe").c_str(), 0600), 0);
  EXPECT_EQ(real.read("pipe", 100), std::nullopt) << "and does not wait for a pipe";
}

TEST(PrivateFolder, WhereItCannotBeMadeNothingIsKept) {
  const TemporaryFolder here;
  here.write("file", "in the way");
  const PrivateFolder folder = PrivateFolder::open(here.file("file/below"));
  EXPECT_FALSE(folder);
  EXPECT_FALSE(folder.write("x", "one"));
}

TEST(PrivateFolder, ReadersSeeWholeFilesOnly) {
  const TemporaryFolder here;
  const PrivateFolder folder = PrivateFolder::open(here.file("f"));
  const std::vector<std::string> contents{std::string(100'000, 'a'), std::string(70'000, 'b')};
  ASSERT_TRUE(folder.write("x", contents[0]));
  std::thread writer([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(folder.write("x", contents[static_cast<std::size_t>(i % 2)]));
  });
  for (int i = 0; i < 100; ++i) {
    const auto seen = folder.read("x", 1 << 20);
    ASSERT_TRUE(seen);
    EXPECT_TRUE(*seen == contents[0] || *seen == contents[1]);
  }
  writer.join();
}

TEST(FileStamp, TellsAFileFromWhatReplacesIt) {
  const TemporaryFolder here;
  const std::string file = here.write("a", "one");
  const FileStamp before = FileStamp::of(file);
  EXPECT_EQ(before, FileStamp::of(file));
  EXPECT_FALSE(before.settled()) << "it has just been written";
  here.write("b", "two");
  fs::rename(here.file("b"), file);
  EXPECT_NE(before, FileStamp::of(file));
  EXPECT_EQ(FileStamp::of(here.file("missing")), FileStamp());
  EXPECT_FALSE(FileStamp().settled());
}

TEST(Machine, IsDescribedAndHasAnId) {
  const Machine here = this_machine();
  EXPECT_FALSE(here.cpu.empty());
  EXPECT_GE(here.cores, 1);
  EXPECT_EQ(here, this_machine());
  EXPECT_EQ(short_id(here).size(), 12u);
  Machine other = here;
  ++other.cores;
  EXPECT_NE(short_id(other), short_id(here));
  EXPECT_NE(describe(here).find(here.cpu), std::string::npos);
}

}  // namespace
}  // namespace tutti
