// Memory that is refused at each place in turn, while two ranks on two hosts do something: every rank gets what is
// right or an Error that says what was wanting, and nobody waits until a deadline for one that could not go on.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "bootstrap/memory_store.h"
#include "communicator/calls.h"
#include "communicator/kept_endpoint.h"
#include "communicator/refused_memory.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

constexpr int kSparedRank = 0, kHitRank = 1;  // the ranks

// What became of a rank.
struct End {
  std::optional<Error> error;
  bool other = false;  // it has thrown something else
  bool wrong = false;  // it has got something else than what was sent
  bool formed = false;
};

struct Ends {
  End of[2];
  long refused = 0;
};

// Makes a call, and with memory once more where it was refused before anything was sent.
class Caller {
 public:
  Caller(Communicator& comm, std::optional<Refusal>& refusal) : comm_(comm), refusal_(refusal) {}
  template <class Call>
  auto operator()(const Call& call) const {
    try {
      return call();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kExhausted || comm_.failure()) throw;
      refusal_.reset();
      return call();
    }
  }

 private:
  Communicator& comm_;
  std::optional<Refusal>& refusal_;
};

// What the ranks do: before memory is refused, and while it is. False: the data are wrong.
struct Scene {
  std::function<void(Communicator&)> before = [](Communicator&) {};
  std::function<bool(Communicator&, const Caller&)> during;
  bool while_forming = false;
  std::string algorithm;  // forced
};

CommunicatorOptions options_of(int rank, const std::string& algorithm) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  options.config.log_level = "error";
  options.config.host_id = "host" + std::to_string(rank);
  options.config.algorithm = algorithm;
  return options;
}

// Both ranks have come here, or one has ended.
class Meeting {
 public:
  void come() noexcept {
    came_.fetch_add(1);
    while (came_.load() < 2) std::this_thread::yield();
  }

 private:
  std::atomic<int> came_{0};
};

void run_rank(const Scene& scene, MemoryStore& store, int rank, Of of, Which which, long n, Meeting& formed,
              Meeting& begun, Meeting& ended, Ends& ends) {
  const bool counted = of == Of::kThisThread && rank == kHitRank;
  counted ? count_me() : spare_me();
  End& end = ends.of[rank];
  std::optional<Refusal> refusal;
  const CommunicatorOptions options = options_of(rank, scene.algorithm);
  std::shared_ptr<Communicator> comm;
  int met = 0;
  try {
    if (scene.while_forming && rank == kHitRank) refusal.emplace(of, which, n);
    comm = Communicator::create(store, "test", rank, 2, options);
    end.formed = true;
    if (!scene.while_forming) scene.before(*comm);
    formed.come(), ++met;
    if (!scene.while_forming && rank == kHitRank) refusal.emplace(of, which, n);
    begun.come(), ++met;
    end.wrong = !scene.during(*comm, Caller(*comm, refusal));
  } catch (const Error& error) {
    end.error = error;
  } catch (...) {
    end.other = true;
  }
  if (met < 1) formed.come();
  if (met < 2) begun.come();
  // The group lives until both know how it ended: what of it says that it had no memory is still there to say so.
  ended.come();
  comm.reset();
  refusal.reset();
}

Ends run(const Scene& scene, Of of, Which which, long n) {
  MemoryStore store;
  Meeting formed, begun, ended;
  Ends ends;
  std::thread threads[2];
  for (int rank = 0; rank < 2; ++rank) {
    threads[rank] = std::thread([&, rank] { run_rank(scene, store, rank, of, which, n, formed, begun, ended, ends); });
  }
  for (std::thread& thread : threads) thread.join();
  ends.refused = Refusal::refused();
  return ends;
}

void check(const Ends& ends, Of of) {
  for (int rank = 0; rank < 2; ++rank) {
    const End& end = ends.of[rank];
    EXPECT_FALSE(end.other) << "on rank " << rank;
    EXPECT_FALSE(end.wrong) << "on rank " << rank;
    if (!end.error) continue;
    const std::string text = end.error->what();
    EXPECT_TRUE(end.error->kind() == ErrorKind::kExhausted || end.error->kind() == ErrorKind::kPeerLost) << text;
    EXPECT_NE(text.find("memory"), std::string::npos) << text;
    if (of == Of::kThisThread && rank == kSparedRank) {
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    }
  }
}

// Until there is no n-th allocation any more.
void sweep(const Scene& scene, Of of, Which which) {
  const auto endpoint = keep_endpoint();
  spare_me();
  long n = 1;
  for (;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    const Ends ends = run(scene, of, which, n);
    check(ends, of);
    if (ends.refused == 0 || testing::Test::HasFailure()) break;
  }
  testing::Test::RecordProperty("allocations", static_cast<int>(n));
}

bool is(const std::vector<int>& x, int start) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] != start + static_cast<int>(i)) return false;
  }
  return true;
}

struct Buffers {
  explicit Buffers(std::size_t count) : out(count), in(count) {}
  std::vector<int> out, in;
};

