// What proving a plan takes: seconds and memory of verify_strictly for families of plans and numbers of ranks.
//
//   verifier_bench [--json] [FAMILY:RANKS[:PIECES]…]
//
// Without arguments it runs the table of docs/verifier.md. Every case runs in a process of its own, so that its peak of
// memory is its own; what is measured is the proof, with the plan already in memory.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "plan/generators/generators.h"
#include "plan/verifier/verifier.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

struct Case {
  std::string family;
  GeneratorSpec spec;
};

struct Measured {
  bool proven = false;
  double seconds = 0;
  std::int64_t operations = 0;
};

// One-shot in as many pieces as the ranks of 64: the plan that the DSL makes.
const std::vector<Case>& table() {
  static const std::vector<Case> kTable{
      {"ring", {64, 8, 0}},
      {"ring", {256, 8, 0}},
      {"ring", {512, 8, 0}},
      {"recursive-doubling", {256, 8, 0}},
      {"recursive-doubling", {1024, 8, 0}},
      {"recursive-doubling", {4096, 8, 0}},
      {"halving-doubling", {256, 8, 0}},
      {"halving-doubling", {1024, 8, 0}},
      {"double-tree", {256, 8, 0}},
      {"double-tree", {1024, 8, 0}},
      {"double-tree", {4096, 8, 0}},
      {"two-level", {256, 8, 0}},
      {"two-level", {1024, 8, 0}},
      {"two-level", {4096, 8, 0}},
      {"two-shot", {64, 8, 0}},
      {"one-shot", {64, 8, 1}},
      {"one-shot", {64, 8, 64}},
  };
  return kTable;
}

Case parsed(const char* text) {
  const char* ranks = std::strchr(text, ':');
  if (ranks == nullptr) throw_error(ErrorKind::kInvalidArgument, std::string(text) + ": FAMILY:RANKS is expected");
  Case out{{text, ranks}, {std::atoi(ranks + 1), 8, 0}};
  if (const char* pieces = std::strchr(ranks + 1, ':')) out.spec.pieces = std::atoi(pieces + 1);
  return out;
}

Measured measure(const Case& one) {
  Measured out;
  const Plan plan = generate_written_out(one.family, one.spec);
  for (const Rank& rank : plan.ranks) {
    for (const ThreadBlock& block : rank.blocks) out.operations += static_cast<std::int64_t>(block.operations.size());
  }
  const auto start = std::chrono::steady_clock::now();
  out.proven = verify_strictly(plan).outcome == Outcome::kProven;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

bool run(const Case& one, bool json) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw_error(ErrorKind::kInternal, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    const Measured measured = measure(one);
    const bool sent = write(pipe_ends[1], &measured, sizeof measured) == sizeof measured;
    _exit(sent ? 0 : 1);
  }
  close(pipe_ends[1]);
  Measured measured;
  const bool got = read(pipe_ends[0], &measured, sizeof measured) == sizeof measured;
  close(pipe_ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  const bool right = got && measured.proven;
  const char* const form =
      json ? "{\"family\": \"%s\", \"ranks\": %d, \"pieces\": %d, \"operations\": %ld, \"seconds\": %.3f, "
             "\"peak_mb\": %ld, \"proven\": %s}\n"
           : "%-20s %5d ranks %4d pieces %9ld operations %8.2f s %6ld MB  proven: %s\n";
  std::printf(form, one.family.c_str(), one.spec.ranks, one.spec.pieces, static_cast<long>(measured.operations),
              measured.seconds, usage.ru_maxrss / 1024, right ? "true" : "false");
  std::fflush(stdout);
  return right;
}

}  // namespace
}  // namespace tutti::plan

int main(int argc, char** argv) {
  using namespace tutti::plan;
  bool json = false;
  std::vector<Case> cases;
  bool right = true;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--json") == 0) {
        json = true;
      } else {
        cases.push_back(parsed(argv[i]));
      }
    }
    for (const Case& one : cases.empty() ? table() : cases) right = run(one, json) && right;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return right ? 0 : 1;
}
