#include "nccl/communicators.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/registry.h"
#include "nccl/driver.h"
#include "nccl/real_library.h"
#include "nccl/report.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::nccl {
namespace {

// NCCL's own start has just brought the ranks together; then each makes its part of the group, which ends after
// form_time().
std::chrono::milliseconds arrive() { return settings().patience; }
std::chrono::milliseconds form_time() { return settings().patience * 3; }
// NCCL waits without end, and so do calls under its name. (A year: what is added to a clock must not overflow.)
constexpr std::chrono::hours kForever{24 * 365};
constexpr int kMostRanks = 8;

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Served>> served;
};
// Never destroyed: calls may come from other libraries' destructors.
Table& table() {
  static Table* const value = new Table;
  return *value;
}

void keep(ncclComm_t comm, std::shared_ptr<Served> served) {
  count_communicator(served->cuda != nullptr ? served->cuda->transport() : std::string(), served->reason);
  Table& all = table();
  std::shared_ptr<Served> before;  // ends behind the lock
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Served>& place = all.served[comm];
  before = std::move(place);
  place = std::move(served);
}

std::shared_ptr<Served> take(ncclComm_t comm) {
  if (forked_child()) return nullptr;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.served.find(comm);
  if (found == all.served.end()) return nullptr;
  std::shared_ptr<Served> served = std::move(found->second);
  all.served.erase(found);
  return served;
}

std::string line_of(const char* file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

std::string link(const char* file) {
  char text[64] = {};
  static_cast<void>(::readlink(file, text, sizeof(text) - 1));
  return text;
}

// What ranks compare.
struct Card {
  std::string host, settings;
  static Card own() {
    const Config config = config_from_environment();
    Card card;
    // With the network namespace: what they say to each other goes by its loopback interface.
    card.host = line_of("/proc/sys/kernel/random/boot_id") + " " + config.host_id + " " + link("/proc/self/ns/net");
    card.settings = "Tutti " TUTTI_VERSION ", ";
    card.settings += driver() != nullptr ? "copies" : "no copies";
    if (!config.cuda_algorithm.empty()) card.settings += " TUTTI_CUDA_ALGORITHM=" + config.cuda_algorithm;
    if (!config.cuda_transport.empty()) card.settings += " TUTTI_CUDA_TRANSPORT=" + config.cuda_transport;
    for (int c = 0; c < kCollectives; ++c) {
      const std::size_t limit = nccl::settings().max_bytes[static_cast<std::size_t>(c)];
      if (limit == kMeasured) continue;
      card.settings += std::string(" ") + to_string(static_cast<Function>(c)) + "=" + std::to_string(limit);
    }
    return card;
  }
  std::string text() const { return host + "\n" + settings; }
  static Card parse(const std::string& text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
  }
};

// What speaks against a group, or nothing.
std::string judge(const std::vector<std::string>& texts) {
  const Card first = Card::parse(texts[0]);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Card card = Card::parse(texts[r]);
    if (card.host != first.host) return "its ranks lie on several hosts";
    if (card.settings != first.settings) {
      return "the settings of ranks 0 and " + std::to_string(r) + " differ: '" + first.settings + "' and '" +
             card.settings + "'";
    }
  }
  return {};
}

// Why this rank cannot be part of a group, or nothing. Cheap: nothing is made yet.
std::string own_refusal(ncclComm_t comm, int rank, int size, bool in_company, int& device) {
  if (!settings().problem.empty()) return settings().problem;
  if (in_company) return "several communicators are made on a GPU in one group of calls";
  if (forked_child()) return "Tutti was used before fork()";
  ncclResult_t state = ncclSuccess;
  int its_rank = -1, its_size = 0;
  if (TUTTI_NCCL_PASS(ncclCommGetAsyncError, (comm, &state)) != ncclSuccess || state == ncclInProgress) {
    return "it does not block";
  }
  if (state != ncclSuccess) return "NCCL has failed in it";
  if (TUTTI_NCCL_PASS(ncclCommUserRank, (comm, &its_rank)) != ncclSuccess || its_rank != rank ||
      TUTTI_NCCL_PASS(ncclCommCount, (comm, &its_size)) != ncclSuccess || its_size != size ||
      TUTTI_NCCL_PASS(ncclCommCuDevice, (comm, &device)) != ncclSuccess) {
    return "NCCL numbers its ranks differently";
  }
  CudaCommunicator::library();  // throws where there is no plug-in
  return {};
}

