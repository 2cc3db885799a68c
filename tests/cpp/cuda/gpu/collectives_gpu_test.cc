// Every collective on a GPU: sizes, types, operations, alignments, protocols, transports.
#include <filesystem>
#include <random>
#include <set>

#include "cuda/gpu/gpu_ranks.h"
#include "device/cpu/kernels.h"

namespace tutti::cuda::test {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
                                       Collective::kAllGather, Collective::kGather,        Collective::kScatter,
                                       Collective::kAllToAll,  Collective::kReduceScatter, Collective::kBarrier};

CaseShape shape_of(Collective collective, std::size_t count, DataType dtype = DataType::kBfloat16) {
  CaseShape shape;
  shape.collective = collective;
  shape.dtype = dtype;
  shape.count = collective == Collective::kBarrier ? 0 : count;
  return shape;
}

class Algorithms : public testing::TestWithParam<std::string> {};

TEST_P(Algorithms, EveryCollectiveAtOddSizes) {
  for (const int size : {2, 3, 4, 8}) {
    GpuWorld world;
    world.size = size;
    world.options.settings().cuda_algorithm = GetParam();
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = 1;
      for (const Collective collective : kCollectives) {
        for (const std::size_t count : {0, 1, 3, 1024, 4099, 33333, 131071}) {
          CaseShape shape = shape_of(collective, count);
          shape.root = size - 1;
          shape.in_place = ++seed % 2 == 0;
          shape.shift = seed % 3;
          run_and_verify(rank, shape, seed);
        }
      }
    });
  }
}

// The root's own result too, however its input and its output lie; its input is as it was.
TEST_P(Algorithms, BroadcastIntoAnotherBuffer) {
  for (const int size : {2, 3, 8}) {
    GpuWorld world;
    world.size = size;
    world.options.settings().cuda_algorithm = GetParam();
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = 50;
      for (const std::size_t count : {1, 239, 40'961, 1'000'003}) {
        for (const std::size_t output_shift : {0, 1, 8, 16}) {
          CaseShape shape = shape_of(Collective::kBroadcast, count, DataType::kByte);
          shape.root = static_cast<int>(++seed % static_cast<std::uint64_t>(size));
          shape.shift = seed % 3;
          shape.output_shift = output_shift;
          const Buffers b = run_and_verify(rank, shape, seed);
          const std::vector<std::byte> given = CollectiveCase(shape, rank.size, seed).input(rank.rank);
          if (rank.download(b.input, count) != given) throw std::runtime_error("the input was written");
        }
      }
    });
  }
}

TEST_P(Algorithms, SequenceNumbersWrap) {
  for (const std::uint64_t first : {(std::uint64_t{1} << 30) - 50, (std::uint64_t{1} << 32) - 50}) {
    GpuWorld world;
    world.options.settings().cuda_algorithm = GetParam();
    world.first_sequence = first;
    run_gpu_ranks(world, [&](Rank& rank) {
      for (std::uint64_t i = 0; i < 100; ++i) {
        run_and_verify(rank, shape_of(Collective::kAllReduce, 1 + i * 37 % 3000, DataType::kUint32), i);
      }
    });
  }
}

// Few and many, even and odd.
TEST(Collectives, PiecesOfAllSizes) {
  for (const char* algorithm : {"bulk_one_shot@3x64x1024", "bulk_two_shot@3x64x1040", "bulk_two_shot@2x512x16"}) {
    GpuWorld world;
    world.size = 3;
    world.options.settings().cuda_algorithm = algorithm;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = 900;
      for (const Collective collective : kCollectives) {
        for (const std::size_t count : {1024, 33333}) run_and_verify(rank, shape_of(collective, count), ++seed);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Algorithms,
                         testing::Values("", "ll_one_shot", "ll128_one_shot", "bulk_one_shot@5", "ll_two_shot@3",
                                         "ll128_two_shot", "bulk_two_shot@7"),
                         [](const auto& which) {
                           const std::string name = which.param.substr(0, which.param.find('@'));
                           return name.empty() ? std::string("chosen") : name;
                         });

TEST(Collectives, EveryTypeAndOperation) {
  for (const char* algorithm : {"", "ll128_two_shot", "bulk_two_shot"}) {
    GpuWorld world;
    world.size = 3;
    world.options.settings().cuda_algorithm = algorithm;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = 100;
      for (int d = 0; d < kDataTypeCount; ++d) {
        for (int o = 0; o < kReduceOpCount; ++o) {
          CaseShape shape = shape_of(Collective::kAllReduce, 1237, static_cast<DataType>(d));
          shape.op = static_cast<ReduceOp>(o);
          shape.factor = 0.5;
          shape.shift = ++seed % 2;
          if (cpu::supports(shape.dtype, shape.op)) run_and_verify(rank, shape, seed);
        }
      }
    });
  }
}

