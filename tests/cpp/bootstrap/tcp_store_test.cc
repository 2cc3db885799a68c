// The TCP store against strangers, wrong secrets and the ends of processes.
#include "bootstrap/tcp_store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <random>
#include <thread>

#include "base/bytes.h"
#include "bootstrap/exchange.h"
#include "bootstrap/limits.h"
#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "net/named_host.h"
#include "net/tcp_socket.h"
#include "support/child_process.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

TcpStoreOptions options_for(std::uint16_t port, std::string secret) {
  TcpStoreOptions options;
  options.port = port;
  options.secret = std::move(secret);
  options.timeout = kLong;
  return options;
}

// A connection of someone who is none of the job's ranks.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) {
    ConnectFailure failure;
    socket_ = connect_tcp("127.0.0.1", port, deadline_, failure);
    EXPECT_TRUE(socket_) << failure.why;
  }
  void say(std::string_view bytes) { ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  std::string hear(std::size_t bytes) {
    std::string text;
    while (text.size() < bytes && wait_ready(socket_.get(), POLLIN, deadline_)) {
      char c = 0;
      if (::recv(socket_.get(), &c, 1, 0) != 1) break;
      text.push_back(c);
    }
    return text;
  }
  // True once the server has closed the connection, whatever it said before.
  bool dropped() {
    while (wait_ready(socket_.get(), POLLIN, deadline_)) {
      char buffer[256];
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }

 private:
  Deadline deadline_ = Deadline::after(kLong);
  UnforkedFd socket_;
};

TEST(TcpStore, StrangersChangeNothing) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  TcpStore store(options_for(server.port(), "secret"));
  store.set("key", "value");

  Stranger silent(server.port());
  Stranger half(server.port());
  half.say(std::string("\x44\0\0", 3));
  Stranger in_frame(server.port());
  in_frame.say(std::string("\x44\0\0\0half a respo", 16));

  Stranger http(server.port());
  http.say("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(http.dropped()) << "a length beyond what a stranger may send";
  Stranger huge(server.port());
  huge.say(std::string("\xff\xff\xff\xff", 4));
  EXPECT_TRUE(huge.dropped());
  Stranger no_proof(server.port());
  no_proof.say(framed(ByteWriter().u32(kStoreMagic).digest(random_nonce()).digest(random_nonce()).str()));
  EXPECT_TRUE(no_proof.dropped());
  Stranger hasty(server.port());  // a request instead of a proof
  hasty.say(framed(ByteWriter().u8(1).text("key").text("changed").str()));
  EXPECT_TRUE(hasty.dropped());

  EXPECT_EQ(store.get("key", kLong), "value");
  TcpStore late(options_for(server.port(), "secret"));
  EXPECT_EQ(late.get("key", kLong), "value");
}

TEST(TcpStore, AProofCannotBeReplayedOrReflected) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  const Nonce nonce = random_nonce();
  const auto challenge_of = [](Stranger& s) {
    const std::string frame = s.hear(40);
    ByteReader in(frame);
    in.u32(), in.u32();
    return in.digest();
  };
  Stranger honest(server.port());
  const Digest proof = store_proof("secret", "client", challenge_of(honest), nonce);
  const std::string response = framed(ByteWriter().u32(kStoreMagic).digest(nonce).digest(proof).str());
  honest.say(response);
  EXPECT_EQ(honest.hear(36).size(), 36u) << "the server's own proof";

  Stranger replaying(server.port());
  challenge_of(replaying);
  replaying.say(response);
  EXPECT_TRUE(replaying.dropped());
  Stranger reflecting(server.port());
  const Digest wrong_role = store_proof("secret", "server", challenge_of(reflecting), nonce);
  reflecting.say(framed(ByteWriter().u32(kStoreMagic).digest(nonce).digest(wrong_role).str()));
  EXPECT_TRUE(reflecting.dropped());
}

// Past the proof too: garbage ends its own connection only.
TEST(TcpStore, MalformedRequestsEndTheirConnection) {
  TcpStoreServer server("127.0.0.1", 0, "");
  TcpStore store(options_for(server.port(), ""));
  store.set("key", "value");
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    Stranger s(server.port());
    const std::string hello = s.hear(40);
    ByteReader in(hello);
    in.u32(), in.u32();
    const Nonce nonce = random_nonce();
    const Digest proof = store_proof("", "client", in.digest(), nonce);
    s.say(framed(ByteWriter().u32(kStoreMagic).digest(nonce).digest(proof).str()));
    ASSERT_EQ(s.hear(36).size(), 36u);
    // A request of one of the kinds, cut or continued at random, with counts and lengths that may lie.
    std::string payload(1, static_cast<char>(round % 4 == 0 ? 0 : 2));
    const std::size_t length = random() % 40;
    for (std::size_t i = 0; i < length; ++i) payload.push_back(static_cast<char>(random() % 3 == 0 ? random() : 0));
    payload += "\xff\xff\xff\xff";  // never a whole one
    s.say(framed(payload));
    EXPECT_TRUE(s.dropped()) << round;
  }
  EXPECT_EQ(store.get("key", kLong), "value");
}

