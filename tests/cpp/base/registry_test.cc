// Exit hooks, fork handlers and the flag of a forked child.
#include "base/registry.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "support/child_process.h"

namespace tutti {
namespace {

void say(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// A hook whose owner is still there when the process exits.
void leak(std::function<void()> callback) {
  static const ExitHook* const hook = new ExitHook(std::move(callback));
  static_cast<void>(hook);
}

// Statements of death tests run in a program of their own, so that its clean exit can be watched.
class ExitHookTest : public testing::Test {
 protected:
  ExitHookTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ExitHookTest, RunsOnceAtACleanExit) {
  EXPECT_EXIT(
      {
        leak([] { say("<left>"); });
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^<left>$");
}

TEST_F(ExitHookTest, DoesNotRunOnceUnregistered) {
  EXPECT_EXIT(
      {
        leak([] { say("<stays>"); });
        {
          const ExitHook goes([] { say("<goes>"); });
        }
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^<stays>$");
}

TEST_F(ExitHookTest, DoesNotRunInAForkedChild) {
  EXPECT_EXIT(
      {
        leak([] { say("<left>"); });
        const pid_t child = ::fork();
        if (child == 0) std::exit(0);
        int status = 0;
        ::waitpid(child, &status, 0);
        say(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "<child ended>" : "<child failed>");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^<child ended><left>$");
}

TEST_F(ExitHookTest, DoesNotRunWithoutACleanExit) {
  EXPECT_EXIT(
      {
        leak([] { say("<left>"); });
        ::_exit(3);
      },
      testing::ExitedWithCode(3), "^$");
}

TEST(ForkedChild, IsToldToTheChildAndItsChildrenOnly) {
  EXPECT_FALSE(forked_child());
  const int code = test::run_in_child([] {
    if (!forked_child()) return 1;
    return test::run_in_child([] { return forked_child() ? 0 : 1; });
  });
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(forked_child());
}

struct Recorder final : ForkHandler {
  void before_fork() noexcept override { before = ++steps; }
  void after_fork_in_parent() noexcept override { parent = ++steps; }
  void after_fork_in_child() noexcept override { child = ++steps; }
  static inline int steps = 0;
  int before = 0;
  int parent = 0;
  int child = 0;
};

TEST(ForkHandlers, NestAroundTheForkLikeLocks) {
  Recorder outer;
  Recorder inner;
  const ForkHook outer_hook(outer);
  auto inner_hook = std::make_unique<ForkHook>(inner);
  const int code = test::run_in_child([&] {
    const bool nested = outer.before < inner.before && inner.before < inner.child && inner.child < outer.child;
    return nested && outer.parent == 0 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_LT(outer.before, inner.before);
  EXPECT_LT(inner.parent, outer.parent);
  EXPECT_EQ(inner.child, 0);
  inner_hook.reset();
  const int before = inner.before;
  test::run_in_child([] { return 0; });
  EXPECT_EQ(inner.before, before) << "an unregistered handler runs no more";
}

}  // namespace
}  // namespace tutti