TEST(Collectives, FactorsAreReadFromMemory) {
  for (const char* algorithm : {"", "ll_two_shot", "ll128_one_shot", "bulk_one_shot"}) {
    GpuWorld world;
    world.options.settings().cuda_algorithm = algorithm;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::uint64_t seed = 300;
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        for (int d = 0; d < kDataTypeCount; ++d) {
          CaseShape shape = shape_of(collective, 1237, static_cast<DataType>(d));
          shape.op = ReduceOp::kPremulSum;
          shape.factor = 0.25;
          shape.device_factor = true;
          shape.in_place = ++seed % 2 == 0;
          if (cpu::supports(shape.dtype, shape.op)) run_and_verify(rank, shape, seed);
        }
      }
    });
  }
}

TEST(Collectives, LargeMessages) {
  GpuWorld world;
  world.size = 4;
  world.memory_bytes = std::size_t{256} << 20;
  run_gpu_ranks(world, [&](Rank& rank) {
    for (const Collective c : {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                               Collective::kAllToAll, Collective::kBroadcast}) {
      run_and_verify(rank, shape_of(c, 1'500'001), 7);
    }
  });
}

TEST(Collectives, OneRank) {
  GpuWorld world;
  world.size = 1;
  run_gpu_ranks(world, [&](Rank& rank) {
    for (const Collective collective : kCollectives) run_and_verify(rank, shape_of(collective, 1001), 3);
  });
}

// A probe that finds no torn line is not enough.
TEST(Collectives, LinesAreUsedWhereTheLinksHaveNativeAtomics) {
  GpuWorld world;
  world.size = std::clamp(device_count(), 2, 8);
  bool native = true;
  for (int from = 0; from < device_count(); ++from) {
    for (int to = 0; to < device_count(); ++to) {
      int value = 0;
      if (from == to) continue;
      TUTTI_CUDA_OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, from, to));
      native = native && value != 0;
    }
  }
  run_gpu_ranks(world, [&](Rank& rank) {
    const std::string& transport = rank.comm->transport();
    if (native) EXPECT_EQ(transport, "peer memory");
    if (!native && transport.starts_with("peer memory")) {
      EXPECT_NE(transport.find("no native atomics"), std::string::npos) << transport;
    }
  });
}

// Names in /dev/shm, but for those of CUDA itself.
std::set<std::string> names_in_dev_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("cuda") == std::string::npos) names.insert(name);
  }
  return names;
}

