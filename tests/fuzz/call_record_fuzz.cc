// What other processes leave in shared memory: their record of a call, and the two counters of a ring of bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "channel/call_record.h"
#include "fuzz_main.h"
#include "transport/shm/ring.h"

namespace tutti::fuzz {
namespace {

void read_record(std::string_view bytes) {
  CallRecord record;
  std::memcpy(static_cast<void*>(&record), bytes.data(), std::min(bytes.size(), sizeof record));
  const std::string said = describe(record);
  require(!said.empty() && said.size() < 256, "any record has a description");
  require(fingerprint(record) != 0, "and a fingerprint");
  CallRecord same = record;
  same.sequence += 1;
  same.mapped_input = ~same.mapped_input;
  require(fingerprint(same) == fingerprint(record), "of what all ranks must agree on only");
}

// Each byte is a step of an honest end or of a hostile peer, which stores any counters it likes.
void drive_ring(std::string_view bytes) {
  constexpr std::size_t kCapacity = 64;
  struct alignas(128) Memory {
    std::array<std::byte, ring_bytes(kCapacity)> bytes{};
  };
  Memory memory;
  auto* header = new (memory.bytes.data()) RingHeader{};
  RingWriter writer(memory.bytes.data(), kCapacity);
  RingReader reader(memory.bytes.data(), kCapacity);
  std::array<std::byte, 2 * kCapacity> buffer{};
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto step = static_cast<unsigned char>(bytes[i]);
    const auto amount = static_cast<unsigned char>(bytes[i + 1]);
    const std::size_t size = amount % buffer.size();
    const std::uint64_t change = step >= 128 ? std::uint64_t{amount} << 56 : amount;
    switch (step % 4) {
      case 0:
        require(writer.write(ConstBytes(buffer).first(size / 2), ConstBytes(buffer).first(size - size / 2)) <= size,
                "no more is taken than was given");
        break;
      case 1:
        require(reader.read(MutableBytes(buffer).first(size)) <= size, "no more is read than was asked for");
        break;
      // relaxed: one thread.
      case 2:
        header->head.fetch_add(change, std::memory_order_relaxed);
        break;
      default:
        header->tail.fetch_add(change, std::memory_order_relaxed);
        break;
    }
  }
}

}  // namespace

void run(std::string_view bytes) {
  read_record(bytes);
  drive_ring(bytes);
}

std::vector<std::string> seeds() {
  CallRecord record;
  record.sequence = 7;
  record.count = 1024;
  record.call = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.hash = fingerprint(record);
  const std::string bytes(reinterpret_cast<const char*>(&record), sizeof record);
  using namespace std::string_literals;
  return {bytes, "\0\x50\1\x20\0\x50\1\x70"s, "\0\x10\2\x01\1\x20\1\x20"s, "\0\x7f\3\x40\0\x40\1\x7f\1\x7f"s};
}

}  // namespace tutti::fuzz
