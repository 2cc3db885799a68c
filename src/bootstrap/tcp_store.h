// Rendezvous over TCP: rank 0 serves the keys from a thread, every rank (0 too) is a client.
//
// Each operation is one round trip, multi_get of any number of keys too; set and erase are sent and not waited for.
// Both sides prove the secret. An empty secret leaves the store open to all who can reach the port and speak its
// protocol, as PyTorch's TCPStore is; bytes that are not of the protocol, and connections that stay silent, change
// nothing in any case. The store's keys live as long as rank 0's TcpStore: it should be the last one destroyed.
//
// In a forked child it is empty: the server and the connections are the parent's.
//
// Thread rule: one thread at a time (the server has its own).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/unforked_fd.h"
#include "bootstrap/tcp_store_server.h"
#include "net/named_host.h"
#include "tutti/store.h"

namespace tutti {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;         // of a server: 0 takes any free one
  bool serve = false;             // true on rank 0
  bool up = false;                // the server is there already: a refused connection is final
  std::string server = "rank 0";  // who serves, for messages
  std::string secret;
  Logger logger;                               // of a server
  std::chrono::milliseconds timeout{300'000};  // for reaching the server, and for operations without their own
};

class TcpStore final : public Store {
 public:
  // Throws Error(kTimeout) if the server does not come up, Error(kInvalidArgument) if the secrets differ.
  explicit TcpStore(const TcpStoreOptions& options);

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  void erase(std::string_view key) noexcept override;

  // If this connection ends without more ado, whoever asks for one of these keys, or waits for it among others, gets
  // Error(kPeerLost) with `text`, in place of an earlier will. No keys: there is none any more.
  void leave_will(const std::vector<std::string>& keys, std::string_view text);

  // Where this process serves the store: until no other client is there, `within` at most. For a rank that gives up,
  // and by that may end what others still look for its reason in.
  void await_others(std::chrono::milliseconds within) const noexcept;

  std::uint16_t port() const noexcept { return options_.port; }

  // An operation has failed so that no other can follow.
  bool is_lost() const noexcept { return !socket_; }

 private:
  void connect();
  void throw_if_stopped();
  bool greet(Deadline& deadline, std::chrono::milliseconds patience, ConnectFailure& failure);
  void send(std::string_view payload, Deadline& deadline);
  std::string receive(Deadline& deadline);
  void tell(const StoreRequest& request);
  std::string ask(const StoreRequest& request, Deadline& deadline);
  [[noreturn]] void lost(const std::string& why);
  std::string place() const;

  TcpStoreOptions options_;
  const pid_t owner_;     // the connection is its
  bool gave_up_ = false;  // the connection, for want of memory to read an answer, or by a handler of a signal
  std::unique_ptr<TcpStoreServer> server_;
  UnforkedFd socket_;
  FrameBuffer in_;
};

}  // namespace tutti
