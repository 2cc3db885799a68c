// The kernels' bodies on the host: every collective over every protocol, with ranks and blocks as threads.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <random>

#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"
#include "device/cpu/kernels.h"
#include "support/sanitized.h"

namespace tutti::cuda::test {
namespace {

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
                                       Collective::kAllGather, Collective::kGather,        Collective::kScatter,
                                       Collective::kAllToAll,  Collective::kReduceScatter, Collective::kBarrier};

// Whether the rank's input lies in its output, or is it. Of a broadcast it makes no difference to others than the root.
bool in_place(const CaseShape& shape, int rank) {
  if (shape.collective == Collective::kAllToAll) return false;
  const bool either = shape.collective == Collective::kBroadcast && rank != shape.root;
  return either ? rank % 2 == 0 : shape.in_place;
}

// Runs the case once and checks every rank's output, the bytes around it, and that inputs are as they were.
void run_case(HostRanks& ranks, const CaseShape& shape, std::uint64_t seed, const char* algorithm) {
  const int size = ranks.size();
  const CollectiveCase c(shape, size, seed);
  const Choice choice = choice_for(c, size, algorithm);
  SCOPED_TRACE(describe(shape, size) + " " + to_string(choice) + " seed " + std::to_string(seed));
  constexpr std::size_t kGuard = 32;
  const std::size_t shift = shape.shift * size_of(shape.dtype);
  const std::size_t output_shift = shift + shape.output_shift * size_of(shape.dtype);
  std::vector<std::vector<std::byte>> ins, outs;
  std::vector<Call> calls;
  const std::vector<std::byte> factor = stored_factor(shape);
  for (int r = 0; r < size; ++r) {
    ins.emplace_back(std::max(c.input_bytes(), c.output_bytes()) + shift + 2 * kGuard, std::byte{0x5a});
    outs.emplace_back(c.output_bytes() + output_shift + 2 * kGuard, std::byte{0xa5});
    std::byte* in = ins.back().data() + kGuard + shift;
    std::byte* out = outs.back().data() + kGuard + output_shift;
    if (in_place(shape, r)) {
      const std::size_t offset = c.in_place_offset(r);
      if (c.many_in()) {
        out = in + offset;
      } else {
        in = out + offset;
      }
    }
    if (c.input_bytes() > 0) std::memcpy(in, c.input(r).data(), c.input_bytes());
    calls.push_back(c.call(in, out));
    if (shape.device_factor) {
      calls.back().device_factor = factor.data();
      calls.back().factor = -1.0;  // nobody's
    }
  }
  const std::vector<std::vector<std::byte>> before = ins;
  ranks.run([&](int) { return choice.blocks; },
            [&](int r, const SerialTeam& team) {
              HostRanks::launch(team, ranks.world(r), calls[static_cast<std::size_t>(r)], choice, 77);
            });
  for (int r = 0; r < size; ++r) {
    ASSERT_EQ(ranks.host(r).code, 0u) << "rank " << r << " failed";
    if (!in_place(shape, r)) {
      ASSERT_EQ(ins[static_cast<std::size_t>(r)], before[static_cast<std::size_t>(r)]) << "rank " << r << "'s input";
    }
    const std::vector<std::byte> want = c.expected(r);
    if (want.empty()) continue;
    ASSERT_EQ(std::memcmp(calls[static_cast<std::size_t>(r)].output.base, want.data(), want.size()), 0) << "rank " << r;
    const auto& all = outs[static_cast<std::size_t>(r)];
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(all[i], std::byte{0xa5}) << "before the output";
      ASSERT_EQ(all[all.size() - 1 - i], std::byte{0xa5}) << "after the output";
    }
  }
}

class Protocols : public testing::TestWithParam<const char*> {};

TEST_P(Protocols, EveryCollectiveAtOddSizes) {
  for (const int size : {1, 2, 3, 5, 8}) {
    HostRanks ranks(size);
    std::uint64_t seed = 1;
    for (const Collective collective : kCollectives) {
      for (const std::size_t count : {0, 1, 3, 117, 1031}) {
        CaseShape shape;
        shape.collective = collective;
        shape.count = collective == Collective::kBarrier ? 0 : count;
        shape.root = size - 1;
        shape.in_place = count % 2 == 1 && seed % 2 == 1;
        shape.shift = seed % 3;
        run_case(ranks, shape, ++seed, GetParam());
      }
    }
  }
}

