// Run when the tests are built: emit_compiled_cases FOLDER FILES writes the compiled plans of compiled_requests() to
// FILES sources in FOLDER. Each request is run, interpreted, so that what is compiled is what a call asks for.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "cuda/plan_twin.h"
#include "executor/cuda/emit.h"

namespace tutti::cuda::test {
namespace {

std::vector<executor::PlanSource> sources() {
  std::vector<executor::PlanSource> made;
  for (const CompiledRequest& one : compiled_requests()) {
    Twin twin(one.plan.plan, 1 << 16, one.limits);
    twin.compiled = [&](int rank, const executor::DeviceVariant& variant, DataType dtype, ReduceOp op) {
      const executor::EmitRequest request{variant, dtype, op == ReduceOp::kAvg ? ReduceOp::kSum : op};
      const std::string space = "case_" + std::to_string(made.size());
      made.push_back(executor::emit(*twin.device.plans[static_cast<std::size_t>(rank)], request, space));
      return CompiledPlan{};
    };
    if (const std::string fault = twin.fault(one.request, 1); !fault.empty()) {
      std::cerr << one.plan.name << ": " << fault << "\n";
      std::exit(1);
    }
  }
  return made;
}

// Of `files` sources, number `index`: every files-th case. Each adds its own to the table.
void write(const std::string& folder, std::size_t files, std::size_t index,
           const std::vector<executor::PlanSource>& made) {
  std::ofstream out(folder + "/compiled_cases_" + std::to_string(index) + ".cc");
  out << "#include \"cuda/thread_team.h\"\n";
  out << "#define TUTTI_PLAN_TEAM ::tutti::cuda::test::ThreadTeam\n";
  out << "#include \"cuda/compiled_cases.h\"\n#include \"executor/cuda/compiled_block.cuh\"\n";
  for (std::size_t i = index; i < made.size(); i += files) out << made[i].block;
  out << "\nnamespace tutti::cuda::test {\nvoid add_compiled_cases_" << index << "(CompiledCases& cases) {\n";
  for (std::size_t i = index; i < made.size(); i += files) {
    out << "  cases[" << i << "] = &run_plan_blocks<executor::case_" << i
        << "::Block, ThreadTeam, executor::CompiledArgs>;\n";
  }
  out << "}\n}  // namespace tutti::cuda::test\n";
  if (!out.flush()) std::exit(1);
}

}  // namespace
}  // namespace tutti::cuda::test

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto files = static_cast<std::size_t>(std::atoi(argv[2]));
  const std::vector<tutti::executor::PlanSource> made = tutti::cuda::test::sources();
  for (std::size_t i = 0; i < files; ++i) tutti::cuda::test::write(argv[1], files, i, made);
}
