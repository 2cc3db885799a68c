// What other ranks give while a group forms, as a store or a bootstrap passes it on: what all have exchanged, why one
// has failed, the settings that all must share, and where a rank is reached.
#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "bootstrap/agreed_settings.h"
#include "bootstrap/exchange.h"
#include "bootstrap/memory_store.h"
#include "channel/cuda/gpu_agreement.h"
#include "fuzz_main.h"
#include "transport/tcp/member.h"
#include "tutti/error.h"

namespace tutti::fuzz {
namespace {

constexpr std::chrono::milliseconds kTimeout{1};
constexpr int kMany = kMostDirect + 1;  // ranks, for which rank 0 passes on what all have given

// Anything but an Error that is thrown is a finding.
template <class Act>
bool works(Act&& act) {
  try {
    act();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void read_exchanged(std::string_view bytes) {
  MemoryStore store;
  store.set(exchange_key("group", kHostTopic, 0), bytes);
  works([&] {
    const auto blobs = exchange(store, "group", kHostTopic, 1, 2, "own", kTimeout);
    require(blobs.size() == 2 && blobs[0] == bytes && blobs[1] == "own", "two give what they have given");
  });
  store.set(store_key("group", kHostTopic, "all"), bytes);
  works([&] {
    const auto blobs = exchange(store, "group", kHostTopic, 1, kMany, "own", kTimeout);
    require(blobs.size() == kMany, "rank 0 passes on what each has given");
    std::size_t all = 0;
    for (const std::string& blob : blobs) all += blob.size();
    require(all <= bytes.size(), "and no more than it has");
  });
}

void read_failure(std::string_view bytes) {
  MemoryStore store;
  store.set(failure_key("group"), bytes);
  works([&] { throw_if_told(store, "group", 1); });
  failed_before(store, "group", 1);
}

void read_settings_of_two(std::string_view bytes) {
  const std::size_t half = bytes.size() / 2;
  std::vector<AgreedSettings> of_ranks;
  for (const std::string_view part : {bytes.substr(0, half), bytes.substr(half), bytes}) {
    ByteReader in(part);
    AgreedSettings settings = read_settings(in);
    ByteWriter out;
    write_settings(out, settings);
    ByteReader again(out.str());
    require(read_settings(again) == settings && again.done(), "settings are what their writer writes");
    of_ranks.push_back(std::move(settings));
  }
  works([&] { compare_settings("group", of_ranks); });
  of_ranks = {of_ranks.back(), of_ranks.back()};
  require(works([&] { require(compare_settings("group", of_ranks).empty(), "who differs in nothing"); }),
          "equal settings do not keep a group from forming");
}

// Gives this rank what another has "given".
class OtherRank final : public Bootstrap {
 public:
  explicit OtherRank(std::string_view bytes) : Bootstrap("group", 0, 2), bytes_(bytes) {}
  std::vector<std::string> all_gather(std::string_view /*topic*/, std::string_view blob,
                                      std::chrono::milliseconds /*timeout*/) override {
    return {std::string(blob), bytes_};
  }
  void watch() override {}
  void tell(const std::exception& /*error*/) noexcept override {}

 private:
  const std::string bytes_;
};

const cuda::GpuCard& gpu_card() {
  static const cuda::GpuCard card{{version_setting(), {"A", "1", "1", true}}, 4, "H100"};
  return card;
}

void read_gpu_card(std::string_view bytes) {
  OtherRank other(bytes);
  works([&] {
    const cuda::GpuAgreement agreed = cuda::agree_on_gpus(other, gpu_card(), kTimeout);
    require(agreed.models.size() == 2 && agreed.models[0] == "H100", "each rank has a model");
    require(agreed.max_blocks > 0 && agreed.max_blocks <= 4, "no more blocks than a rank wants");
  });
}

void read_peer_address(std::string_view bytes) {
  const auto address = tcp::PeerAddress::parse(std::string(bytes));
  if (!address) return;
  const std::string shown = address->there + "/" + std::to_string(address->group);
  const auto again = tcp::PeerAddress::parse(shown);
  require(again && again->there == address->there && again->group == address->group, "an address is what it shows");
}

}  // namespace

void run(std::string_view bytes) {
  read_exchanged(bytes);
  read_failure(bytes);
  read_settings_of_two(bytes);
  read_gpu_card(bytes);
  read_peer_address(bytes);
}

std::vector<std::string> seeds() {
  ByteWriter settings, card, all, failure;
  write_settings(settings, gpu_card().settings);
  write_settings(card, gpu_card().settings);
  card.u32(2).text("H200");
  for (int r = 0; r < kMany; ++r) all.text("given by rank " + std::to_string(r));
  failure.u32(0).u8(0).u8(static_cast<std::uint8_t>(ErrorKind::kExhausted)).text("no descriptors");
  return {settings.str(),      settings.str() + settings.str(),
          card.str(),          all.str(),
          failure.str(),       std::string("\0tutti cannot join\0because", 26),
          "192.0.2.7:4711/12", "[fe80::1]:4711/12"};
}

}  // namespace tutti::fuzz
