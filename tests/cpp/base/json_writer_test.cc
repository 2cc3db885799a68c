// What is written is JSON: commas, lines and escapes.
#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti::test {
namespace {

std::string sample(int indent) {
  JsonWriter out(indent);
  out.begin_object().member("none", std::vector<int>()).member("list", std::vector<int>{1, -2});
  out.key("inner").begin_object().end_object().member("yes", true).key("as it stands").json("1.5");
  out.json_key("\"a\"").begin_array().value("x").begin_array().value(0).end_array().end_array();
  out.end_object();
  return std::move(out).take();
}

TEST(JsonWriter, OnALine) {
  EXPECT_EQ(sample(-1), R"({"none":[],"list":[1,-2],"inner":{},"yes":true,"as it stands":1.5,"a":["x",[0]]})");
}

TEST(JsonWriter, IndentsWhatIsInside) {
  EXPECT_EQ(sample(2), R"({
  "none": [],
  "list": [
    1,
    -2
  ],
  "inner": {},
  "yes": true,
  "as it stands": 1.5,
  "a": [
    "x",
    [
      0
    ]
  ]
})");
}

TEST(JsonWriter, EscapesAndKeepsToUtf8) {
  JsonWriter out;
  out.begin_array().value("a \"b\" \\ /\n\t\x01\x7f").value("\u00e9\xff\xe2\x82").end_array();
  EXPECT_EQ(std::move(out).take(), "[\"a \\\"b\\\" \\\\ /\\n\\t\\u0001\x7f\",\"\u00e9\?\?\?\"]");
}

TEST(JsonWriter, WritesTheLargestNumbers) {
  JsonWriter out;
  out.begin_array().value(UINT64_MAX).value(INT64_MIN).end_array();
  EXPECT_EQ(std::move(out).take(), "[18446744073709551615,-9223372036854775808]");
}

}  // namespace
}  // namespace tutti::test
