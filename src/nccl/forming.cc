#include "nccl/forming.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "algorithm/user/given_algorithms.h"
#include "base/bytes.h"
#include "base/process.h"
#include "base/registry.h"
#include "bootstrap/agreed_settings.h"
#include "communicator/group_settings.h"
#include "nccl/real_library.h"
#include "nccl/settings.h"
#include "tutti/config.h"
#include "tutti/cuda/capture.h"
#include "tutti/error.h"

namespace tutti::nccl {
namespace {

// NCCL's own start has just brought the ranks together; then each makes its part of the group, which ends after
// form_time().
std::chrono::milliseconds arrive() { return settings().patience; }
std::chrono::milliseconds form_time() { return settings().patience * 3; }
// NCCL waits without end, and so do calls under its name. (A year: what is added to a clock must not overflow.)
constexpr std::chrono::hours kForever{24 * 365};

// What ranks compare.
struct Card {
  std::string host;
  AgreedSettings settings;

  static Card own(const AlgorithmSet& algorithms) {
    const Config config = config_from_environment();
    Card card;
    card.host = host_hint() + " " + config.host_id;
    card.settings = {version_setting(), text_setting("TUTTI_CUDA_ALGORITHM", config.cuda_algorithm),
                     text_setting("TUTTI_CUDA_TRANSPORT", config.cuda_transport),
                     given_setting(given_text(algorithms))};
    for (int c = 0; c < kCollectives; ++c) {
      const std::size_t limit = nccl::settings().max_bytes[static_cast<std::size_t>(c)];
      const std::string name = to_string(static_cast<Function>(c));
      card.settings.push_back(text_setting("TUTTI_NCCL_MAX_BYTES (or TUTTI_NCCL_LEAVE) of " + name,
                                           limit == kMeasured ? "" : std::to_string(limit)));
    }
    return card;
  }
  std::string text() const {
    ByteWriter out;
    write_settings(out.text(host), settings);
    return "=" + std::move(out).str();  // a refusal begins otherwise
  }
  static Card parse(std::string_view text) {
    ByteReader in(text.substr(std::min<std::size_t>(1, text.size())));
    Card card;
    card.host = in.text();
    card.settings = read_settings(in);
    if (!in.done()) card.settings.clear();
    return card;
  }
};

// What speaks against a group, or nothing.
std::string judge(const std::vector<std::string>& texts) {
  const Card first = Card::parse(texts[0]);
  std::vector<AgreedSettings> settings;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Card card = Card::parse(texts[r]);
    if (card.host != first.host) return "its ranks lie on several hosts";
    if (!same_names(card.settings, first.settings)) {
      return "ranks 0 and " + std::to_string(r) + " have different versions of Tutti";
    }
    settings.push_back(card.settings);
  }
  const std::string difference = difference_of(settings).required;
  return difference.empty() ? difference : "its ranks have different settings: " + difference;
}

}  // namespace

Given given_to(ncclComm_t comm) noexcept {
  Given given;
  try {
    int size = 0;
    if (comm == nullptr || TUTTI_NCCL_PASS(ncclCommCount, (comm, &size)) != ncclSuccess || size < 2) return given;
    given.algorithms = given_algorithms(size);
    // The others are for CPUs.
    std::erase_if(given.algorithms.algorithms,
                  [](const UserAlgorithmPtr& each) { return each->kind() != UserAlgorithm::Kind::kPlan; });
  } catch (const std::exception& e) {
    given.algorithms = {};
    given.problem = std::string("the program's algorithms: ") + e.what();
  }
  return given;
}

std::string refusal_of(ncclComm_t comm, int rank, int size, int& device) noexcept try {
  if (!settings().problem.empty()) return settings().problem;
  if (std::string problem = peer_access_problem(); !problem.empty()) return problem;
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
  CudaCommunicator::load();  // here: at exit, threads of ours end before what it leaves for that moment
  return {};
} catch (const std::exception& e) {
  return e.what();
}

void begin_thread(int device) noexcept {
  try {
    cuda_begin_thread(device);
  } catch (const std::exception&) {
    // Without the plug-in nothing is formed.
  }
}

void form(Served& served, const std::string& refusal, int device, AlgorithmSet algorithms,
          const std::atomic<bool>& given_up) {
  Circle& circle = *served.circle;
  std::string card;
  try {
    card = refusal.empty() ? Card::own(algorithms).text() : "!" + refusal;
  } catch (const std::exception& e) {
    card = std::string("!") + e.what();
  }
  const Verdict can = circle.agree("can", card, arrive(), &judge, /*moving=*/true);
  circle.leave();
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
    options.settings().secret = circle.secret();
    options.settings().plan_path = settings().plan_path;
    made = CudaCommunicator::create(circle.store(), can.name, circle.rank(), circle.size(), options);
    // The cards were equal, so all ranks do, or none.
    if (!algorithms.empty()) made->set_algorithms(algorithms);
    // Through host memory NCCL is the faster one.
    if (made->transport().rfind("peer memory", 0) != 0) card = "!its GPUs are joined by " + made->transport();
    // acquire: as the one that gives it up; nothing else is read by it.
    if (given_up.load(std::memory_order_acquire)) card = "!a rank has given it up";
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
  served.common.plans = !algorithms.empty() || !settings().plan_path.empty();
  served.common.max_bytes = settings().max_bytes;
  served.cuda = std::move(made);
}

}  // namespace tutti::nccl
