// The fingerprint tells calls apart that must not meet, and the description says what a user wrote.
#include "channel/call_record.h"

#include <gtest/gtest.h>

#include <set>

namespace tutti::test {
namespace {

CallRecord call(Collective collective, std::uint64_t count = 1024) {
  CallRecord record;
  record.sequence = 7;
  record.call = static_cast<std::uint8_t>(collective);
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.count = count;
  return record;
}

TEST(Fingerprint, IsNeverZeroAndTellsEveryFieldApart) {
  std::set<std::uint32_t> seen;
  std::size_t made = 0;
  for (std::uint8_t c = 0; c <= kCallRecv; ++c)
    for (std::uint8_t dtype = 0; dtype < kDataTypeCount; ++dtype)
      for (std::uint64_t count : {0, 1, 2, 1024, 1 << 20})
        for (const int root : {-1, 0, 1}) {
          CallRecord record = call(Collective::kAllReduce, count);
          record.call = c;
          record.dtype = dtype;
          record.root = root;
          for (const std::uint32_t algorithm : {0U, 1U, 0x4f06c2a1U}) {
            record.algorithm = algorithm;
            EXPECT_NE(fingerprint(record), 0U);
            seen.insert(fingerprint(record));
            ++made;
          }
        }
  EXPECT_EQ(seen.size(), made) << "of so few calls no two should collide";
}

TEST(Fingerprint, OpCountsOnlyWhereItReduces) {
  CallRecord sum = call(Collective::kAllReduce);
  CallRecord max = sum;
  max.op = static_cast<std::uint8_t>(ReduceOp::kMax);
  EXPECT_NE(fingerprint(sum), fingerprint(max));
  sum.call = max.call = static_cast<std::uint8_t>(Collective::kAllGather);
  EXPECT_EQ(fingerprint(sum), fingerprint(max));
}

TEST(Fingerprint, CountsMayDifferInUnevenCalls) {
  CallRecord a = call(Collective::kAllToAll, 3);
  CallRecord b = call(Collective::kAllToAll, 4);
  EXPECT_NE(fingerprint(a), fingerprint(b));
  a.uneven = b.uneven = 1;
  EXPECT_EQ(fingerprint(a), fingerprint(b));
  b.uneven = 0;
  EXPECT_NE(fingerprint(a), fingerprint(b));
}

TEST(Fingerprint, LeavesOutWhatRanksMaySayDifferently) {
  CallRecord a = call(Collective::kAllReduce);
  CallRecord b = a;
  b.sequence = 8;
  b.mapped_input = 99;
  b.mapped_output = 98;
  b.largest = 5;
  EXPECT_EQ(fingerprint(a), fingerprint(b));
}

TEST(Describe, SaysWhatTheUserWrote) {
  EXPECT_EQ(describe(call(Collective::kAllReduce)), "all_reduce #7 f32[1024] sum");
  CallRecord broadcast = call(Collective::kBroadcast);
  broadcast.root = 0;
  EXPECT_EQ(describe(broadcast), "broadcast #7 f32[1024] root 0");
  CallRecord reduce = call(Collective::kReduce);
  reduce.root = 2;
  EXPECT_EQ(describe(reduce), "reduce #7 f32[1024] sum root 2");
  EXPECT_EQ(describe(call(Collective::kBarrier)), "barrier #7");
  CallRecord send = call(Collective::kBarrier, 16);
  send.call = kCallSend;
  send.tag = 3;
  EXPECT_EQ(describe(send), "send f32[16] tag 3");
  send.call = kCallRecv;
  EXPECT_EQ(describe(send), "recv f32[16] tag 3");
  CallRecord norm = call(Collective::kBarrier, 8192);
  norm.call = kCallAddRmsNorm;
  norm.tag = 4096;
  EXPECT_EQ(describe(norm), "all_reduce_add_rms_norm f32[8192] in rows of 4096");
  norm.call = kCallQuantized;
  norm.tag = 128;
  EXPECT_EQ(describe(norm), "all_reduce_quantized f32[8192] in blocks of 128");
  CallRecord uneven = call(Collective::kAllToAll);
  uneven.uneven = 1;
  EXPECT_EQ(describe(uneven), "all_to_all #7 f32[uneven]");
}

// Records come from other processes.
TEST(Describe, SurvivesCodesOutOfRange) {
  CallRecord record = call(Collective::kAllReduce);
  record.dtype = 200;
  record.op = 200;
  EXPECT_EQ(describe(record), "all_reduce #7 dtype 200[1024] op 200");
  record.call = 250;
  EXPECT_EQ(describe(record), "call 250 dtype 200[1024] tag 0");
}

}  // namespace
}  // namespace tutti::test
