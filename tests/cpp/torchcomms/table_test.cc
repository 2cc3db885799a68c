// The look at an installed library's virtual functions: what the headers of `Compiled` say, against four libraries.
#include "torchcomms/table.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#pragma GCC visibility push(default)
namespace torch::comms {

struct Compiled {
  virtual ~Compiled() = default;
  virtual void send() = 0;
  virtual void recv(int tag) = 0;
  virtual int size() const { return 1; }
  virtual std::string text() const { return "1"; }
  virtual void unused() {}
};
struct CompiledAndOne : Compiled {
  virtual void last() = 0;
};

// The same order. What is not asked for has another name.
struct Same {
  virtual ~Same();
  virtual void send() = 0;
  virtual void recv(int tag) = 0;
  virtual int size() const { return 2; }
  virtual std::string text() const { return "2"; }
  virtual void renamed() {}
};
struct SameMade : Same {
  ~SameMade() override;
  int calls = 0;
  void send() override { calls += 1; }
  void recv(int tag) override { calls += tag; }
};

// As many, in another order.
struct Moved {
  virtual ~Moved();
  virtual void recv(int tag) = 0;
  virtual void send() = 0;
  virtual int size() const { return 3; }
  virtual std::string text() const { return "3"; }
  virtual void unused() {}
};
struct MovedMade : Moved {
  ~MovedMade() override;
  int calls = 0;
  void send() override { calls += 2; }
  void recv(int tag) override { calls += 2 * tag; }
};

// One more, behind them.
struct Longer {
  virtual ~Longer();
  virtual void send() {}
  virtual void recv(int /*tag*/) {}
  virtual int size() const { return 4; }
  virtual std::string text() const { return "4"; }
  virtual void unused() {}
  virtual void more() {}
};

// Destructors that are no part of a header: so the tables of their classes are here.
Same::~Same() = default;
SameMade::~SameMade() = default;
Moved::~Moved() = default;
MovedMade::~MovedMade() = default;
Longer::~Longer() = default;

}  // namespace torch::comms
#pragma GCC visibility pop

namespace tutti::torchcomms {
namespace {

namespace comms = ::torch::comms;

std::string look(const std::string& name, const std::string& implementation) {
  const ClassOfHeaders headers{name,
                               implementation,
                               place_of(&comms::CompiledAndOne::last),
                               {{"send", place_of(&comms::Compiled::send)},
                                {"recv", place_of(&comms::Compiled::recv)},
                                {"size", place_of(&comms::Compiled::size)},
                                {"text", place_of(&comms::Compiled::text)}}};
  void* const program = dlopen(nullptr, RTLD_LAZY);
  std::string found = difference(program, headers);
  dlclose(program);
  return found;
}

TEST(Table, FunctionsArePlacedBehindTheDestructors) {
  EXPECT_EQ(place_of(&comms::Compiled::send), 2U);
  EXPECT_EQ(place_of(&comms::Compiled::size), 4U);
  EXPECT_EQ(place_of(&comms::CompiledAndOne::last), 7U);
}

TEST(Table, TheSameOrderIsTaken) { EXPECT_EQ(look("Same", "SameMade"), ""); }

TEST(Table, AnotherOrderIsNamed) {
  EXPECT_EQ(look("Moved", "MovedMade"), "Moved has 'recv' there where the headers have 'send'");
}

TEST(Table, OneFunctionMoreIsCounted) {
  EXPECT_EQ(look("Longer", "Longer"), "Longer has 8 virtual functions there, 7 in the headers");
}

TEST(Table, WhatIsNotExportedIsNotCompared) { EXPECT_EQ(look("Absent", "Absent"), ""); }

}  // namespace
}  // namespace tutti::torchcomms
