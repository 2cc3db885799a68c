// How fast the reduction kernels are: GB/s of payload (one source's bytes a second) and of memory traffic, by type,
// shape and size. The sizes lie in L1, L2, L3 and memory of a typical server core; `bytes` is one buffer.
//
//   kernels_bench --benchmark_filter='reduce/f32'
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "device/cpu/kernels.h"

namespace {

using tutti::DataType;
using tutti::ReduceOp;

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}))) {
    std::memset(data_, 0, bytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { ::operator delete (data_, std::align_val_t{4096}); }
  void* get() const { return data_; }

 private:
  std::byte* data_;
};

struct Shape {
  int n_srcs;
  int n_dsts;
  bool in_place;  // dst 0 is src 0
};

void reduce(benchmark::State& state, DataType dtype, ReduceOp op, std::size_t element, Shape shape) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  for (int i = 0; i < shape.n_srcs; ++i) srcs.push_back(buffers.emplace_back(new Buffer(bytes))->get());
  for (int i = 0; i < shape.n_dsts; ++i) {
    dsts.push_back(i == 0 && shape.in_place ? const_cast<void*>(srcs[0])
                                            : buffers.emplace_back(new Buffer(bytes))->get());
  }
  for (auto _ : state) {
    tutti::cpu::reduce(dsts.data(), shape.n_dsts, srcs.data(), shape.n_srcs, bytes / element, dtype, op, 3);
    benchmark::ClobberMemory();
  }
  const auto total = static_cast<double>(state.iterations()) * static_cast<double>(bytes);
  state.counters["payload"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
  state.counters["traffic"] = benchmark::Counter(total * (shape.n_srcs + shape.n_dsts), benchmark::Counter::kIsRate);
  state.SetLabel(tutti::cpu::target_name());
}

void copy(benchmark::State& state, void (*function)(void*, const void*, std::size_t) noexcept) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Buffer src(bytes), dst(bytes);
  for (auto _ : state) {
    function(dst.get(), src.get(), bytes);
    benchmark::ClobberMemory();
  }
  state.counters["payload"] = benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(bytes),
                                                 benchmark::Counter::kIsRate);
}

void plain_memcpy(void* dst, const void* src, std::size_t bytes) noexcept { std::memcpy(dst, src, bytes); }

void register_all() {
  struct Type {
    const char* name;
    DataType dtype;
    std::size_t element;
  };
  constexpr Type kTypes[] = {{"f32", DataType::kFloat32, 4},
                             {"bf16", DataType::kBfloat16, 2},
                             {"f16", DataType::kFloat16, 2},
                             {"f64", DataType::kFloat64, 8},
                             {"e4m3", DataType::kFloat8E4M3fn, 1}};
  struct NamedShape {
    const char* name;
    Shape shape;
  };
  constexpr NamedShape kShapes[] = {{"2to1", {2, 1, false}},
                                    {"2to1_in_place", {2, 1, true}},
                                    {"2to2", {2, 2, false}},
                                    {"4to1", {4, 1, false}},
                                    {"8to1", {8, 1, false}}};
  for (const Type& type : kTypes) {
    for (const NamedShape& shape : kShapes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const std::string name =
            std::string("reduce/") + type.name + "/" + (op == ReduceOp::kSum ? "sum/" : "avg/") + shape.name;
        auto* b = benchmark::RegisterBenchmark(name.c_str(), reduce, type.dtype, op, type.element, shape.shape);
        // 8 B to 256 B: what a small message pays; then L1, L2, L3, memory.
        for (const std::int64_t bytes : {8, 32, 256, 4 << 10, 64 << 10, 1 << 20, 64 << 20}) b->Arg(bytes);
      }
    }
  }
  for (const auto& [name, function] :
       {std::pair{"copy/memcpy", &plain_memcpy}, std::pair{"copy/tutti", &tutti::cpu::copy},
        std::pair{"copy/streaming", &tutti::cpu::copy_streaming}}) {
    auto* b = benchmark::RegisterBenchmark(name, copy, function);
    for (const std::int64_t bytes : {8, 64, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20})
      b->Arg(bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
