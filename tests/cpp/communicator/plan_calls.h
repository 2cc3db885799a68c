// Calls of plans from files, checked: for tests of communicators.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "communicator/thread_ranks.h"
#include "device/cpu/arena.h"
#include "plan/plan.h"
#include "plan/writer.h"

namespace tutti::test {

class PlanFolder {
 public:
  PlanFolder()
      : path_(std::filesystem::temp_directory_path() / ("tutti_plans_" + std::to_string(std::random_device{}()))) {
    std::filesystem::create_directory(path_);
  }
  ~PlanFolder() { std::filesystem::remove_all(path_); }

  std::string add(const std::string& name, plan::Plan made) {
    made.name = name;
    return add_text(name, plan::write_plan(made));
  }
  std::string add_text(const std::string& name, const std::string& text) {
    const std::filesystem::path file = path_ / (name + ".json");
    std::ofstream(file) << text;
    return file.string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Floats in the arena or in private memory.
class Floats {
 public:
  Floats(std::size_t count, bool mapped) : private_(mapped ? 0 : count + 1) {
    data_ = mapped ? static_cast<float*>(process_arena()->allocate((count + 1) * sizeof(float))) : private_.data();
    if (mapped) mapped_ = data_;
  }
  ~Floats() {
    if (mapped_ != nullptr) process_arena()->deallocate(mapped_);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data() { return data_; }

 private:
  std::vector<float> private_;
  float* data_ = nullptr;
  float* mapped_ = nullptr;
};

inline float value(int rank, std::size_t block, std::size_t i, int salt) {
  return static_cast<float>(static_cast<int>((i * 7 + block * 5 + static_cast<std::size_t>(rank * 13 + salt)) % 31) -
                            15);
}

inline std::size_t blocks_in(Collective c, int n) {
  const bool many = c == Collective::kReduceScatter || c == Collective::kAllToAll || c == Collective::kScatter;
  return many ? static_cast<std::size_t>(n) : 1;
}
inline std::size_t blocks_out(Collective c, int n) {
  const bool many = c == Collective::kAllGather || c == Collective::kAllToAll || c == Collective::kGather;
  return many ? static_cast<std::size_t>(n) : 1;
}
inline bool is_rooted(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kGather || c == Collective::kScatter ||
         c == Collective::kReduce;
}

inline float expected(Collective c, ReduceOp op, int rank, int n, int root, std::size_t block, std::size_t i,
                      int salt) {
  const auto from = static_cast<int>(block);
  switch (c) {
    case Collective::kAllGather:
    case Collective::kGather:
      return value(from, 0, i, salt);
    case Collective::kScatter:
      return value(root, static_cast<std::size_t>(rank), i, salt);
    case Collective::kAllToAll:
      return value(from, static_cast<std::size_t>(rank), i, salt);
    case Collective::kBroadcast:
      return value(root, 0, i, salt);
    default: {
      float sum = 0;
      const std::size_t own = c == Collective::kReduceScatter ? static_cast<std::size_t>(rank) : 0;
      for (int r = 0; r < n; ++r) sum += value(r, own, i, salt);
      return op == ReduceOp::kAvg ? sum / static_cast<float>(n) : sum;
    }
  }
}

struct Variant {
  bool mapped = false;
  bool in_place = false;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
};

// One call on one rank, checked; the input must stay as it was.
inline void run_once(Communicator& c, Collective collective, std::size_t count, const Variant& v, int salt) {
  const int n = c.size();
  const std::size_t ins = blocks_in(collective, n);
  const std::size_t outs = blocks_out(collective, n);
  Floats input(ins * count, v.mapped);
  Floats output(outs * count, v.mapped);
  float* out = output.data();
  float* in = input.data();
  if (v.in_place && outs >= ins) in = out + (outs > ins ? static_cast<std::size_t>(c.rank()) * count : 0);
  if (v.in_place && outs < ins) out = in + static_cast<std::size_t>(c.rank()) * count;
  std::fill_n(output.data(), outs * count + 1, -1000.0F);
  for (std::size_t b = 0; b < ins; ++b) {
    for (std::size_t i = 0; i < count; ++i) in[b * count + i] = value(c.rank(), b, i, salt);
  }
  Call call;
  call.collective = collective;
  call.dtype = DataType::kFloat32;
  call.op = v.op;
  call.root = v.root;
  call.count = count;
  call.input = Blocks::single(in, count * sizeof(float));
  call.output = Blocks::single(out, count * sizeof(float));
  // Who is not the root has no such tensor.
  const bool gives = collective != Collective::kScatter || c.rank() == v.root;
  const bool takes = (collective != Collective::kGather && collective != Collective::kReduce) || c.rank() == v.root;
  if (!gives) call.input = {};
  if (!takes) call.output = {};
  c.run(call);
  if (!takes) return;
  for (std::size_t b = 0; b < outs; ++b) {
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(out[b * count + i], expected(collective, v.op, c.rank(), n, v.root, b, i, salt))
          << "rank " << c.rank() << " block " << b << " element " << i << " of " << count << " mapped " << v.mapped
          << " in place " << v.in_place;
    }
  }
  ASSERT_EQ(output.data()[outs * count], -1000.0F);
  if (v.in_place) return;
  for (std::size_t b = 0; b < ins; ++b) {
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(in[b * count + i], value(c.rank(), b, i, salt));
  }
}

inline bool ran(Communicator& c, const std::string& algorithm) {
  for (const MetricsRow& row : c.metrics().rows) {
    if (row.algorithm == algorithm) return true;
  }
  return false;
}

}  // namespace tutti::test
