// Plans from arbitrary bytes: an Error of kind InvalidArgument, or a plan that comes back equal when written and read,
// that can be cut into bytes, and on which the verifier comes to a verdict.
#include "fuzz_main.h"
#include "plan/reader.h"
#include "plan/sizes.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti::fuzz {
namespace {

// Two ranks, with an operation of every shape but multicast; placeholders are filled in by seeds().
constexpr const char* kRank = R"({"id": @R, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 3,
 "threadblocks": [
  {"id": 0, "ops": [
    {"name": "rlxsignal", "channel_ids": [0], "channel_type": "memory"},
    {"name": "rlxwait", "channel_ids": [0], "channel_type": "memory"}, {"name": "nop"},
    {"name": "put", "src_buff": [{"type": "i", "index": 0, "size": 1}], "dst_buff": [{"buffer_id": 0, "index": 2,
     "size": 1}], "channel_type": "memory"},
    {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 2}], "dst_buff": [{"type": "o", "index": 0,
     "size": 2}], "tbg_info": {"tb_id": 0, "tbg_size": 1}},
    {"name": "nop"}, {"name": "signal", "channel_ids": [0], "channel_type": "memory"},
    {"name": "wait", "channel_ids": [0], "channel_type": "memory"}, {"name": "nop"},
    {"name": "re", "src_buff": [{"type": "o", "index": 0, "size": 1}, {"type": "s", "index": 2, "size": 1}],
     "dst_buff": [{"type": "o", "index": 0, "size": 1}], "reduce_op": "sum", "origin": "a.py:1"},
    {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}],
   "channels": [{"channel_type": "memory", "channel_ids": [0]}],
   "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]},
  {"id": 1, "ops": [
    {"name": "ppkt", "src_buff": [{"type": "i", "index": 1, "size": 1}], "dst_buff": [{"buffer_id": 0, "index": @R,
     "size": 1}], "channel_type": "memory"},
    {"name": "repkt", "src_buff": [{"type": "i", "index": 1, "size": 1}, {"type": "s", "index": @P, "size": 1}],
     "dst_buff": [{"type": "o", "index": 1, "size": 1}], "reduce_op": "sum"},
    {"name": "sem_acquire", "semaphore_ids": [0]}, {"name": "sem_release", "semaphore_ids": [0]},
    {"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": [{"name": "nop"}]},
    {"name": "pwsf", "src_buff": [{"type": "i", "index": 1, "size": 1}], "dst_buff": [{"buffer_id": 0, "index": 2,
     "size": 1}], "channel_type": "port", "channel_ids": [0]},
    {"name": "wait", "channel_ids": [0], "channel_type": "port"},
    {"name": "flush", "channel_ids": [0], "channel_type": "port"},
    {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}],
   "channels": [{"channel_type": "port", "channel_ids": [0]}],
   "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]},
    {"access_channel_type": "port", "remote_buffer_ids": [0]}]}],
 "channels": [{"channel_type": "memory", "connected_to": [@P]}, {"channel_type": "port", "connected_to": [@P]}],
 "remote_buffers": [{"rank": @P, "type": "s", "access_channel_types": ["memory", "port"]}],
 "semaphores": [{"init_value": 1}]})";

std::string rank_text(int rank) {
  std::string text = kRank;
  for (std::size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) {
    text.replace(at, 2, std::to_string(text[at + 1] == 'R' ? rank : 1 - rank));
  }
  return text;
}

// Only small plans, for speed; the proof has limits of its own.
bool is_small(const plan::Plan& plan) {
  std::size_t operations = 0;
  for (const auto& rank : plan.ranks) {
    for (const std::int32_t chunks : rank.chunks) {
      if (chunks > 256) return false;
    }
    for (const auto& block : rank.blocks) operations += block.operations.size();
  }
  return operations <= 500 && plan.ranks.size() <= 16;
}

void cut(const plan::Plan& plan, std::int64_t bytes) {
  try {
    const plan::Sizes sizes(plan, bytes);
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      for (const auto& block : plan.ranks[rank].blocks) {
        for (const auto& op : block.operations) {
          for (const auto& move : sizes.moves_of(static_cast<std::int32_t>(rank), block, op)) {
            require(move.bytes > 0, "a move moves something");
          }
        }
      }
    }
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kUnsupported, "only reused scratch is too small for a size");
  }
}

}  // namespace

void run(std::string_view bytes) {
  plan::Plan plan;
  try {
    plan = plan::read_plan(bytes);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kInvalidArgument, "a text that is no plan is an invalid argument");
    return;
  }
  require(plan::read_plan(plan::write_plan(plan, -1)) == plan, "a plan comes back equal");
  if (is_small(plan)) cut(plan, 1000);
  const plan::Verdict verdict = plan::verify(plan, {.steps = 1 << 18, .bytes = 64 << 20});
  require(verdict.outcome != plan::Outcome::kRejected || !verdict.fault.message.empty(), "a rejection has a reason");
}

std::vector<std::string> seeds() {
  const std::string head = R"({"version": 1, "name": "seed", "collective": "custom", "protocol": "LL", "inplace": false,
 "use_double_scratch_buffer": true, "gpus": [)";
  return {head + rank_text(0) + ", " + rank_text(1) + "]}",
          head + rank_text(0) + R"(], "template": {"dims": [2], "input_blocks": 1, "output_blocks": 2}})"};
}

}  // namespace tutti::fuzz
