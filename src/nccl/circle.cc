#include "nccl/circle.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <tuple>

#include "base/secret.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/prefix_store.h"
#include "bootstrap/watched_store.h"
#include "nccl/background.h"
#include "nccl/settings.h"
#include "tutti/error.h"

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

// NCCL's own work has just brought the ranks together, so whoever comes at all comes now.
milliseconds arrive() { return settings().patience; }
milliseconds connect() { return settings().patience / 2; }
// A rank in doubt waits longer than the one that decides.
milliseconds decide() { return settings().patience * 3 / 2; }
// The longest that a rank asks for a verdict.
milliseconds agree_time() { return 2 * arrive() + decide(); }

constexpr std::size_t kNameBytes = 16;

// A place that rank 0 offers for the ranks to move to. It ends with this unless it is kept.
class NextPlace {
 public:
  // All ranks are on this host, and in one network namespace.
  NextPlace() : place_(offer_meeting_place("127.0.0.1")) {}
  ~NextPlace() {
    if (!kept_) take_offer(place_);
  }
  NextPlace(const NextPlace&) = delete;
  NextPlace& operator=(const NextPlace&) = delete;
  const MeetingPlace& place() const noexcept { return place_; }
  void keep() noexcept { kept_ = true; }

 private:
  const MeetingPlace place_;
  bool kept_ = false;
};

// What rank 0 says: '+', a name, and the place to move to if there is one; '!' and what a rank has against it; '?' and
// who did not answer.
std::string yes(const std::optional<NextPlace>& next) {
  std::string word = "+" + random_secret().substr(0, kNameBytes);
  if (!next) return word;
  const MeetingPlaceBytes bytes = encode(next->place());
  return word.append(bytes.data(), bytes.size());
}

Verdict verdict_of(const std::string& word) {
  if (word.empty() || word.front() != '+') return {false, word.empty() ? word : word.substr(1), {}, {}};
  Verdict verdict{true, {}, word.substr(1, kNameBytes), {}};
  MeetingPlaceBytes bytes{};
  if (word.size() != 1 + kNameBytes + bytes.size()) return verdict;
  std::copy(word.end() - static_cast<std::ptrdiff_t>(bytes.size()), word.end(), bytes.begin());
  verdict.place = decode_meeting_place(bytes);
  return verdict;
}

}  // namespace

// What a communicator and those split from it share.
struct Circle::Family {
  std::shared_ptr<TcpStoreServer> server;  // in the process that serves it
  std::string secret;
  std::shared_ptr<Store> store;  // one connection: one thread at a time
  std::recursive_mutex mutex;
};

void offer_place(ncclUniqueId& id) {
  // Then every rank may make the same id for itself, each with a meeting place of its own.
  if (!nccl_setting("NCCL_COMM_ID").empty()) return;
  const std::string address = free_address(id);
  if (!address.empty()) write_place(id, offer_meeting_place(address));
}

void withdraw_place(const ncclUniqueId& id) {
  if (const auto place = read_place(id)) take_offer(*place);
}

std::shared_ptr<Circle::Family> Circle::meet(const MeetingPlace& place) {
  auto family = std::make_shared<Family>();
  family->secret = hexadecimal(place.secret);
  family->server = take_offer(place);
  const std::shared_ptr<Store> connection = reach(place, connect());
  // Its look holds the connection: a group may keep the store for longer than the family.
  family->store = std::make_shared<WatchedStore>(*connection, [connection] {
    if (process_ends()) throw_error(ErrorKind::kAborted, "the process ends");
  });
  return family;
}

Circle::Circle(const MeetingPlace& place, int rank, int size) : Circle(meet(place), "all", rank, size) {}

void Circle::move_to(const MeetingPlace& place) {
  complete_ = false;
  family_ = meet(place);
  path_ = "all";
  store_ = std::make_shared<PrefixStore>(path_, family_->store);
  complete_ = true;
}

Circle::Circle(std::shared_ptr<Family> family, const std::string& path, int rank, int size)
    : family_(std::move(family)),
      path_(path),
      store_(std::make_shared<PrefixStore>(path_, family_->store)),
      rank_(rank),
      size_(size) {}

Circle::~Circle() { leave(); }

const std::string& Circle::secret() const noexcept { return family_->secret; }

std::shared_ptr<Store> Circle::store() const { return store_; }

// The word that counts: this one, unless another rank was first.
std::string Circle::settle(const std::string& topic, std::string word) {
  if (store_->add(topic + "/settled", 1) != 1) return store_->get(topic + "/verdict", decide());
  store_->set(topic + "/verdict", word);
  return word;
}