TEST(TcpStore, AWrongSecretIsRefusedAtOnce) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  for (const char* secret : {"another", ""}) {
    try {
      TcpStore store(options_for(server.port(), secret));
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find("TUTTI_SECRET"), std::string::npos) << e.what();
    }
  }
}

// One of those that are missing may be behind it, and only the server knows. It ends nothing: strangers may come, too.
TEST(TcpStore, WhoHasAnotherSecretIsNamedToThoseThatWait) {
  testing::internal::CaptureStderr();
  TcpStoreServer server("127.0.0.1", 0, "secret", Logger(LogLevel::kWarning, 0));
  TcpStore store(options_for(server.port(), "secret"));
  const auto waited = [&] {
    try {
      exchange(store, "world", "topic", 0, 2, "", milliseconds(100));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
      return std::string(e.what());
    }
    return std::string("exchanged");
  };
  EXPECT_NE(waited().find("rank 1 did not come; look at them"), std::string::npos);
  for (int i = 0; i < 3; ++i) EXPECT_THROW(TcpStore(options_for(server.port(), "another")), Error);
  const std::string text = waited();
  EXPECT_NE(text.find("rank 1 did not come; the job's store has refused connections that have another secret, from "
                      "127.0.0.1: give all ranks the same TUTTI_SECRET; look at them"),
            std::string::npos)
      << text;
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tutti[rank 0] warning: the job's store at port " + std::to_string(server.port()) +
                " has refused a connection from 127.0.0.1, which has another secret: if it is a rank's, give all ranks "
                "the same TUTTI_SECRET\n");
}

// A server under a crowd drops connections that have not had their answer: that says nothing about secrets, and the
// rank comes again.
TEST(TcpStore, ARankThatIsTakenForAStrangerComesAgain) {
  const UnforkedFd listener = listen_tcp("127.0.0.1", 0);
  std::thread crowded([&] {
    Deadline deadline = Deadline::after(kLong);
    for (const bool answers : {false, true}) {
      if (!wait_ready(listener.get(), POLLIN, deadline)) return;
      const UniqueFd client = accept_from(listener.get(), kSystemsSilence);
      const auto say = [&](const std::string& text) {
        const std::string bytes = framed(text);
        ::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      };
      const Nonce nonce = random_nonce();
      say(encode_challenge(nonce));
      FrameBuffer in;
      std::optional<StoreResponse> response;
      while (!response && wait_ready(client.get(), POLLIN, deadline)) {
        char buffer[256];
        const ssize_t got = ::recv(client.get(), buffer, sizeof(buffer), 0);
        if (got <= 0) break;
        in.append({buffer, static_cast<std::size_t>(got)});
        if (const auto frame = in.next(kMaxStoreFrame)) response = decode_response(*frame);
      }
      if (answers && response) {
        say(ByteWriter().digest(store_proof("secret", "server", nonce, response->nonce)).str());
      }
    }
  });
  EXPECT_NO_THROW(TcpStore(options_for(local_address(listener.get()).port(), "secret")));
  crowded.join();
}

TEST(TcpStore, NoServerIsATimeoutThatSaysWhere) {
  std::uint16_t port = 0;
  {
    const UnforkedFd listener = listen_tcp("127.0.0.1", 0);
    port = local_address(listener.get()).port();
  }
  TcpStoreOptions options = options_for(port, "");
  options.timeout = milliseconds(50);
  try {
    TcpStore store(options);
    ADD_FAILURE() << "reached";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(e.what()).find("port " + std::to_string(port)), std::string::npos) << e.what();
  }
}

TEST(TcpStore, AForeignServerIsATimeoutWithARemedy) {
  const UnforkedFd listener = listen_tcp("127.0.0.1", 0);  // never says a word
  TcpStoreOptions options = options_for(local_address(listener.get()).port(), "");
  options.timeout = milliseconds(50);
  try {
    TcpStore store(options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(e.what()).find("TUTTI_MASTER_PORT"), std::string::npos) << e.what();
  }
}

TEST(TcpStore, ATakenPortSaysWhatToDo) {
  TcpStoreServer server("127.0.0.1", 0, "");
  try {
    TcpStoreServer second("127.0.0.1", server.port(), "");
    ADD_FAILURE() << "two servers on a port";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kExhausted);
    EXPECT_NE(std::string(e.what()).find("TUTTI_MASTER_PORT"), std::string::npos) << e.what();
  }
}

