// Every collective against what it should give, at sizes around each boundary of the algorithms.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <tuple>

#include "communicator/calls.h"
#include "communicator/thread_ranks.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

// 0, 1, odd; around the inline payload (30 floats), the slot (8192) and a chunk (2048 and up).
const std::vector<std::size_t> kCounts =
    kSanitized ? std::vector<std::size_t>{0, 1, 30, 31, 2047, 8192, 8193, 100'003}
               : std::vector<std::size_t>{0, 1, 3, 29, 30, 31, 1000, 2047, 4096, 8191, 8192, 8193, 40'001, 300'007};

float value(int rank, std::size_t i, int salt) {
  return static_cast<float>(
      static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13 + static_cast<std::size_t>(salt)) % 31) - 15);
}

std::vector<float> input(int rank, std::size_t count, int salt) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value(rank, i, salt);
  return x;
}

Blocks blocks(std::vector<float>& x, int n) {
  Blocks b = Blocks::single(x.data(), x.size() / static_cast<std::size_t>(n) * sizeof(float));
  return b;
}

// (ranks, hosts, forced algorithm)
using Param = std::tuple<int, int, const char*>;

class Collectives : public testing::TestWithParam<Param> {
 protected:
  static World world() {
    World w;
    w.size = std::get<0>(GetParam());
    const int hosts = std::get<1>(GetParam());
    if (hosts > 1) w.host_of = [hosts](int r) { return "host" + std::to_string(r % hosts); };
    w.algorithm = std::get<2>(GetParam());
    return w;
  }
};

TEST_P(Collectives, AllReduceInAndOutOfPlace) {
  run_ranks(world(), [](Communicator& c) {
    for (const std::size_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        std::vector<float> x = input(c.rank(), count, 1);
        std::vector<float> y(count, -1);
        Blocks in = Blocks::single(x.data(), count * sizeof(float));
        Blocks out = in_place ? in : Blocks::single(y.data(), count * sizeof(float));
        c.run(call_of(Collective::kAllReduce, count, in, out));
        const std::vector<float>& got = in_place ? x : y;
        for (std::size_t i = 0; i < count; ++i) {
          float want = 0;
          for (int r = 0; r < c.size(); ++r) want += value(r, i, 1);
          ASSERT_EQ(got[i], want) << "count " << count << " element " << i << " rank " << c.rank();
        }
      }
    }
  });
}

TEST_P(Collectives, ReduceToEveryRoot) {
  run_ranks(world(), [](Communicator& c) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < c.size(); ++root) {
        std::vector<float> x = input(c.rank(), count, root);
        std::vector<float> y(count, -1);
        Call call = call_of(Collective::kReduce, count, Blocks::single(x.data(), count * 4),
                            Blocks::single(y.data(), count * 4), root);
        call.op = ReduceOp::kMax;
        c.run(call);
        for (std::size_t i = 0; i < count; ++i) {
          float want = -1;
          if (c.rank() == root) {
            want = value(0, i, root);
            for (int r = 1; r < c.size(); ++r) want = std::max(want, value(r, i, root));
          }
          ASSERT_EQ(y[i], want) << "count " << count << " root " << root << " element " << i;
        }
      }
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  run_ranks(world(), [](Communicator& c) {
    for (const std::size_t count : kCounts) {
      for (int root = 0; root < c.size(); ++root) {
        std::vector<float> x = input(c.rank(), count, 5);
        const Blocks b = Blocks::single(x.data(), count * 4);
        c.run(call_of(Collective::kBroadcast, count, b, b, root));
        ASSERT_EQ(x, input(root, count, 5)) << "count " << count << " root " << root;
      }
    }
  });
}

TEST_P(Collectives, AllGatherAndGather) {
  run_ranks(world(), [](Communicator& c) {
    const auto n = static_cast<std::size_t>(c.size());
    for (const std::size_t count : kCounts) {
      std::vector<float> x = input(c.rank(), count, 2);
      std::vector<float> want;
      for (int r = 0; r < c.size(); ++r) {
        const auto part = input(r, count, 2);
        want.insert(want.end(), part.begin(), part.end());
      }
      std::vector<float> y(count * n, -1);
      c.run(call_of(Collective::kAllGather, count, Blocks::single(x.data(), count * 4), blocks(y, c.size())));
      ASSERT_EQ(y, want) << "count " << count;
      // In place: the input is its own block of the output.
      std::vector<float> z(count * n, -1);
      std::copy(x.begin(), x.end(),
                z.begin() + static_cast<std::ptrdiff_t>(count * static_cast<std::size_t>(c.rank())));
      Blocks out = blocks(z, c.size());
      c.run(call_of(Collective::kAllGather, count, Blocks::single(out.data(c.rank()), count * 4), out));
      ASSERT_EQ(z, want) << "in place, count " << count;
      for (int root = 0; root < c.size(); ++root) {
        std::vector<float> g(count * n, -1);
        c.run(call_of(Collective::kGather, count, Blocks::single(x.data(), count * 4), blocks(g, c.size()), root));
        ASSERT_EQ(g, c.rank() == root ? want : std::vector<float>(count * n, -1))
            << "count " << count << " root " << root;
      }
    }
  });
}