Verdict Circle::agree(const std::string& topic, const std::string& card, milliseconds patience,
                      std::string (*judge)(const std::vector<std::string>& cards), bool moving) {
  const std::lock_guard lock(family_->mutex);
  const auto refused = [](std::string reason) { return Verdict{false, std::move(reason), {}, {}}; };
  const bool refusing = !card.empty() && card.front() == '!';
  try {
    store_->set(topic + "/card/" + std::to_string(rank_), card);
    if (rank_ != 0) {
      if (refusing) {
        store_->set(topic + "/read/" + std::to_string(rank_), "");
        return refused(card.substr(1));
      }
      std::string word;
      try {
        word = store_->get(topic + "/verdict", 2 * patience + decide());
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::kTimeout && e.kind() != ErrorKind::kAborted) throw;
        const std::string why = e.kind() == ErrorKind::kTimeout ? " has waited too long for rank 0" : " ends";
        word = settle(topic, "?rank " + std::to_string(rank_) + why);
      }
      if (word.empty() || word.front() == '?') {
        complete_ = false;
      } else {
        part(topic);
      }
      return verdict_of(word);
    }
    std::string word;
    std::optional<NextPlace> next;
    if (refusing) {
      // At once: the others may be this thread's, too.
      complete_ = false;
      word = "?" + card.substr(1);
    }
    try {
      std::vector<std::string> keys;
      for (int r = 0; word.empty() && r < size_; ++r) keys.push_back(topic + "/card/" + std::to_string(r));
      const std::vector<std::string> cards = store_->multi_get(keys, patience);
      for (std::size_t r = 0; word.empty() && r < cards.size(); ++r) {
        const std::string& each = cards[r];
        if (!each.empty() && each.front() == '!') word = "!" + each.substr(1);
      }
      if (word.empty() && judge != nullptr) {
        const std::string against = judge(cards);
        if (!against.empty()) word = "!" + against;
      }
      if (word.empty()) {
        if (moving) next.emplace();
        word = yes(next);
      }
    } catch (const Error& e) {
      complete_ = false;
      word = std::string(e.kind() == ErrorKind::kTimeout ? "?a rank did not answer: " : "?") + e.what();
    }
    word = settle(topic, std::move(word));
    if (word.empty() || word.front() == '?') {
      complete_ = false;
    } else {
      part(topic);
    }
    Verdict verdict = verdict_of(word);
    if (next && verdict.place == next->place()) next->keep();
    return verdict;
  } catch (const Error& e) {
    complete_ = false;
    return refused(std::string("the ranks did not agree: ") + e.what());
  }
}

// No rank goes on, and perhaps ends with the server, before all have read the verdict. What fails here changes nothing
// any more: every rank that is here knows it.
void Circle::part(const std::string& topic) {
  try {
    store_->set(topic + "/read/" + std::to_string(rank_), "");
    if (rank_ == 0) {
      std::vector<std::string> keys;
      for (int r = 0; r < size_; ++r) keys.push_back(topic + "/read/" + std::to_string(r));
      store_->multi_get(keys, arrive());
      store_->set(topic + "/all read", "");
    } else {
      store_->get(topic + "/all read", arrive());
    }
  } catch (const Error&) {
    complete_ = false;
  }
}

std::unique_ptr<Circle> Circle::split(int color, int key, bool refuse) {
  const std::lock_guard lock(family_->mutex);
  leaving_.clear();
  const std::string topic = "split/" + std::to_string(splits_++);
  try {
    refuse = refuse || !complete_;
    store_->set(topic + "/" + std::to_string(rank_), refuse ? "!" : std::to_string(color) + "," + std::to_string(key));
    if (refuse) return nullptr;
    std::vector<std::string> keys;
    for (int r = 0; r < size_; ++r) keys.push_back(topic + "/" + std::to_string(r));
    const std::vector<std::string> answers = store_->multi_get(keys, arrive());
    const auto left = [&](int r) { return topic + "/left/" + std::to_string(r); };
    std::vector<std::string> leaving;
    std::vector<std::tuple<int, int>> group;  // key and rank of those with this rank's colour
    for (int r = 0; r < size_; ++r) {
      const std::string& answer = answers[static_cast<std::size_t>(r)];
      if (answer == "!") return nullptr;
      int its_color = 0, its_key = 0;
      const char* const end = answer.data() + answer.size();
      const auto first = std::from_chars(answer.data(), end, its_color);
      if (first.ptr == end || std::from_chars(first.ptr + 1, end, its_key).ptr != end) return nullptr;
      if (its_color == color) group.emplace_back(its_key, r);
      if (its_color >= 0 && r != rank_) leaving.push_back(left(r));
    }
    leaving_ = std::move(leaving);
    if (color < 0) return nullptr;
    std::sort(group.begin(), group.end());
    const auto own = std::find(group.begin(), group.end(), std::tuple(key, rank_));
    std::unique_ptr<Circle> part(new Circle(family_, path_ + "/" + topic + "/" + std::to_string(color),
                                            static_cast<int>(own - group.begin()), static_cast<int>(group.size())));
    part->parents_ = store_;
    part->left_ = left(rank_);
    return part;
  } catch (const Error&) {
    complete_ = false;
    return nullptr;
  }
}

void Circle::leave() noexcept {
  const std::lock_guard lock(family_->mutex);
  const std::shared_ptr<Store> parents = std::move(parents_);
  if (parents == nullptr) return;
  try {
    parents->set(left_, "");
  } catch (const std::exception&) {
    // Then it is waited for as long as a rank that does not answer.
  }
}

void Circle::await_leaving() noexcept {
  const std::lock_guard lock(family_->mutex);
  if (family_->server == nullptr) return;
  try {
    store_->multi_get(leaving_, agree_time());
  } catch (const std::exception&) {
    // A rank that does not leave has ended, or leaves its part to NCCL.
  }
}

}  // namespace tutti::nccl