TEST(TcpStore, TheServersEndIsAnErrorToAWaitingRank) {
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0, "");
  TcpStore store(options_for(server->port(), ""));
  const auto errors = test::run_threads(2, [&](int rank) {
    if (rank == 0) store.get("never set", kLong);
    // Whether the get was already waiting or not: it must end.
    if (rank == 1) server.reset();
  });
  EXPECT_NE(errors[0].find("is gone"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
  try {
    store.add("count", 1);
    ADD_FAILURE() << "no error after the end";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kPeerLost);
  }
}

// A child that lives on neither hides the end nor keeps the port.
TEST(TcpStore, AForkedChildHoldsNothingOfIt) {
  TcpStoreOptions options = options_for(0, "");
  options.serve = true;
  auto store = std::make_unique<TcpStore>(options);
  const std::uint16_t port = store->port();
  TcpStore client(options_for(port, ""));
  test::Gate began, gate;
  test::ChildProcess child([&] {
    const bool holds_none = test::listening_sockets() == 0;
    began.open();
    const bool told = gate.wait();
    store.reset();
    return holds_none && told ? 0 : 1;
  });
  ASSERT_TRUE(began.wait());  // its copies are closed in it, not by fork()
  EXPECT_EQ(test::listening_sockets(), 1);
  store.reset();
  try {
    client.get("never set", kLong);
    ADD_FAILURE() << "no error after the end";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kPeerLost) << e.what();
  }
  EXPECT_NO_THROW(TcpStoreServer("127.0.0.1", port, ""));
  gate.open();
  EXPECT_EQ(child.join(), 0);
}

TEST(TcpStore, AWaitingRankThatDiesIsForgotten) {
  test::StoreProcess process;
  const pid_t waiting = test::fork_rank([&] {
    process.connect()->get("late", kLong);
    return true;
  });
  ::kill(waiting, SIGKILL);
  EXPECT_FALSE(test::wait_for(waiting));
  const auto store = process.connect_here();
  store->set("late", "1");
  EXPECT_EQ(store->get("late", kLong), "1");
}

// Also to one that waits for another key than that of the rank that has gone, and whose own is long there.
TEST(TcpStore, AWillIsReadToThoseThatWaitForItsWriter) {
  TcpStoreServer server("127.0.0.1", 0, "");
  TcpStore waiting(options_for(server.port(), ""));
  auto heir = std::make_unique<TcpStore>(options_for(server.port(), ""));
  heir->set("given", "1");
  heir->leave_will({"other"}, "replaced");
  heir->leave_will({"given", "never"}, "rank 1 has ended");
  EXPECT_EQ(waiting.get("given", kLong), "1");
  std::thread end([&] { heir.reset(); });
  for (const char* key : {"nobody's", "never"}) {
    try {
      waiting.multi_get({"given", key}, kLong);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kPeerLost);
      EXPECT_STREQ(e.what(), "rank 1 has ended");
    }
  }
  end.join();
  waiting.set("other", "2");
  EXPECT_EQ(waiting.get("other", kLong), "2") << "the connection goes on";
}

TEST(TcpStore, AWithdrawnWillIsNone) {
  TcpStoreServer server("127.0.0.1", 0, "");
  TcpStore store(options_for(server.port(), ""));
  {
    TcpStore other(options_for(server.port(), ""));
    other.set("key", "1");
    other.leave_will({"key"}, "gone");
    other.leave_will({}, "");
    other.get("key", kLong);  // the server has read all of it
  }
  // Only a connection that is made later is sure to be served after the end of that one.
  TcpStore later(options_for(server.port(), ""));
  EXPECT_EQ(later.get("key", kLong), "1");
}

TEST(TcpStore, ServesManyRanksThroughOneWait) {
  TcpStoreServer server("127.0.0.1", 0, "secret");
  constexpr int kSize = 48;
  std::vector<std::string> keys;
  for (int r = 0; r < kSize; ++r) keys.push_back("key " + std::to_string(r));
  const auto errors = test::run_threads(kSize, [&](int rank) {
    TcpStore store(options_for(server.port(), "secret"));
    store.set(keys[static_cast<std::size_t>(rank)], std::to_string(rank));
    const auto values = store.multi_get(keys, kLong);
    for (int r = 0; r < kSize; ++r) EXPECT_EQ(values[static_cast<std::size_t>(r)], std::to_string(r));
  });
  EXPECT_EQ(errors, std::vector<std::string>(kSize));
}

TEST(TcpStore, LeavesNoDescriptor) {
  const auto round = [] {
    TcpStoreOptions options = options_for(0, "secret");
    options.serve = true;
    TcpStore first(options);
    TcpStore second(options_for(first.port(), "secret"));
    second.set("key", "value");
    EXPECT_EQ(first.get("key", kLong), "value");
  };
  round();  // the first opens what the process keeps: the resolver's files
  const int before = test::open_descriptors();
  for (int i = 0; i < 50; ++i) round();
  EXPECT_EQ(test::open_descriptors(), before);
}

}  // namespace
}  // namespace tutti
