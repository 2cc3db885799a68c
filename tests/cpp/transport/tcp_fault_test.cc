// Strangers, wrong secrets, killed and stopped processes, cut networks.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "net/address.h"
#include "net/tcp_socket.h"
#include "transport/tcp_ranks.h"

namespace tutti::tcp::test {
namespace {

// What stops a writer is then the kernel's window only.
constexpr std::uint64_t kNoWindow = std::uint64_t{1} << 40;

UniqueFd connect_to(const std::string& address) {
  const auto target = SocketAddress::parse(address);
  UniqueFd fd(::socket(target->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), target->raw(), target->length()), 0);
  return fd;
}

// Waits until the other end closes; false if the bound passes.
bool closed_by_peer(int fd) {
  Deadline deadline = Deadline::after(kBound);
  char sink[256];
  while (!deadline.expired()) {
    pollfd p{fd, POLLIN, 0};
    ::poll(&p, 1, 100);
    const ssize_t n = ::recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

TEST(TcpFault, StrangersChangeNothing) {
  Ranks ranks(2, [](TcpOptions& o) { o.handshake_timeout = std::chrono::milliseconds(300); });
  std::vector<UniqueFd> strangers;
  const auto garbage = pattern(10'000, 9);
  for (int i = 0; i < 30; ++i) {
    strangers.push_back(connect_to(ranks.listener(1)));
    if (i % 3 == 0) ::send(strangers.back().get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (i % 3 == 1) ::send(strangers.back().get(), "TUTTITC4", 8, MSG_NOSIGNAL);
  }
  exchange_a_few(ranks);
  for (const UniqueFd& fd : strangers) EXPECT_TRUE(closed_by_peer(fd.get()));
  exchange_a_few(ranks);
}

// Silent connections hold every place; a rank still gets through, long before their time is over.
TEST(TcpFault, ACrowdOfSilentStrangersDoesNotShutOutARank) {
  Ranks ranks(2, [](TcpOptions& o) {
    o.most_strangers = 4;
    o.handshake_timeout = std::chrono::hours(1);
  });
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(connect_to(ranks.listener(1)));
  exchange_a_few(ranks);
}

TEST(TcpFault, WrongSecretOrGroupEndsTheLink) {
  for (const bool secret : {true, false}) {
    Ranks ranks(2, [&](TcpOptions& o) {
      if (o.rank == 1) (secret ? o.secret : o.communicator) = "something else";
      o.logger = Logger();
    });
    EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
    EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
    for (const int r : {0, 1}) {
      const std::string why = ranks[r].why_lost(1 - r);
      EXPECT_NE(why.find(ranks.listener(1 - r) + " has another secret"), std::string::npos) << why;
      for (const char* part : {"or is of another job", "TUTTI_SECRET", "TUTTI_SOCKET_IFNAME"}) {
        EXPECT_NE(why.find(part), std::string::npos) << why;
      }
    }
  }
}

// Who listens where a rank was to be: it says its words to whoever comes.
class SomebodyElse {
 public:
  explicit SomebodyElse(std::string words)
      : words_(std::move(words)), listener_(listen_at(*SocketAddress::parse("127.0.0.1:0"))), thread_([this] {
          while (!stop_) {
            pollfd p{listener_.get(), POLLIN, 0};
            ::poll(&p, 1, 20);
            UniqueFd fd = accept_from(listener_.get(), std::chrono::seconds(3));
            if (!fd) continue;
            ::send(fd.get(), words_.data(), words_.size(), MSG_NOSIGNAL);
            guests_.push_back(std::move(fd));
          }
        }) {}
  ~SomebodyElse() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return local_address(listener_.get()).text(); }

 private:
  const std::string words_;
  const UniqueFd listener_;
  std::vector<UniqueFd> guests_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: everything else is there when it starts
};

// Though it says less than a message of ours has, and keeps the connection.
TEST(TcpFault, WhoListensThereIsSaid) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"SSH-2.0-", {" is not Tutti", "another machine", "TUTTI_SOCKET_IFNAME"}},
      {"TUTTI", {}},  // may be one of us yet
      {"TUTTIX", {" is not Tutti", "TUTTI_SOCKET_IFNAME"}},
      {"TUTTITC9 in words of its own", {" has another version of Tutti", "install one version"}},
  };
  for (const auto& [words, parts] : cases) {
    const SomebodyElse somebody(words);
    Ranks ranks(1, [](TcpOptions& o) {
      o.size = 2;
      o.logger = Logger();
    });
    ranks[0].set_peer_addresses({"", somebody.address() + "/1"});
    const auto bound = parts.empty() ? std::chrono::milliseconds(100) : kBound;
    EXPECT_EQ(wait_for_end(ranks[0], 1, bound), parts.empty() ? Status::kOk : Status::kPeerLost) << words;
    const std::string why = ranks[0].why_lost(1);
    EXPECT_EQ(why.find("secret"), std::string::npos) << why;
    for (const char* part : parts) EXPECT_NE(why.find(part), std::string::npos) << why;
  }
}

// Who says nothing to strangers and hangs up, as versions before the third do.
TEST(TcpFault, WhoEndsEveryConnectionIsSaid) {
  UniqueFd listener = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  const std::string address = local_address(listener.get()).text();
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) {
      pollfd p{listener.get(), POLLIN, 0};
      ::poll(&p, 1, 20);
      close_gently(accept_from(listener.get(), std::chrono::seconds(3)));
    }
  });
  Ranks ranks(1, [](TcpOptions& o) {
    o.size = 2;
    o.logger = Logger();
  });
  ranks[0].set_peer_addresses({"", address + "/1"});
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  stop = true;
  thread.join();
  const std::string why = ranks[0].why_lost(1);
  for (const char* part : {"whoever listens at ", address.c_str(), "another program", "version of Tutti"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
}

// Both name what became of a pair whose connection is gone: no second one is made.
TEST(TcpFault, ALostConnectionStaysLost) {
  Ranks ranks(2);
  exchange_a_few(ranks);
  ::shutdown(ranks[0].link(1)->poll_fd(), SHUT_RDWR);
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
  std::vector<std::byte> one(1);
  EXPECT_EQ(ranks[0].link(1)->write_some({}, one), 0U);
}

// A rank in a process of its own. `body` runs there with its transport.
class RankProcess {
 public:
  RankProcess(int rank, int size, const std::function<void(TcpTransport&)>& body) {
    int up[2];
    int down[2];
    EXPECT_EQ(::pipe2(up, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(down, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) child(rank, size, up[1], down[0], body);
    ::close(up[1]);
    ::close(down[0]);
    from_ = UniqueFd(up[0]);
    to_ = UniqueFd(down[1]);
    char text[64] = "";
    EXPECT_GT(::read(from_.get(), text, sizeof(text) - 1), 0);
    address_ = text;
  }
  ~RankProcess() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }
  void give_peer(const std::string& address) {
    EXPECT_EQ(::write(to_.get(), address.data(), address.size()), static_cast<ssize_t>(address.size()));
  }
  void signal(int number) const { ::kill(pid_, number); }

 private:
  [[noreturn]] static void child(int rank, int size, int out, int in, const std::function<void(TcpTransport&)>& body) {
    TcpOptions options = options_of(rank, size);
    options.window = kNoWindow;
    auto transport = TcpTransport::create(options);
    const std::string own = transport->address();
    char text[64] = "";
    if (::write(out, own.data(), own.size()) < 0 || ::read(in, text, sizeof(text) - 1) <= 0) ::_exit(1);
    std::vector<std::string> addresses(static_cast<std::size_t>(size));
    addresses[static_cast<std::size_t>(rank)] = own;
    addresses[static_cast<std::size_t>(1 - rank)] = text;
    transport->set_peer_addresses(addresses);
    body(*transport);
    ::_exit(0);
  }

  pid_t pid_ = -1;
  UniqueFd from_;
  UniqueFd to_;
  std::string address_;
};

void flood(TcpTransport& transport) {
  const auto data = pattern(1 << 20, 3);
  while (write_all(transport, 0, data)) {
  }
}

void never_read(TcpTransport& transport) {
  transport.link(0);
  for (;;) ::pause();
}

TEST(TcpFault, PeerKilledInTheMiddleOfATransfer) {
  RankProcess peer(1, 2, flood);
  TcpOptions options = options_of(0, 2);
  options.window = kNoWindow;
  auto self = TcpTransport::create(options);
  self->set_peer_addresses({self->address(), peer.address()});
  peer.give_peer(self->address());
  std::vector<std::byte> got(3'000'000);
  ASSERT_TRUE(read_all(*self, 1, got));
  peer.signal(SIGKILL);
  EXPECT_EQ(wait_for_end(*self, 1), Status::kPeerLost);
}

TEST(TcpFault, PeerKilledWhileWeWrite) {
  RankProcess peer(1, 2, never_read);
  TcpOptions options = options_of(0, 2);
  options.window = kNoWindow;
  auto self = TcpTransport::create(options);
  self->set_peer_addresses({self->address(), peer.address()});
  peer.give_peer(self->address());
  ASSERT_TRUE(write_all(*self, 1, pattern(1000, 1)));
  peer.signal(SIGKILL);
  while (write_all(*self, 1, pattern(1 << 20, 1))) {
  }
  EXPECT_EQ(self->link(1)->status(), Status::kPeerLost);
}

// Its child has no part in its connections.
TEST(TcpFault, PeerKilledWhileAChildOfItsLives) {
  int alive[2];  // the child ends with this process
  ASSERT_EQ(::pipe(alive), 0);
  RankProcess peer(1, 2, [&](TcpTransport& transport) {
    ::close(alive[1]);
    std::vector<std::byte> got(1000);
    read_all(transport, 0, got);
    if (::fork() == 0) {
      std::byte end{};
      static_cast<void>(::read(alive[0], &end, 1));
      ::_exit(0);
    }
    write_all(transport, 0, got);
    for (;;) ::pause();
  });
  ::close(alive[0]);
  auto self = TcpTransport::create(options_of(0, 2));
  self->set_peer_addresses({self->address(), peer.address()});
  peer.give_peer(self->address());
  ASSERT_TRUE(write_all(*self, 1, pattern(1000, 1)));
  std::vector<std::byte> got(1000);
  ASSERT_TRUE(read_all(*self, 1, got));
  peer.signal(SIGKILL);
  EXPECT_EQ(wait_for_end(*self, 1), Status::kPeerLost);
  ::close(alive[1]);
}

// A stopped peer whose window is full keeps answering: it is not dead, and after it resumes nothing is missing.
TEST(TcpFault, AStoppedPeerIsNotADeadOne) {
  RankProcess peer(1, 2, [](TcpTransport& transport) {
    std::vector<std::byte> got(1000);
    if (!read_all(transport, 0, got)) ::_exit(1);
    ::raise(SIGSTOP);
    got.resize(64 << 20);
    if (!read_all(transport, 0, got) || got != pattern(64 << 20, 2)) ::_exit(1);
    write_all(transport, 0, pattern(1, 3));
    ::pause();
  });
  TcpOptions options = options_of(0, 2);
  options.window = kNoWindow;
  options.heartbeat = std::chrono::milliseconds(20);  // silence would be noticed after 120 ms
  auto self = TcpTransport::create(options);
  self->set_peer_addresses({self->address(), peer.address()});
  peer.give_peer(self->address());
  ASSERT_TRUE(write_all(*self, 1, pattern(1000, 1)));
  const auto data = pattern(64 << 20, 2);
  Link* link = self->link(1);
  std::size_t written = 0;
  // Until the kernel has sent window probes with growing pauses in between, far beyond 120 ms.
  EXPECT_TRUE(wait_until([&] {
    written += link->write_some({}, ConstBytes(data).subspan(written));
    tcp_info info{};
    socklen_t length = sizeof(info);
    ::getsockopt(link->poll_fd(), IPPROTO_TCP, TCP_INFO, &info, &length);
    return written == data.size() || info.tcpi_backoff >= 3;
  }));
  ASSERT_EQ(link->status(), Status::kOk);
  peer.signal(SIGCONT);
  EXPECT_TRUE(write_all(*self, 1, ConstBytes(data).subspan(written)));
  std::vector<std::byte> answer(1);
  EXPECT_TRUE(read_all(*self, 1, answer));
  EXPECT_EQ(answer, pattern(1, 3));
}

int option_of(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

// Both of the kernel's limits, on idle connections and on bytes that nobody acknowledges, follow the setting: the
// connection lasts as long as the setting says, and an idle one not much longer.
TEST(TcpFault, TheKernelWaitsAsLongAsTheSettingSays) {
  constexpr int kRtoMax = 44;             // TCP_RTO_MAX_MS, since Linux 6.15
  constexpr int kPausesUntilTheEnd = 13;  // of full length, with the usual net.ipv4.tcp_retries2
  constexpr int kTwoMinutes = 120'000;    // the pause of older kernels
  for (const int heartbeat_ms : {10, 500, 5'000, 60'000}) {
    Ranks ranks(2, [&](TcpOptions& o) { o.heartbeat = std::chrono::milliseconds(heartbeat_ms); });
    exchange_a_few(ranks);
    const int silence_ms = 6 * heartbeat_ms;
    for (const int r : {0, 1}) {  // who dialed and who accepted
      const int fd = ranks[r].link(1 - r)->poll_fd();
      EXPECT_EQ(option_of(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
      const int idle_ms = 1000 * (option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                                  option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option_of(fd, IPPROTO_TCP, TCP_KEEPCNT));
      EXPECT_GE(idle_ms, silence_ms);
      EXPECT_LE(idle_ms, silence_ms + 4000);
      const int rto_max = option_of(fd, IPPROTO_TCP, kRtoMax);
      EXPECT_GE((rto_max < 0 ? kTwoMinutes : rto_max) * kPausesUntilTheEnd, silence_ms);
      EXPECT_LE(rto_max, std::max(1000, silence_ms / 3)) << "too few transmissions to tell that nobody answers";
    }
  }
}

// Two network namespaces joined by a cable, one a thread; the cable can be cut. Everything goes with the threads.
class CutNetwork : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& end : ends_) end.emplace();
    if (!ends_[0]->run([] { return unshare(CLONE_NEWNET) == 0; }) ||
        !ends_[1]->run([] { return unshare(CLONE_NEWNET) == 0; })) {
      GTEST_SKIP() << "no right to make network namespaces here";
    }
    const std::string other = std::to_string(ends_[1]->run([] { return static_cast<int>(::syscall(SYS_gettid)); }));
    if (!shell(0, "ip link add cable0 type veth peer name cable1 netns " + other)) {
      GTEST_SKIP() << "no ip command, or no veth devices here";
    }
    for (int r = 0; r < 2; ++r) {
      const std::string n = std::to_string(r);
      ASSERT_TRUE(shell(r, "ip addr add 10.99.0." + std::to_string(r + 1) + "/24 dev cable" + n));
      ASSERT_TRUE(shell(r, "ip link set cable" + n + " up"));
      ends_[r]->run([&, r] {
        TcpOptions options = options_of(r, 2);
        options.interface = "cable" + std::to_string(r);
        options.heartbeat = std::chrono::milliseconds(100);
        options.window = kNoWindow;
        options.connect_timeout = std::chrono::milliseconds(4000);  // a new cable may lose the first packet
        transports_[r] = TcpTransport::create(options);
        return 1;
      });
    }
    for (auto& t : transports_) t->set_peer_addresses({transports_[0]->address(), transports_[1]->address()});
  }
  void TearDown() override {
    for (auto& t : transports_) t.reset();
  }

  bool shell(int r, const std::string& command) {
    return ends_[r]->run([&] { return std::system((command + " 2>/dev/null").c_str()) == 0; });
  }
  void cut() { ASSERT_TRUE(shell(1, "ip link set cable1 down")); }

  // A thread that runs what it is given, in its own namespace.
  class End {
   public:
    End() : thread_([this] { serve(); }) {}
    ~End() {
      stop_ = [] { return 0; };
      hand_over(&stop_);
      thread_.join();
    }
    int run(const std::function<int()>& task) {
      std::unique_lock lock(mutex_);
      task_ = &task;
      changed_.notify_all();
      changed_.wait(lock, [this] { return task_ == nullptr; });
      return result_;
    }

   private:
    void hand_over(const std::function<int()>* task) {
      const std::lock_guard lock(mutex_);
      task_ = task;
      changed_.notify_all();
    }
    void serve() {
      std::unique_lock lock(mutex_);
      for (;;) {
        changed_.wait(lock, [this] { return task_ != nullptr; });
        if (task_ == &stop_) return;
        result_ = (*task_)();
        task_ = nullptr;
        changed_.notify_all();
      }
    }
    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    const std::function<int()>* task_ = nullptr;
    std::function<int()> stop_;
    int result_ = 0;
    std::thread thread_;
  };

  std::optional<End> ends_[2];
  std::unique_ptr<TcpTransport> transports_[2];
};

TEST_F(CutNetwork, IsSeenOnAnIdleConnection) {
  ASSERT_TRUE(write_all(*transports_[0], 1, pattern(100, 1)));
  std::vector<std::byte> got(100);
  ASSERT_TRUE(read_all(*transports_[1], 0, got));
  cut();
  EXPECT_EQ(wait_for_end(*transports_[0], 1), Status::kPeerLost);
  EXPECT_EQ(wait_for_end(*transports_[1], 0), Status::kPeerLost);
}

TEST_F(CutNetwork, IsSeenWhileBytesAreOutstanding) {
  ASSERT_TRUE(write_all(*transports_[0], 1, pattern(100, 1)));
  std::vector<std::byte> got(100);
  ASSERT_TRUE(read_all(*transports_[1], 0, got));
  cut();
  const auto data = pattern(1 << 20, 2);
  transports_[0]->link(1)->write_some({}, data);
  EXPECT_EQ(wait_for_end(*transports_[0], 1), Status::kPeerLost);
}

TEST_F(CutNetwork, IsSeenWhileTheWindowIsClosed) {
  Link* link = transports_[0]->link(1);
  const auto data = pattern(1 << 20, 2);
  EXPECT_TRUE(wait_until([&] {
    link->write_some({}, data);
    tcp_info info{};
    socklen_t length = sizeof(info);
    ::getsockopt(link->poll_fd(), IPPROTO_TCP, TCP_INFO, &info, &length);
    return info.tcpi_backoff >= 1;
  }));
  ASSERT_EQ(link->status(), Status::kOk);
  cut();
  EXPECT_EQ(wait_for_end(*transports_[0], 1), Status::kPeerLost);
}

TEST_F(CutNetwork, IsSeenBeforeTheFirstConnection) {
  cut();
  EXPECT_EQ(wait_for_end(*transports_[0], 1), Status::kPeerLost);
}

}  // namespace
}  // namespace tutti::tcp::test
