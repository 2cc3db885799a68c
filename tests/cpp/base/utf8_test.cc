// Text that is cut or comes from elsewhere.
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Utf8, NoCharacterIsCut) {
  EXPECT_EQ(first_of("abc", 2), "ab");
  EXPECT_EQ(first_of("abc", 9), "abc");
  EXPECT_EQ(first_of("a\u043f\u043e", 2), "a");
  EXPECT_EQ(first_of("a\u043f\u043e", 3), "a\u043f");
  EXPECT_EQ(first_of("\U0001F600", 3), "");
  EXPECT_EQ(first_of("\x80\x80\x80", 2), "") << "no text at all, and no end of it is looked for";
}

TEST(Utf8, ALineHasWholeCharactersOnly) {
  EXPECT_EQ(in_a_line("a\u043f\u20ac\U0001F600"), "a\u043f\u20ac\U0001F600");
  EXPECT_EQ(in_a_line("a\nb\x7f"), "a?b?");
  EXPECT_EQ(in_a_line("a\xd0"), "a?") << "cut";
  EXPECT_EQ(in_a_line("\xd0z\xbf"), "?z?") << "one byte without the other";
  EXPECT_EQ(in_a_line("\xc0\xaf"), "??") << "longer than needed";
  EXPECT_EQ(in_a_line("\xed\xa0\x80"), "???") << "half of a pair of UTF-16";
  EXPECT_EQ(in_a_line("\xf4\x90\x80\x80"), "????") << "beyond the last character";
  EXPECT_EQ(in_a_line("\xff"), "?");
}

}  // namespace
}  // namespace tutti