// Small and large messages both ways, in an order in which some come before their receives.
class Messages {
 public:
  bool operator()(Communicator& comm, const Caller& make) {
    const int peer = 1 - comm.rank();
    const auto r = static_cast<std::size_t>(comm.rank());
    auto& works = works_[r];
    works = {};
    for (std::size_t s = 0; s < kSizes; ++s) {
      Buffers& b = buffers_[r][s];
      std::iota(b.out.begin(), b.out.end(), comm.rank() * 1000);
      std::fill(b.in.begin(), b.in.end(), -1);
      works[2 * s] = make([&] { return comm.isend(b.out.data(), b.out.size(), DataType::kInt32, peer, s); });
    }
    for (std::size_t s = kSizes; s-- > 0;) {
      Buffers& b = buffers_[r][s];
      works[2 * s + 1] = make([&] { return comm.irecv(b.in.data(), b.in.size(), DataType::kInt32, peer, s); });
    }
    for (const WorkPtr& work : works) work->wait(std::chrono::milliseconds::max());
    for (std::size_t s = 0; s < kSizes; ++s) {
      if (!is(buffers_[r][s].in, peer * 1000)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kSizes = 3;
  // Before anything is refused, by the test's own thread.
  std::vector<Buffers> buffers_[2] = {{Buffers(1), Buffers(1500), Buffers(100'000)},
                                      {Buffers(1), Buffers(1500), Buffers(100'000)}};
  // Kept until what they have thrown has been looked at: the thread sanitizer does not see the counts of exceptions.
  std::array<WorkPtr, 2 * kSizes> works_[2];
};

void greet(Communicator& comm) {
  std::vector<float> x(1, 1);
  comm.run(all_reduce(x));
}

class NoMemory : public RefusedMemory<testing::TestWithParam<std::tuple<Of, Which>>> {
 protected:
  static void sweep_all(const Scene& scene) { sweep(scene, std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(NoMemory, ForMessages) {
  Messages messages;
  Scene scene;
  scene.before = greet;
  scene.during = std::ref(messages);
  sweep_all(scene);
}

TEST_P(NoMemory, ForTheFirstMessages) {
  Messages messages;
  Scene scene;
  scene.during = std::ref(messages);
  sweep_all(scene);
}

class AllReduce {
 public:
  explicit AllReduce(std::size_t count) : x_{std::vector<float>(count), std::vector<float>(count)} {}
  bool operator()(Communicator& comm, const Caller& make) {
    std::vector<float>& x = x_[comm.rank()];
    std::fill(x.begin(), x.end(), static_cast<float>(comm.rank() + 1));
    make([&] { comm.run(all_reduce(x)); });
    return std::all_of(x.begin(), x.end(), [](float value) { return value == 3; });
  }

 private:
  std::vector<float> x_[2];
};

TEST_P(NoMemory, ForAnAllReduce) {
  for (const std::size_t count : {1UL, 50'000UL}) {
    SCOPED_TRACE(count);
    AllReduce call(count);
    Scene scene;
    scene.before = greet;
    scene.during = std::ref(call);
    sweep_all(scene);
  }
}

// Each of those over messages that take memory.
TEST_P(NoMemory, ForAReductionByAnyAlgorithm) {
  for (const char* name : {"ring", "direct", "dissemination", "tree"}) {
    SCOPED_TRACE(name);
    AllReduce call(50'000);
    Scene scene;
    scene.algorithm = std::string("all_reduce=") + name;
    scene.before = greet;
    scene.during = std::ref(call);
    sweep_all(scene);
  }
  for (const char* name : {"direct", "tree", "chain"}) {
    SCOPED_TRACE(name);
    std::vector<float> x[2] = {std::vector<float>(50'000), std::vector<float>(50'000)};
    Scene scene;
    scene.algorithm = std::string("reduce=") + name;
    scene.before = greet;
    scene.during = [&](Communicator& comm, const Caller& make) {
      std::vector<float>& mine = x[comm.rank()];
      std::fill(mine.begin(), mine.end(), static_cast<float>(comm.rank() + 1));
      Call call = all_reduce(mine);
      call.collective = Collective::kReduce;
      call.root = 0;
      make([&] { comm.run(call); });
      return comm.rank() != 0 || std::all_of(mine.begin(), mine.end(), [](float value) { return value == 3; });
    };
    sweep_all(scene);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NoMemory,
                         testing::Combine(testing::Values(Of::kThisThread, Of::kLibrarysThreads),
                                          testing::Values(Which::kOne, Which::kAllFromThere)),
                         [](const auto& test) {
                           const bool rank = std::get<0>(test.param) == Of::kThisThread;
                           const bool once = std::get<1>(test.param) == Which::kOne;
                           return std::string(rank ? "ARanksThread" : "TheLibrarysThreads") +
                                  (once ? "Once" : "FromThereOn");
                         });

}  // namespace
}  // namespace tutti::test
