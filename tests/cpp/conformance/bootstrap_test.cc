// The suite of seeds on those that there are: a store, an address and a secret, and a group that the ranks are in.
#include "conformance/bootstrap.h"

#include <algorithm>

#include "bootstrap/meeting_place.h"
#include "communicator/group_bootstrap.h"
#include "communicator/subgroup.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

constexpr std::chrono::seconds kSoon(30);

class AtAStore final : public SeededRank {
 public:
  AtAStore(Store& store, int rank, int size) : store_(&store, [](Store*) {}), rank_(rank), size_(size) {}

  BootstrapPtr bootstrap(const std::string& id) override { return store_bootstrap(store_, id, rank_, size_); }
  std::shared_ptr<Communicator> form(const CommunicatorOptions& options) override {
    return Communicator::create(*store_, "group", rank_, size_, options);
  }

 private:
  const std::shared_ptr<Store> store_;  // the carrier
  const int rank_, size_;
};

// Rank 0 makes the id, and the carrier brings it to the others.
class AtAnId final : public SeededRank {
 public:
  AtAnId(Store& carrier, int rank, int size) : rank_(rank), size_(size) {
    if (rank == 0) {
      id_ = make_group_id(Config{}, "localhost");
      carrier.set("id", std::string_view(id_.data(), id_.size()));
    } else {
      const std::string text = carrier.get("id", kSoon);
      std::ranges::copy(text, id_.begin());
    }
  }

  BootstrapPtr bootstrap(const std::string& id) override {
    return store_bootstrap(reach(*decode_meeting_place(id_), kSoon), id, rank_, size_);
  }
  std::shared_ptr<Communicator> form(const CommunicatorOptions& options) override {
    return join_group(id_, rank_, size_, options);
  }

 private:
  GroupId id_{};
  const int rank_, size_;
};

class InAGroup final : public SeededRank {
 public:
  InAGroup(Store& carrier, int rank, int size, const CommunicatorOptions& options)
      : group_(Communicator::create(carrier, "parent", rank, size, options)), bootstraps_(*group_) {}

  BootstrapPtr bootstrap(const std::string& id) override { return bootstraps_.among(all_ranks(group_->size()), id); }
  std::shared_ptr<Communicator> form(const CommunicatorOptions& options) override {
    return form_in(*group_, all_ranks(group_->size()), "group", [&] { return options; });
  }

 private:
  const std::shared_ptr<Communicator> group_;
  const GroupBootstraps bootstraps_;
};

template <class At>
std::unique_ptr<SeededRank> enter(Store& carrier, int rank, int size, const CommunicatorOptions& /*options*/) {
  return std::make_unique<At>(carrier, rank, size);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BootstrapConformance,
                         ::testing::Values(BootstrapSeed{"store", enter<AtAStore>}, BootstrapSeed{"id", enter<AtAnId>},
                                           BootstrapSeed{"group",
                                                         [](Store& carrier, int rank, int size, const auto& options) {
                                                           return std::make_unique<InAGroup>(carrier, rank, size,
                                                                                             options);
                                                         }}),
                         [](const auto& seed) { return seed.param.name; });

}  // namespace
}  // namespace tutti::test
