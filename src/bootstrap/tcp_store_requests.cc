// What TcpStoreServer does for the clients' requests.
#include <algorithm>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/parse.h"
#include "bootstrap/tcp_store_server.h"
#include "net/address.h"

namespace tutti {
namespace {

constexpr std::int64_t kLongestWaitMs = std::int64_t{1000} * 3600 * 24 * 365;  // cannot overflow the clock

std::string reply(StoreReply status) { return ByteWriter().u8(static_cast<std::uint8_t>(status)).str(); }

}  // namespace

bool TcpStoreServer::prove(Client& client, std::string_view frame) {
  const std::optional<StoreResponse> response = decode_response(frame);
  if (!response) return false;
  if (!equal(response->proof, store_proof(secret_, "client", client.nonce, response->nonce))) {
    send(client, kStoreRefusal);
    tell_of_refused(client);
    return false;
  }
  client.proven = true;
  --strangers_;
  send(client, ByteWriter().digest(store_proof(secret_, "server", client.nonce, response->nonce)).str());
  return true;
}

// Each host once: whoever comes again says nothing new.
void TcpStoreServer::tell_of_refused(const Client& client) {
  constexpr std::size_t kMostHosts = 4;
  const std::string host = remote_address(client.socket.get()).host();
  if (refused_.size() == kMostHosts || std::ranges::find(refused_, host) != refused_.end()) return;
  refused_.push_back(host);
  std::string hosts;
  for (const std::string& each : refused_) hosts += (hosts.empty() ? "" : ", ") + each;
  set(kRefusedKey, hosts);
  logger_.warning("the job's store at port " + std::to_string(port_) + " has refused a connection from " + host +
                  ", which has another secret: if it is a rank's, give all ranks the same TUTTI_SECRET");
}

// False when the request is malformed: that ends its connection.
bool TcpStoreServer::handle(ClientId id, Client& client, std::string_view frame) {
  const std::optional<StoreRequest> request = decode_request(frame);
  if (!request) return false;
  switch (request->op) {
    case StoreOp::kSet:
      set(request->key, request->value);
      break;
    case StoreOp::kGet:
      get(id, client, *request);
      break;
    case StoreOp::kAdd:
      add(client, *request);
      break;
    case StoreOp::kErase:
      values_.erase(std::string(request->key));
      break;
    case StoreOp::kWill:
      client.will.text = request->value;
      client.will.keys.assign(request->keys.begin(), request->keys.end());
      break;
  }
  return true;
}

void TcpStoreServer::set(std::string_view key, std::string_view value) {
  const std::string name(key);
  values_.insert_or_assign(name, std::string(value));
  const auto found = waiters_.find(name);
  if (found == waiters_.end()) return;
  const std::vector<ClientId> ids = std::move(found->second);
  waiters_.erase(found);
  for (const ClientId id : ids) {
    Client& client = clients_.at(id);
    if (!client.waiting || --client.waiting->missing > 0) continue;
    // Not the one who sets it pays for what another's answer takes.
    serving(client, [&, id = id] {
      answer_or_wait(id, client);
      if (!client.waiting) runnable_.push_back(id);
    });
  }
}

void TcpStoreServer::add(Client& client, const StoreRequest& request) {
  std::int64_t old = 0;
  if (const auto found = values_.find(std::string(request.key)); found != values_.end()) {
    if (!parse_number(found->second, old)) return send(client, reply(StoreReply::kNoNumber));
  }
  // Unsigned, so that a hostile sum wraps instead of overflowing.
  const std::uint64_t sum = static_cast<std::uint64_t>(old) + request.amount;
  set(request.key, std::to_string(static_cast<std::int64_t>(sum)));
  send(client, ByteWriter().u8(static_cast<std::uint8_t>(StoreReply::kDone)).u64(sum).str());
}

void TcpStoreServer::get(ClientId id, Client& client, const StoreRequest& request) {
  const std::int64_t timeout_ms =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(request.timeout_ms), 0, kLongestWaitMs);
  Waiting waiting;
  waiting.keys.assign(request.keys.begin(), request.keys.end());
  waiting.until_ns = now_ns() + timeout_ms * 1'000'000;
  client.waiting = std::move(waiting);
  answer_or_wait(id, client);
}

// Answers if all keys are there, else enters the client for those that are not. A key may have been erased since it
// was last seen, so all are looked up anew.
void TcpStoreServer::answer_or_wait(ClientId id, Client& client) {
  if (answer_if_lost(id, client)) return;
  Waiting& waiting = *client.waiting;
  waiting.missing = 0;
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(StoreReply::kDone));
  for (const std::string& key : waiting.keys) {
    const auto found = values_.find(key);
    if (found != values_.end()) {
      out.text(found->second);
    } else {
      waiters_[key].push_back(id);
      ++waiting.missing;
    }
  }
  if (waiting.missing > 0) return;
  client.waiting.reset();
  send(client, out.str());
}

// What comes of the other keys is of no more use to it: it cannot get all.
bool TcpStoreServer::answer_if_lost(ClientId id, Client& client) {
  if (lost_.empty()) return false;
  for (const std::string& key : client.waiting->keys) {
    const auto found = lost_.find(key);
    if (found == lost_.end()) continue;
    const std::string answer = ByteWriter().u8(static_cast<std::uint8_t>(StoreReply::kLost)).text(found->second).str();
    stop_waiting(id, client);
    send(client, answer);
    return true;
  }
  return false;
}

// Its writer is gone. Who waits need not wait for one of these keys: it may be there, and others among them not.
void TcpStoreServer::execute(const Will& will) {
  for (const std::string& key : will.keys) lost_.insert_or_assign(key, will.text);
  for (auto& [id, client] : clients_) {
    serving(client, [&, id = id] {
      if (client.waiting && answer_if_lost(id, client)) runnable_.push_back(id);
    });
  }
}

void TcpStoreServer::stop_waiting(ClientId id, Client& client) {
  if (!client.waiting) return;
  for (const std::string& key : client.waiting->keys) {
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) continue;
    std::erase(found->second, id);
    if (found->second.empty()) waiters_.erase(found);
  }
  client.waiting.reset();
}

void TcpStoreServer::answer_missing(ClientId id, Client& client) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(StoreReply::kMissing));
  for (const std::string& key : client.waiting->keys) {
    if (values_.contains(key)) continue;
    out.text(key);
    break;
  }
  stop_waiting(id, client);
  send(client, out.str());
  runnable_.push_back(id);
}

}  // namespace tutti