// The two agreements: that all ranks can, and that all ranks have.
void form(Served& served, ncclComm_t comm, bool in_company) {
  Circle& circle = *served.circle;
  int device = -1;
  std::string card;
  try {
    const std::string refusal = own_refusal(comm, circle.rank(), circle.size(), in_company, device);
    card = refusal.empty() ? Card::own().text() : "!" + refusal;
  } catch (const std::exception& e) {
    card = std::string("!") + e.what();
  }
  const Verdict can = circle.agree("can", card, arrive(), &judge, /*moving=*/true);
  if (!can.yes) {
    served.reason = can.reason;
    return;
  }
  try {
    if (can.place) circle.move_to(*can.place);
  } catch (const std::exception& e) {
    served.reason = e.what();  // the others miss this rank
    return;
  }
  std::shared_ptr<CudaCommunicator> made;
  card = "made";
  try {
    CudaOptions options;
    options.device = device;
    options.timeout = form_time();
    options.name = "NCCL's communicator " + can.name;
    options.secret = circle.secret();
    options.plan_path = "none";  // the limits of what is taken were measured for Tutti's own kernels
    made = CudaCommunicator::create(circle.store(), can.name, circle.rank(), circle.size(), options);
    // Through host memory NCCL is the faster one.
    if (made->transport().rfind("peer memory", 0) != 0) card = "!its GPUs are joined by " + made->transport();
  } catch (const std::exception& e) {
    card = std::string("!") + e.what();
  }
  const Verdict have = circle.agree("have", card, form_time() + arrive(), nullptr, /*moving=*/false);
  if (!have.yes) {
    served.reason = have.reason;
    if (made != nullptr) made->abort(have.reason);
    return;
  }
  made->set_timeout(kForever);
  served.common.size = circle.size();
  served.common.copies = driver() != nullptr;
  served.common.max_bytes = settings().max_bytes;
  served.cuda = std::move(made);
}

// A circle that has not agreed is kept all the same: others may still have to ask its store.
void form_and_keep(ncclComm_t comm, std::shared_ptr<Served> served, bool in_company) {
  form(*served, comm, in_company);
  keep(comm, std::move(served));
}

}  // namespace

std::shared_ptr<Served> find(ncclComm_t comm) {
  // What the parent had is not the child's, nor is its lock.
  if (forked_child()) return nullptr;
  Table& all = table();
  const std::shared_lock lock(all.mutex);
  const auto found = all.served.find(comm);
  return found != all.served.end() ? found->second : nullptr;
}

void adopt_without(ncclComm_t comm, const std::string& reason) {
  if (comm == nullptr) return;
  auto served = std::make_shared<Served>();
  served->reason = reason;
  keep(comm, std::move(served));
}

void adopt(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, bool in_company) {
  if (comm == nullptr) return;
  if (size == 1 || size > kMostRanks) {
    // As on all ranks, so nobody meets; its parts are NCCL's, too.
    if (place) take_offer(*place);
    return adopt_without(comm, size == 1 ? "a single rank" : "more than " + std::to_string(kMostRanks) + " ranks");
  }
  if (!place) return adopt_without(comm, "its unique id has no room for Tutti's address, or comes from NCCL_COMM_ID");
  auto served = std::make_shared<Served>();
  try {
    served->circle = std::make_unique<Circle>(*place, rank, size);
  } catch (const std::exception& e) {
    return adopt_without(comm, e.what());
  }
  form_and_keep(comm, std::move(served), in_company);
}

void adopt_split(ncclComm_t parent, int color, int key, ncclComm_t comm, bool in_company) {
  const std::shared_ptr<Served> from = find(parent);
  std::unique_ptr<Circle> circle;
  if (from != nullptr && from->circle != nullptr) circle = from->circle->split(color, key, in_company);
  if (comm == nullptr) return;
  if (circle == nullptr) {
    return adopt_without(comm, in_company ? "several communicators are made on a GPU in one group of calls"
                                          : "it was split from one whose ranks had not agreed");
  }
  if (circle->size() == 1) return adopt_without(comm, "a single rank");
  auto served = std::make_shared<Served>();
  served->circle = std::move(circle);
  form_and_keep(comm, std::move(served), in_company);
}

void drop(ncclComm_t comm) { take(comm); }

void abort(ncclComm_t comm, const char* call) {
  const std::shared_ptr<Served> served = take(comm);
  if (served != nullptr && served->cuda != nullptr) served->cuda->abort(call);
}

void abort_group(ncclComm_t comm, const char* call) {
  if (find(comm) == nullptr) return;
  abort(comm, call);
  auto after = std::make_shared<Served>();
  after->reason = std::string("given up by ") + call;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  all.served[comm] = std::move(after);
}

}  // namespace tutti::nccl