// Files without a name.
TEST(Collectives, PinnedHostMemory) {
  GpuWorld world;
  world.size = 3;
  world.options.settings().cuda_transport = "host";
  const std::set<std::string> names = names_in_dev_shm();
  run_gpu_ranks(world, [&](Rank& rank) {
    EXPECT_EQ(names_in_dev_shm(), names);
    EXPECT_EQ(rank.comm->transport(), "pinned host memory: TUTTI_CUDA_TRANSPORT=host");
    for (const Collective collective : kCollectives) {
      for (const std::size_t count : {1, 3000, 100'003}) run_and_verify(rank, shape_of(collective, count), count);
    }
  });
}

TEST(Collectives, UnevenBlocks) {
  GpuWorld world;
  world.size = 3;
  run_gpu_ranks(world, [&](Rank& rank) {
    const int n = rank.size;
    for (const std::size_t unit : {std::size_t{1}, std::size_t{1000}, std::size_t{60'000}}) {
      rank.used = 0;
      const auto bytes_of = [&](int from, int to) {
        return static_cast<std::size_t>((from * 5 + to * 3) % 7) * unit * 4;
      };
      std::vector<void*> ins, outs;
      std::vector<std::size_t> in_sizes, out_sizes;
      for (int p = 0; p < n; ++p) {
        in_sizes.push_back(bytes_of(rank.rank, p));
        out_sizes.push_back(bytes_of(p, rank.rank));
        ins.push_back(rank.allocate(in_sizes.back()));
        outs.push_back(rank.allocate(out_sizes.back()));
        TUTTI_CUDA_OK(cudaMemsetAsync(ins.back(), rank.rank * 16 + p + 1, in_sizes.back(), rank.stream));
        TUTTI_CUDA_OK(cudaMemsetAsync(outs.back(), 0xa5, out_sizes.back(), rank.stream));
      }
      Call call;
      call.collective = Collective::kAllToAll;
      call.dtype = DataType::kInt32;
      call.uneven = true;
      call.input = Blocks::list(ins.data(), in_sizes.data());
      call.output = Blocks::list(outs.data(), out_sizes.data());
      rank.comm->run(call, rank.stream);
      rank.comm->synchronize(rank.stream);
      for (int p = 0; p < n; ++p) {
        for (const std::byte b : rank.download(static_cast<std::byte*>(outs[static_cast<std::size_t>(p)]),
                                               out_sizes[static_cast<std::size_t>(p)])) {
          if (b != static_cast<std::byte>(p * 16 + rank.rank + 1)) throw std::runtime_error("wrong data from a peer");
        }
      }
    }
  });
}

// Input and output in memory that all ranks map, in place and not; too small calls among them.
TEST(Collectives, WithoutCopies) {
  for (const int size : {2, 4}) {
    GpuWorld world;
    world.size = size;
    run_gpu_ranks(world, [&](Rank& rank) {
      const auto memory = rank.comm->allocate("test of " + std::to_string(size), std::size_t{48} << 20);
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
        for (const std::size_t count : {1000, 600'000, 1'000'003}) {
          for (const bool in_place : {false, true}) {
            CaseShape shape = shape_of(collective, count);
            shape.in_place = in_place;
            const CollectiveCase c(shape, size, count + (in_place ? 1 : 0));
            std::byte* const output = memory->data(rank.rank) + 256;
            std::byte* input = in_place ? output : output + (std::size_t{24} << 20);
            std::byte* result = output;
            if (in_place) (c.many_in() ? result : input) += c.in_place_offset(rank.rank);
            if (!in_place) TUTTI_CUDA_OK(cudaMemsetAsync(output, 0xa5, c.output_bytes(), rank.stream));
            rank.upload(input, c.input(rank.rank), rank.stream);
            const Buffers b{input, result, c.call(input, result)};
            rank.comm->run(b.call, rank.stream);
            rank.comm->synchronize(rank.stream);
            verify(rank, c, b, "without copies");
            // The next upload overwrites what peers write to and read from.
            rank.barrier->arrive_and_wait();
          }
        }
      }
      // All but the small ones; and none with a buffer elsewhere.
      EXPECT_EQ(rank.comm->direct_calls(), 12U);
      const CollectiveCase stranger(shape_of(Collective::kAllReduce, 600'000), size, 1);
      const Buffers elsewhere = prepare(rank, stranger, rank.stream);
      rank.comm->run(elsewhere.call, rank.stream);
      rank.comm->synchronize(rank.stream);
      verify(rank, stranger, elsewhere, "elsewhere");
      EXPECT_EQ(rank.comm->direct_calls(), 12U);
      rank.barrier->arrive_and_wait();
    });
  }
}

// Two ranks that only exchange messages take little memory, and nothing else runs there.
TEST(Messages, AloneTakeLittleMemory) {
  const auto store = std::make_shared<MemoryStore>();
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const auto free_now = [&] {
      std::size_t free = 0, total = 0;
      rank.barrier->arrive_and_wait();
      TUTTI_CUDA_OK(cudaMemGetInfo(&free, &total));
      rank.barrier->arrive_and_wait();
      return free;
    };
    CudaOptions options = world.options;
    options.device = rank.device;
    options.messages_only = true;
    const std::size_t before = free_now();
    const auto pair = CudaCommunicator::create(store, "pair", rank.rank, rank.size, options);
    const std::size_t after = free_now();
    // Of both ranks, which may share the GPU; other programs on it may take some meanwhile.
    EXPECT_LT(before - std::min(before, after), std::size_t{40} << 20);

    CaseShape shape = shape_of(Collective::kBroadcast, 0);
    std::vector<std::byte> bytes(3'000'001);
    fill(bytes, shape, 1, 0);
    std::byte* const data = rank.allocate(bytes.size());
    if (rank.rank == 0) rank.upload(data, bytes, rank.stream);
    pair->exchange({{rank.rank == 0, data, bytes.size(), 1 - rank.rank, 7}}, rank.stream);
    pair->synchronize(rank.stream);
    if (rank.rank == 1) EXPECT_EQ(rank.download(data, bytes.size()), bytes);

    const CollectiveCase c(shape_of(Collective::kAllReduce, 10), rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    try {
      pair->run(b.call, rank.stream);
      ADD_FAILURE() << "a collective over memory for messages";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find("messages_only"), std::string::npos) << e.what();
    }
    options.messages_only = rank.rank == 0;
    try {
      CudaCommunicator::create(store, "differing", rank.rank, rank.size, options);
      ADD_FAILURE() << "ranks differ in what their memory is for";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMismatch) << e.what();
    }
    rank.barrier->arrive_and_wait();
  });
}

// Ranks that would reach each other in different ways do not wait for each other.
TEST(Settings, ADifferenceIsNamedToAllRanks) {
  const auto store = std::make_shared<MemoryStore>();
  run_gpu_ranks({}, [&](Rank& rank) {
    CudaOptions options;
    options.device = rank.device;
    options.timeout = std::chrono::minutes(10);
    if (rank.rank == 1) options.settings().cuda_transport = "host";
    try {
      CudaCommunicator::create(store, "transport", rank.rank, rank.size, options);
      ADD_FAILURE() << "ranks differ in how they reach each other";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMismatch) << e.what();
      EXPECT_NE(std::string(e.what()).find("TUTTI_CUDA_TRANSPORT is unset on rank 0 and host on rank 1"),
                std::string::npos)
          << e.what();
    }
    rank.barrier->arrive_and_wait();
  });
}

// A message is under way that its receiver takes only after a communicator has been made: making it waits for no
// kernel.
TEST(Messages, UnderWayDoNotKeepCommunicatorsFromBeingMade) {
  constexpr std::size_t kBytes = std::size_t{24} << 20;  // more than scratch holds
  const auto store = std::make_shared<MemoryStore>();
  run_gpu_ranks({}, [&](Rank& rank) {
    CaseShape shape = shape_of(Collective::kBroadcast, 0);
    std::vector<std::byte> large(kBytes), small(1000);
    fill(large, shape, 1, 0);
    fill(small, shape, 2, 1);
    std::byte* const data = rank.allocate(kBytes);
    std::byte* const answer = rank.allocate(small.size());
    if (rank.rank == 0) rank.upload(data, large, rank.stream);
    if (rank.rank == 1) rank.upload(answer, small, rank.other_stream);
    TUTTI_CUDA_OK(cudaDeviceSynchronize());
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) rank.comm->exchange({{true, data, kBytes, 1, 0}}, rank.stream);
    rank.barrier->arrive_and_wait();
    CudaOptions options;
    options.device = rank.device;
    options.timeout = std::chrono::seconds(20);  // longer than the message would wait
    std::shared_ptr<CudaCommunicator> made[2];
    for (const bool messages_only : {true, false}) {
      options.messages_only = messages_only;
      made[messages_only] = CudaCommunicator::create(store, messages_only ? "pair" : "whole", rank.rank, 2, options);
      EXPECT_EQ(made[messages_only]->transport(), rank.comm->transport());
    }
    made[1]->exchange({{rank.rank == 1, answer, small.size(), 1 - rank.rank, 0}}, rank.other_stream);
    made[1]->synchronize(rank.other_stream);
    rank.barrier->arrive_and_wait();
    if (rank.rank == 1) rank.comm->exchange({{false, data, kBytes, 0, 0}}, rank.stream);
    rank.comm->synchronize(rank.stream);
    if (rank.rank == 1) EXPECT_EQ(rank.download(data, kBytes), large);
    if (rank.rank == 0) EXPECT_EQ(rank.download(answer, small.size()), small);
    rank.barrier->arrive_and_wait();
  });
}

TEST(Messages, BatchesInAnyOrder) {
  GpuWorld world;
  world.size = 4;
  run_gpu_ranks(world, [&](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      rank.used = 0;
      std::vector<CudaMessage> batch;
      std::vector<std::pair<std::byte*, std::vector<std::byte>>> due;
      for (int p = 0; p < rank.size; ++p) {
        for (std::uint32_t k = 0; p != rank.rank && k < 3; ++k) {
          const auto content = [&](int from, int to) {
            CaseShape shape = shape_of(Collective::kBroadcast, 0);
            std::vector<std::byte> bytes(static_cast<std::size_t>((from * 7 + to * 11 + round * 13) % 17) * k * 4001);
            fill(bytes, shape, static_cast<std::uint64_t>(round) * 10 + k, from * 8 + to);
            return bytes;
          };
          const std::vector<std::byte> out = content(rank.rank, p);
          std::byte* sent = rank.allocate(out.size());
          rank.upload(sent, out, rank.stream);
          due.emplace_back(nullptr, content(p, rank.rank));
          std::byte* received = rank.allocate(due.back().second.size());
          due.back().first = received;
          const CudaMessage send{true, sent, out.size(), p, k};
          const CudaMessage receive{false, received, due.back().second.size(), p, k};
          batch.push_back((rank.rank + round) % 2 == 0 ? send : receive);
          batch.push_back((rank.rank + round) % 2 == 0 ? receive : send);
        }
      }
      rank.comm->exchange(batch, rank.stream);
      rank.comm->synchronize(rank.stream);
      for (const auto& [memory, want] : due) {
        if (rank.download(memory, want.size()) != want) throw std::runtime_error("wrong message");
      }
    }
  });
}

}  // namespace
}  // namespace tutti::cuda::test
