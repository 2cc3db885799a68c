#include "net/address.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tutti/error.h"

namespace tutti {
namespace {

SocketAddress at(const char* text) { return *SocketAddress::parse(text); }

std::vector<InterfaceAddress> host() {
  return {{"lo", at("127.0.0.1:0")},
          {"lo", at("[::1]:0")},
          {"eth0", at("[2001:db8::7]:0")},
          {"eth0", at("192.0.2.7:0")},
          {"ib0", at("[2001:db8:1::7]:0")}};
}

TEST(Address, TextSurvivesParsing) {
  for (const char* text : {"127.0.0.1:0", "192.0.2.7:65535", "[::1]:4711", "[2001:db8::7]:1"}) {
    const auto address = SocketAddress::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), text);
    EXPECT_EQ(SocketAddress::from(address->raw()).text(), text);
  }
}

TEST(Address, RefusesWhatIsNoAddress) {
  for (const char* text : {"", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3:1", "host:1",
                           "::1:80x", "[::1:80", "[]:80", "1.2.3.4:80 "}) {
    EXPECT_FALSE(SocketAddress::parse(text)) << text;
  }
}

TEST(Address, NamedInterfaceWinsAndPrefersIpv4) {
  EXPECT_EQ(choose_address(host(), "eth0", at("127.0.0.1:0")).text(), "192.0.2.7:0");
  EXPECT_EQ(choose_address(host(), "ib0", std::nullopt).text(), "[2001:db8:1::7]:0");
  EXPECT_EQ(choose_address(host(), "none,lo", std::nullopt).text(), "127.0.0.1:0");
}

TEST(Address, UnknownInterfaceIsNamedWithThoseThatExist) {
  try {
    choose_address(host(), "eth9", std::nullopt);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("eth9"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("lo, eth0, ib0"), std::string::npos);
  }
}

TEST(Address, RouteThenOutsideThenLoopback) {
  EXPECT_EQ(choose_address(host(), "", at("[2001:db8:1::7]:0")).text(), "[2001:db8:1::7]:0");
  EXPECT_EQ(choose_address(host(), "", std::nullopt).text(), "192.0.2.7:0");
  EXPECT_EQ(choose_address({{"lo", at("[::1]:0")}}, "", std::nullopt).text(), "[::1]:0");
  EXPECT_EQ(choose_address({}, "", std::nullopt).text(), "127.0.0.1:0");
}

TEST(Address, RouteToLoopbackOnlyIfTheNameSaysSo) {
  const auto local = route_to("127.0.0.1");
  ASSERT_TRUE(local);
  EXPECT_TRUE(local->loopback());
  const auto named = route_to("localhost");
  if (named) {
    EXPECT_TRUE(named->loopback());
  }
  char name[256] = "";
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  const auto own = route_to(name);
  if (own && std::string(name) != "localhost") {
    EXPECT_FALSE(own->loopback()) << own->text();
  }
  EXPECT_FALSE(route_to(""));
}

}  // namespace
}  // namespace tutti
