#include "nccl/pending.h"

#include <cstring>
#include <string>
#include <utility>

#include "nccl/background.h"
#include "nccl/forming.h"
#include "nccl/settings.h"

namespace tutti::nccl {
namespace {

std::shared_ptr<Served> left(const std::string& reason) {
  auto served = std::make_shared<Served>();
  served->blocks = false;
  served->reason = reason;
  return served;
}

// With the other ranks, who hear the refusal if there is one.
void settle(ncclComm_t comm, const std::shared_ptr<Served>& before, const std::string& refusal, int device,
            const AlgorithmSet& algorithms) {
  if (refusal.empty()) begin_thread(device);
  const Pending& pending = *before->pending;
  std::shared_ptr<Served> after = left({});
  after->scaled = before->scaled;
  try {
    after->circle = std::make_unique<Circle>(*pending.place, pending.rank, pending.size);
    form(*after, refusal, device, algorithms, pending.given_up);
  } catch (const std::exception& e) {
    after->reason = e.what();
  }
  const std::shared_ptr<CudaCommunicator> cuda = after->cuda;
  if (!replace(comm, before, std::move(after)) && cuda != nullptr) cuda->abort("given up while it was made");
}

bool begin(ncclComm_t comm, const std::shared_ptr<Served>& served) {
  const Pending& pending = *served->pending;
  int device = -1;
  std::string refusal = refusal_of(comm, pending.rank, pending.size, device);
  if (refusal.empty() && pending.against != nullptr) refusal = pending.against;
  const Given given = given_to(comm);
  if (refusal.empty()) refusal = given.problem;
  if (in_background([=] { settle(comm, served, refusal, device, given.algorithms); })) return true;
  // The others wait for this rank as for one that does not answer.
  replace(comm, served, left("there was no thread to form its group"));
  return false;
}

}  // namespace

bool blocks(const ncclConfig_t* config, bool otherwise) noexcept {
  const std::string said = nccl_setting("NCCL_COMM_BLOCKING");
  if (said == "0" || said == "1") return said == "1";
  if (config == nullptr) return otherwise;
  // The beginning of ncclConfig_t, which no version has changed.
  struct {
    std::size_t bytes;
    unsigned magic, version;
    int blocking;
  } head;
  constexpr unsigned kMagic = 0xcafebeef;
  std::memcpy(&head, config, sizeof(head.bytes) + sizeof(head.magic));
  if (head.magic != kMagic || head.bytes < sizeof(head)) return otherwise;
  std::memcpy(&head, config, sizeof(head));
  return head.blocking == 0 || head.blocking == 1 ? head.blocking == 1 : otherwise;
}

void adopt_later(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, const char* against) {
  if (comm == nullptr || adopted_unmet(comm, place, size)) return;
  std::shared_ptr<Served> served = left("not asked whether it is ready");
  served->pending = std::make_shared<Pending>();
  served->pending->place = place;
  served->pending->rank = rank;
  served->pending->size = size;
  served->pending->against = against;
  keep(comm, std::move(served));
}

bool ready(ncclComm_t comm, const std::shared_ptr<Served>& served) {
  if (served == nullptr || served->pending == nullptr) return true;
  Pending& pending = *served->pending;
  {
    const std::lock_guard lock(pending.mutex);
    if (std::exchange(pending.begun, true)) return false;
  }
  return !begin(comm, served);
}

bool may_call(ncclComm_t comm, const std::shared_ptr<Served>& served) {
  if (served == nullptr || served->pending == nullptr) return true;
  Pending& pending = *served->pending;
  {
    const std::lock_guard lock(pending.mutex);
    if (std::exchange(pending.begun, true)) return false;
  }
  const char* const reason = "it was used before a rank had asked whether it is ready";
  // Known at once, so that this rank's next call is NCCL's, too.
  if (!replace(comm, served, left(reason))) return true;
  in_background([=] { settle(comm, served, reason, -1, {}); });
  return true;
}

bool finalize(ncclComm_t comm) {
  const std::shared_ptr<Served> served = find(comm);
  if (served == nullptr || served->cuda == nullptr) {
    drop(comm);
    return true;
  }
  if (served->blocks) return end_group(comm, served);
  std::shared_ptr<Served> ending = left("finalized");
  ending->cuda = served->cuda;
  ending->pending = std::make_shared<Pending>();
  ending->pending->begun = true;
  if (!replace(comm, served, ending)) return !served->freed;
  const auto end = [=] { return end_group(comm, ending); };
  // At exit it has its time to end by itself: peers may still wait for what it runs.
  const auto abort = [weak = std::weak_ptr(ending)] {
    if (const auto still = weak.lock()) still->cuda->abort("the process ends");
  };
  return in_background(end, abort) || end();
}

bool ends(ncclComm_t comm) {
  const std::shared_ptr<Served> served = find(comm);
  return served != nullptr && served->pending != nullptr && served->cuda != nullptr;
}

}  // namespace tutti::nccl
