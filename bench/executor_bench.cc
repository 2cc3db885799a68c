// What the interpreter costs: the time of an operation that does next to nothing.
#include <benchmark/benchmark.h>

#include <memory>

#include "executor/cpu/local_world.h"
#include "plan/plan.h"

namespace tutti::executor {
namespace {

// A thread block that does one thing again and again.
std::shared_ptr<const plan::Plan> many(plan::OpKind kind, int operations) {
  auto made = std::make_shared<plan::Plan>();
  made->collective = plan::PlanCollective::kTest;
  made->collective_name = "test";
  plan::Rank& rank = made->ranks.emplace_back();
  rank.chunks = {1, 1, 0};
  rank.semaphores = {operations};
  plan::ThreadBlock& block = rank.blocks.emplace_back();
  for (int i = 0; i < operations; ++i) {
    plan::Operation op;
    op.kind = kind;
    if (kind == plan::OpKind::kSemAcquire) {
      op.semaphore_ids = {0};
    } else {
      op.sources = {{plan::Operand::Place::kLocal, plan::BufferKind::kInput, 0, 0, 1}};
      op.destinations = {{plan::Operand::Place::kLocal, plan::BufferKind::kOutput, 0, 0, 1}};
    }
    block.operations.push_back(op);
  }
  return made;
}

void dispatch(benchmark::State& state, plan::OpKind kind) {
  constexpr int kOperations = 10'000;
  LocalWorld world(many(kind, kOperations), 16, 16);
  alignas(64) std::byte input[16] = {};
  alignas(64) std::byte output[16] = {};
  LocalMessage message;
  message.inputs = {input};
  message.outputs = {output};
  message.input_block_bytes = message.output_block_bytes = 16;
  for (auto _ : state) {
    if (!world.run(message).outcome.ok()) state.SkipWithError("the plan did not end");
  }
  state.SetItemsProcessed(state.iterations() * kOperations);
  state.counters["operation"] = benchmark::Counter(static_cast<double>(state.iterations()) * kOperations,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(dispatch, acquire, plan::OpKind::kSemAcquire);
BENCHMARK_CAPTURE(dispatch, copy_16_bytes, plan::OpKind::kCopy);

}  // namespace
}  // namespace tutti::executor

BENCHMARK_MAIN();
