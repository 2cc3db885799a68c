// What ranks compare by name.
#include "bootstrap/agreed_settings.h"

#include <gtest/gtest.h>

#include "bootstrap/exchange.h"

namespace tutti::test {
namespace {

AgreedSettings settings(const std::string& forced, const std::string& table) {
  return {version_setting(), {"FORCED", forced, forced}, {"TABLE", table, table, true}};
}

std::string refusal(const std::vector<AgreedSettings>& of_ranks) {
  try {
    compare_settings("group", of_ranks);
    return {};
  } catch (const KnownToAll& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    return error.what();
  }
}

TEST(AgreedSettings, OptionalOnesThatDifferAreTold) {
  EXPECT_EQ(compare_settings("group", {settings("a", "x"), settings("a", "x")}), "");
  EXPECT_EQ(compare_settings("group", {settings("a", "x"), settings("a", "y"), settings("a", "x")}),
            "TABLE is x on ranks 0 and 2 and y on rank 1");
}

TEST(AgreedSettings, OthersThatDifferKeepTheGroupFromForming) {
  EXPECT_EQ(refusal({settings("a", "x"), settings("a", "x"), settings("b", "y")}),
            "communicator \"group\" cannot form, for its ranks have different settings: FORCED is a on ranks 0 and 1 "
            "and b on rank 2. Give all ranks the same");
}

TEST(AgreedSettings, AnotherVersionIsNamed) {
  std::vector<AgreedSettings> of_ranks(2, settings("a", "x"));
  of_ranks[1][0].value = of_ranks[1][0].compared = "9.9";
  EXPECT_NE(refusal(of_ranks).find("the version of Tutti is "), std::string::npos);
  EXPECT_NE(refusal(of_ranks).find(" on rank 0 and 9.9 on rank 1"), std::string::npos);
  of_ranks[1].erase(of_ranks[1].begin() + 1);  // which compares something else
  EXPECT_NE(refusal(of_ranks).find("rank 1 speaks another version of Tutti than rank 0"), std::string::npos);
}

TEST(AgreedSettings, TravelWhole) {
  AgreedSettings sent = settings("a", "");
  sent.push_back({"SHOWN", "4194304 (chosen)", "4194304"});
  ByteWriter out;
  write_settings(out, sent);
  ByteReader in(out.str());
  EXPECT_EQ(read_settings(in), sent);
  EXPECT_TRUE(in.done());
}

// A value that is compared as it is shown: every rank's card has a handful of them, and all ranks read all cards.
TEST(AgreedSettings, OneTextTravelsOnce) {
  const std::string text(100, 'x');
  ByteWriter once, twice;
  write_settings(once, {{"NAME", text, text}});
  write_settings(twice, {{"NAME", text, std::string(100, 'y')}});
  EXPECT_GE(twice.str().size(), once.str().size() + text.size());
}

}  // namespace
}  // namespace tutti::test
