// How scratch is divided: no place has two uses.
#include "channel/cuda/scratch_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tutti::cuda::test {
namespace {

// The places of one layout, by their ends.
class Places {
 public:
  explicit Places(std::size_t total) : total_(total) {}

  void add(const std::string& what, std::size_t at, std::size_t bytes) {
    ASSERT_LE(at + bytes, total_) << what;
    const auto next = ends_.upper_bound(at);  // the first that ends behind the beginning of this one
    if (next != ends_.end()) {
      ASSERT_GE(next->second.at, at + bytes) << what << " meets " << next->second.what;
    }
    ends_[at + bytes] = {at, what};
  }

 private:
  struct Place {
    std::size_t at = 0;
    std::string what;
  };
  std::size_t total_;
  std::map<std::size_t, Place> ends_;
};

void add_collectives(Places& places, const ScratchLayout& layout, int ranks) {
  for (int src = 0; src < ranks; ++src) {
    for (int block = 0; block < kMaxBlocks; ++block) {
      for (int parity = 0; parity < kParities; ++parity) {
        places.add("a header", layout.header(block, parity, src), 8);
        for (int phase = 0; phase < kPhases; ++phase) {
          places.add("packets", layout.ll(block, parity, phase, src), kLLSlotBytes);
          places.add("lines", layout.ll128(block, parity, phase, src), kLL128SlotBytes);
        }
      }
      for (int phase = 0; phase < kPhases; ++phase) {
        places.add("a signal", layout.bulk_signal(block, phase, src), 8);
        for (std::uint64_t piece = 0; piece < kBulkDepth; ++piece) {
          places.add("a piece", layout.bulk(block, phase, piece, src), kBulkPieceBytes);
        }
      }
    }
  }
}

void add_messages(Places& places, const ScratchLayout& layout, int ranks) {
  places.add("the word of failures", layout.poison(), 8);
  for (int src = 0; src < ranks; ++src) {
    for (int channel = 0; channel < kMessageChannels; ++channel) {
      places.add("a count of pieces", layout.message_filled(channel, src), 8);
      places.add("a credit", layout.message_drained(channel, src), 8);
      for (std::uint64_t piece = 0; piece < kMessageDepth; ++piece) {
        places.add("the header of a message", layout.message_header(channel, piece, src), 16);
        places.add("a piece of a message", layout.message(channel, piece, src), kMessagePieceBytes);
      }
    }
    for (const int which : {0, 1}) places.add("a signal of the probe", layout.probe_signal(which, src), 8);
    places.add("data of the probe", layout.probe(src), kProbeBytes);
  }
}

// A payload in one place would be a flag in the other.
TEST(ScratchLayout, NoPlaceHasTwoUses) {
  for (int ranks = 1; ranks <= device::kMaxRanks; ++ranks) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const ScratchLayout all(ranks), messages(ranks, ScratchUse::kMessages);
    Places of_all(all.total_bytes()), of_messages(messages.total_bytes());
    add_collectives(of_all, all, ranks);
    add_messages(of_all, all, ranks);
    add_messages(of_messages, messages, ranks);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::cuda::test