TEST_P(Collectives, ScatterReduceScatterAllToAll) {
  run_ranks(world(), [](Communicator& c) {
    const auto n = static_cast<std::size_t>(c.size());
    const auto me = static_cast<std::size_t>(c.rank());
    for (const std::size_t count : kCounts) {
      std::vector<float> x = input(c.rank(), count * n, 3);
      for (int root = 0; root < c.size(); ++root) {
        std::vector<float> y(count, -1);
        c.run(call_of(Collective::kScatter, count, blocks(x, c.size()), Blocks::single(y.data(), count * 4), root));
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(y[i], value(root, me * count + i, 3)) << "scatter, root " << root;
      }
      std::vector<float> y(count, -1);
      c.run(call_of(Collective::kReduceScatter, count, blocks(x, c.size()), Blocks::single(y.data(), count * 4)));
      for (std::size_t i = 0; i < count; ++i) {
        float want = 0;
        for (int r = 0; r < c.size(); ++r) want += value(r, me * count + i, 3);
        ASSERT_EQ(y[i], want) << "reduce-scatter, count " << count << " element " << i;
      }
      std::vector<float> z(count * n, -1);
      c.run(call_of(Collective::kAllToAll, count, blocks(x, c.size()), blocks(z, c.size())));
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(z[r * count + i], value(static_cast<int>(r), me * count + i, 3)) << "all-to-all, count " << count;
        }
      }
    }
  });
}

TEST_P(Collectives, UnevenAllGatherAndAllToAll) {
  run_ranks(world(), [](Communicator& c) {
    const auto n = static_cast<std::size_t>(c.size());
    const auto me = static_cast<std::size_t>(c.rank());
    for (const std::size_t unit : {0, 1, 17, 3001, 70'001}) {
      const auto count_of = [&](std::size_t from, std::size_t to) { return unit * ((from * 3 + to * 2) % 4); };
      std::vector<std::vector<float>> in(n), out(n);
      std::vector<void*> in_ptr(n), out_ptr(n);
      std::vector<std::size_t> in_bytes(n), out_bytes(n);
      for (std::size_t r = 0; r < n; ++r) {
        in[r] = input(c.rank(), count_of(me, r), static_cast<int>(r));
        out[r].assign(count_of(r, me), -1);
        in_ptr[r] = in[r].data();
        out_ptr[r] = out[r].data();
        in_bytes[r] = in[r].size() * 4;
        out_bytes[r] = out[r].size() * 4;
      }
      Call call = call_of(Collective::kAllToAll, 0, Blocks::list(in_ptr.data(), in_bytes.data()),
                          Blocks::list(out_ptr.data(), out_bytes.data()));
      call.uneven = true;
      c.run(call);
      for (std::size_t r = 0; r < n; ++r) {
        ASSERT_EQ(out[r], input(static_cast<int>(r), count_of(r, me), c.rank()))
            << "from rank " << r << " unit " << unit;
      }
      for (std::size_t r = 0; r < n; ++r) {
        out[r].assign(unit * r, -1);
        out_ptr[r] = out[r].data();
        out_bytes[r] = out[r].size() * 4;
      }
      std::vector<float> mine = input(c.rank(), unit * me, 9);
      Call gather = call_of(Collective::kAllGather, mine.size(), Blocks::single(mine.data(), mine.size() * 4),
                            Blocks::list(out_ptr.data(), out_bytes.data()));
      gather.uneven = true;
      c.run(gather);
      for (std::size_t r = 0; r < n; ++r) ASSERT_EQ(out[r], input(static_cast<int>(r), unit * r, 9)) << "unit " << unit;
    }
  });
}

TEST_P(Collectives, AsynchronousCallsRunInOrder) {
  run_ranks(world(), [](Communicator& c) {
    std::vector<std::vector<float>> x(40);
    std::vector<WorkPtr> works;
    for (std::size_t k = 0; k < x.size(); ++k) {
      x[k].assign(k * 97, static_cast<float>(c.rank() + 1));
      const Blocks b = Blocks::single(x[k].data(), x[k].size() * 4);
      if (k % 3 == 2) {
        c.run(call_of(Collective::kAllReduce, x[k].size(), b, b));
      } else {
        works.push_back(c.submit(call_of(Collective::kAllReduce, x[k].size(), b, b)));
      }
    }
    for (const auto& work : works) work->wait();
    const float want = static_cast<float>(c.size() * (c.size() + 1) / 2);
    for (const auto& v : x) ASSERT_EQ(v, std::vector<float>(v.size(), want));
    c.run(call_of(Collective::kBarrier, 0, {}, {}));
  });
}

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const std::string algorithm = std::get<2>(info.param);
  return std::to_string(std::get<0>(info.param)) + "ranks" + std::to_string(std::get<1>(info.param)) + "hosts" +
         (algorithm.empty() ? "" : "_" + algorithm);
}

INSTANTIATE_TEST_SUITE_P(OneHost, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 7, 8), testing::Values(1), testing::Values("")),
                         param_name);
INSTANTIATE_TEST_SUITE_P(Staged, Collectives,
                         testing::Combine(testing::Values(2, 3, 5), testing::Values(1), testing::Values("staged")),
                         param_name);
INSTANTIATE_TEST_SUITE_P(Hosts, Collectives,
                         testing::Values(Param{2, 2, ""}, Param{3, 2, ""}, Param{4, 2, ""}, Param{5, 3, ""}),
                         param_name);

}  // namespace
}  // namespace tutti::test