// The root's own result too, however its input and its output lie; not so in the buffers of the others.
TEST_P(Protocols, BroadcastIntoAnotherBuffer) {
  for (int size = 2; size <= device::kMaxRanks; ++size) {
    HostRanks ranks(size);
    std::uint64_t seed = 40;
    for (const std::size_t count : {1, 16, 239, 4097}) {
      for (const std::size_t output_shift : {0, 1, 8, 16}) {
        CaseShape shape;
        shape.collective = Collective::kBroadcast;
        shape.dtype = DataType::kByte;
        shape.count = count;
        shape.root = static_cast<int>(++seed % static_cast<std::uint64_t>(size));
        shape.shift = seed % 3;
        shape.output_shift = output_shift;
        run_case(ranks, shape, seed, GetParam());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// No block waits for another one of its rank, nor for another one of a peer's: a GPU need not hold them all at once.
TEST_P(Protocols, BlocksNeedNotRunAtTheSameTime) {
  for (const int size : {2, 3}) {
    HostRanks ranks(size);
    ranks.run_one_block_at_a_time();
    for (int r = 0; r < size; ++r) ranks.host(r).timeout_ns = 10'000'000'000;
    std::uint64_t seed = 900;
    for (const Collective collective : kCollectives) {
      CaseShape shape;
      shape.collective = collective;
      shape.count = collective == Collective::kBarrier ? 0 : 4099;
      shape.root = size - 1;
      run_case(ranks, shape, ++seed, GetParam());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Protocols, EveryTypeAndOperation) {
  HostRanks ranks(3);
  std::uint64_t seed = 100;
  for (int d = 0; d < kDataTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      CaseShape shape;
      shape.dtype = static_cast<DataType>(d);
      shape.op = static_cast<ReduceOp>(o);
      shape.factor = 0.5;
      shape.count = 67;
      shape.shift = 1;
      if (cpu::supports(shape.dtype, shape.op)) run_case(ranks, shape, ++seed, GetParam());
    }
  }
}

TEST_P(Protocols, FactorsAreReadFromMemory) {
  HostRanks ranks(3);
  std::uint64_t seed = 700;
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (int d = 0; d < kDataTypeCount; ++d) {
      CaseShape shape;
      shape.collective = collective;
      shape.dtype = static_cast<DataType>(d);
      shape.op = ReduceOp::kPremulSum;
      shape.factor = 0.25;
      shape.device_factor = true;
      shape.count = 67;
      shape.in_place = ++seed % 2 == 0;
      if (cpu::supports(shape.dtype, shape.op)) run_case(ranks, shape, seed, GetParam());
    }
  }
}

// Sizes at which blocks, lines, slots and pieces end, on one group in a random order: slots are used again and again.
TEST_P(Protocols, MixedCallsReuseTheSlots) {
  constexpr const char* kOthers[] = {"ll_one_shot@3", "ll128_one_shot@2", "bulk_one_shot@4"};
  const std::uint64_t base = 4242;
  std::mt19937_64 random(base);
  HostRanks ranks(3);
  for (int i = 0; i < 60; ++i) {
    CaseShape shape;
    shape.collective = kCollectives[random() % 8];
    shape.dtype = DataType::kInt32;
    const std::size_t sizes[] = {1, 3, 4, 29, 30, 31, 120, 960, 2047, 2048, 4096 + random() % 64};
    shape.count = sizes[random() % std::size(sizes)];
    shape.root = static_cast<int>(random() % 3);
    shape.in_place = random() % 2 == 0;
    shape.shift = random() % 4;
    run_case(ranks, shape, base + static_cast<std::uint64_t>(i), i % 3 == 0 ? kOthers[random() % 3] : GetParam());
    if (HasFatalFailure()) FAIL() << "seed " << base;
  }
}

// Flags are 30 bits of the sequence number: across a period's end, and across 32 bits.
TEST_P(Protocols, SequenceNumbersWrap) {
  for (const std::uint64_t first : {device::kFlagPeriod - 10, (std::uint64_t{1} << 32) - 10}) {
    HostRanks ranks(2, first);
    for (std::uint64_t i = 0; i < 24; ++i) {
      CaseShape shape;
      shape.count = 1 + 100 * (i % 3);
      shape.dtype = DataType::kUint32;
      run_case(ranks, shape, i, GetParam());
      if (HasFatalFailure()) return;
    }
  }
}

// A slot that holds the flag of 2^30 calls ago is cleared in time: the data beside it would be taken. Planted where no
// call of the test writes.
TEST(Scrubbing, ClearsFlagsOfTheLastPeriod) {
  constexpr std::size_t kFirst = 100, kItems = 8;
  HostRanks ranks(2, device::kFlagPeriod);
  const auto slot_of = [&](int r, std::uint64_t sequence) {
    return reinterpret_cast<device::Pair64*>(
        ranks.world(r).scratch[r] + ranks.world(r).layout.ll(0, static_cast<int>(sequence % kParities), 0, 1 - r));
  };
  for (int r = 0; r < 2; ++r) {
    for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
      for (std::size_t i = 0; i < kItems; ++i) {
        device::ll_store(slot_of(r, sequence) + kFirst + sequence * kItems + i, kLLItems, Vec16{{9, 9, 9, 9}},
                         device::ll_flag(sequence));
      }
    }
  }
  CaseShape shape;
  shape.count = 4;
  for (std::uint64_t i = 0; i < 2; ++i) run_case(ranks, shape, i, "ll_one_shot@1");
  for (int r = 0; r < 2; ++r) {
    for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) {
      for (std::size_t i = 0; i < kItems; ++i) {
        const device::LLItem item = device::ll_load(slot_of(r, sequence) + kFirst + sequence * kItems + i, kLLItems);
        EXPECT_FALSE(device::ll_arrived(item, device::ll_flag(sequence))) << "sequence " << sequence << " rank " << r;
      }
    }
  }
}

// Many calls without a pause between them, ranks at different speeds, each call's data its own: a slot that is used
// again too early, or read too late, shows.
TEST(Order, CallsFollowEachOtherWithoutAPause) {
  struct Kind {
    Collective collective;
    const char* algorithm;
    std::size_t count;
  };
  constexpr Kind kKinds[] = {
      {Collective::kAllReduce, "ll_one_shot@2", 40},     {Collective::kBroadcast, "ll_one_shot@1", 24},
      {Collective::kAllReduce, "ll128_two_shot@2", 300}, {Collective::kScatter, "ll128_one_shot@1", 90},
      {Collective::kAllGather, "bulk_one_shot@2", 200},  {Collective::kReduce, "bulk_one_shot@1", 50},
      {Collective::kAllReduce, "bulk_two_shot@2", 400}};
  constexpr int kSize = 3, kCalls = 150, kMostBlocks = 2;
  HostRanks ranks(kSize);
  std::vector<CollectiveCase> cases;
  std::vector<Choice> choices;
  std::vector<std::vector<std::vector<std::byte>>> outs(kSize);
  for (int i = 0; i < kCalls; ++i) {
    const Kind& kind = kKinds[static_cast<std::size_t>(i * i + i / 7) % std::size(kKinds)];
    CaseShape shape;
    shape.collective = kind.collective;
    shape.dtype = DataType::kUint32;
    shape.count = kind.count;
    shape.root = i % kSize;
    cases.emplace_back(shape, kSize, static_cast<std::uint64_t>(i));
    choices.push_back(choice_for(cases.back(), kSize, kind.algorithm));
    // Small pieces, so that a call goes around the ring.
    if (choices.back().protocol == Protocol::kBulk) choices.back().piece_bytes = 48;
    for (int r = 0; r < kSize; ++r) {
      auto& out = outs[static_cast<std::size_t>(r)];
      out.emplace_back(std::max(cases.back().output_bytes(), cases.back().input_bytes()));
    }
  }
  // A rank's blocks run as one kernel each: block b of a call starts when block b of the call before has ended, as on a
  // stream whose kernels overlap as much as they may.
  ranks.run([&](int) { return kMostBlocks; },
            [&](int r, const SerialTeam& thread) {
              for (std::size_t i = 0; i < cases.size(); ++i) {
                const SerialTeam team{thread.block_index, choices[i].blocks};
                if (team.block_index >= choices[i].blocks) continue;
                auto& out = outs[static_cast<std::size_t>(r)][i];
                std::vector<std::byte> in = cases[i].input(r);
                HostRanks::launch(team, ranks.world(r), cases[i].call(in.data(), out.data()), choices[i], 7);
              }
            });
  for (int r = 0; r < kSize; ++r) {
    ASSERT_EQ(ranks.host(r).code, 0u) << "rank " << r;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<std::byte> want = cases[i].expected(r);
      const std::vector<std::byte>& got = outs[static_cast<std::size_t>(r)][i];  // as long, or longer off the root
      ASSERT_TRUE(got.size() >= want.size() && std::equal(want.begin(), want.end(), got.begin()))
          << "call " << i << " " << describe(cases[i].shape(), kSize) << " rank " << r;
    }
  }
}

// What two ranks need for messages alone: 4 MB, as device memory is handed out in units of 2 MB.
static_assert(ScratchLayout(2, ScratchUse::kMessages).total_bytes() <= std::size_t{4} << 20);
static_assert(ScratchLayout(2).total_bytes() > std::size_t{90} << 20);

// Messages in both directions at once, many more pieces than a ring holds, over scratch that has room for nothing else.
TEST(Order, MessagesKeepTheirCredits) {
  constexpr int kSize = 2, kMessages = 60;
  HostRanks ranks(kSize, 0, ScratchUse::kMessages);
  std::vector<std::vector<std::byte>> sent[kSize], received[kSize];
  for (int r = 0; r < kSize; ++r) {
    for (int i = 0; i < kMessages; ++i) {
      CaseShape bytes;
      bytes.collective = Collective::kBroadcast;
      sent[r].emplace_back(static_cast<std::size_t>(i * 37 % 1500));
      fill(sent[r].back(), bytes, static_cast<std::uint64_t>(i), r);
      received[1 - r].emplace_back(sent[r].back().size());
    }
  }
  ranks.run([](int) { return 4; },
            [&](int r, const SerialTeam& team) {
              std::vector<MessageRequest> requests;
              for (std::size_t i = 0; i < kMessages / 2; ++i) {
                requests.push_back({true, sent[r][i].data(), sent[r][i].size(), 1 - r, static_cast<std::uint32_t>(i)});
                requests.push_back(
                    {false, received[r][i].data(), received[r][i].size(), 1 - r, static_cast<std::uint32_t>(i)});
              }
              FewMessages kernel = make_few_messages(requests, 2);
              kernel.piece_bytes = 64;
              run_messages(team, ranks.world(r), kernel);
            });
  for (int r = 0; r < kSize; ++r) {
    ASSERT_EQ(ranks.host(r).code, 0u);
    for (std::size_t i = 0; i < kMessages / 2; ++i) ASSERT_EQ(received[r][i], sent[1 - r][i]) << "message " << i;
  }
}

// What one batch may hold has no limit, in whichever order: all sends before all receives on every rank, as a ring or a
// pipeline issues them. The kernels of a batch run one after another, as on a stream.
TEST(Order, BatchesOfAnySizeInAnyOrder) {
  struct Shape {
    int size, each;  // messages to each peer
  };
  for (const Shape shape : {Shape{2, 60}, Shape{2, 700}, Shape{4, 250}}) {
    const auto each = static_cast<std::size_t>(shape.each);
    HostRanks ranks(shape.size, 0, ScratchUse::kMessages);
    std::vector<std::vector<std::uint64_t>> sent(static_cast<std::size_t>(shape.size)), received(sent.size());
    std::vector<std::vector<MessageRequest>> batches(sent.size());
    std::vector<std::unique_ptr<std::barrier<>>> streams;
    for (int r = 0; r < shape.size; ++r) {
      const auto index = static_cast<std::size_t>(r);
      sent[index].resize(sent.size() * each);
      received[index].resize(sent.size() * each);
      for (std::size_t i = 0; i < sent[index].size(); ++i) sent[index][i] = mixed(index << 32 | i);
      for (const bool send : {true, false}) {
        for (int peer = 0; peer < shape.size; ++peer) {
          for (std::size_t i = 0; peer != r && i < each; ++i) {
            std::uint64_t* word = &(send ? sent : received)[index][static_cast<std::size_t>(peer) * each + i];
            batches[index].push_back(
                {send, reinterpret_cast<std::byte*>(word), sizeof(*word), peer, static_cast<std::uint32_t>(i)});
          }
        }
      }
      streams.push_back(std::make_unique<std::barrier<>>(2 * (shape.size - 1)));
    }
    ranks.run([&](int) { return 2 * (shape.size - 1); },
              [&](int r, const SerialTeam& team) {
                for (const ManyMessages& kernel : make_many_messages(batches[static_cast<std::size_t>(r)], 1)) {
                  run_messages(team, ranks.world(r), kernel);
                  streams[static_cast<std::size_t>(r)]->arrive_and_wait();
                }
              });
    for (int r = 0; r < shape.size; ++r) {
      ASSERT_EQ(ranks.host(r).code, 0u) << shape.each << " messages";
      for (int p = 0; p < shape.size; ++p) {
        for (std::size_t i = 0; p != r && i < each; ++i) {
          ASSERT_EQ(received[static_cast<std::size_t>(r)][static_cast<std::size_t>(p) * each + i],
                    sent[static_cast<std::size_t>(p)][static_cast<std::size_t>(r) * each + i]);
        }
      }
    }
  }
}

// One kernel up to 1008 messages; of more, each has the next 72 of every pair and direction: kernels of two ranks whose
// batches differ otherwise still have the same messages of their pair.
TEST(Order, LargeBatchesAreCutByPairAndDirection) {
  static_assert(kManyMessages == 1008 && kMessagesOfALane == 72, "docs/gpu.md names the numbers");
  std::vector<std::byte> memory(4096);
  std::vector<MessageRequest> requests;
  // To rank 1 200, from rank 1 150, to rank 2 the rest: in turn, so that no lane's are together.
  std::size_t made = 0;
  const auto request = [&](bool send, int peer) {
    requests.push_back({send, memory.data() + made, 1, peer, static_cast<std::uint32_t>(made)});
    ++made;
  };
  for (std::size_t i = 0; made < kManyMessages; ++i) {
    if (i < 200) request(true, 1);
    if (i < 150) request(false, 1);
    request(true, 2);
  }
  ASSERT_EQ(requests.size(), static_cast<std::size_t>(kManyMessages));
  EXPECT_EQ(make_many_messages(requests, 2).size(), 1u);
  request(true, 2);
  const std::vector<ManyMessages> kernels = make_many_messages(requests, 2);
  std::map<std::pair<int, bool>, std::vector<std::uint32_t>> wanted, got;
  for (const MessageRequest& r : requests) wanted[{r.peer, r.send}].push_back(r.fingerprint);
  EXPECT_EQ(kernels.size(), (wanted.at({2, true}).size() + 71) / 72);
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    for (int l = 0; l < kernels[k].lanes; ++l) {
      const MessageLane& lane = kernels[k].lane[l];
      auto& tags = got[{lane.peer, lane.send != 0}];
      EXPECT_EQ(tags.size(), 72 * k) << "an earlier kernel has fewer";
      EXPECT_LE(lane.count, 72);
      for (int i = 0; i < lane.count; ++i) tags.push_back(kernels[k].message[lane.first + i].fingerprint);
    }
  }
  EXPECT_EQ(got, wanted) << "in the order of issue, each once";
}

// Large messages go around the ring of pieces several times.
TEST(Bulk, ManyPieces) {
  for (const char* algorithm :
       {"bulk_one_shot@2", "bulk_two_shot@2", "bulk_one_shot@2x32x4096", "bulk_two_shot@3x32x1040"}) {
    HostRanks ranks(3);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter, Collective::kBroadcast}) {
      CaseShape shape;
      shape.collective = collective;
      shape.dtype = DataType::kBfloat16;
      shape.count = tutti::test::kThreadSanitizer ? 100'001 : 600'001;
      run_case(ranks, shape, 5, algorithm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Protocols,
                         testing::Values("ll_one_shot@2", "ll128_one_shot@3", "bulk_one_shot@2", "ll_two_shot@2",
                                         "ll128_two_shot@2", "bulk_two_shot@3"),
                         [](const auto& which) {
                           const std::string name = which.param;
                           return name.substr(0, name.find('@'));
                         });

}  // namespace
}  // namespace tutti::cuda::test
