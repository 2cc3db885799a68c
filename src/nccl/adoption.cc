#include "nccl/adoption.h"

#include <algorithm>
#include <map>
#include <thread>

#include "base/registry.h"
#include "base/thread.h"
#include "nccl/communicators.h"
#include "nccl/error_codes.h"
#include "nccl/forming.h"
#include "nccl/pending.h"
#include "nccl/real_library.h"

namespace tutti::nccl {
namespace {

constexpr const char* kCompany = "several communicators are made on a GPU in one group of calls";

ncclComm_t comm_of(const Making& making) noexcept { return making.comm != nullptr ? *making.comm : nullptr; }

// Whether its ranks meet, now.
bool forms(const Making& making) noexcept { return making.without == nullptr && making.blocks; }

void adopt_one(const Making& making, const Given& given, const char* against) noexcept {
  quietly([&] {
    const ncclComm_t comm = comm_of(making);
    if (making.without != nullptr) {
      adopt_without(comm, making.without);
    } else if (making.parent != nullptr) {
      if (!making.blocks) against = "it was split and does not block";
      adopt_split(making.parent, making.color, making.key, comm, given, against);
    } else if (!making.blocks && !forked_child()) {  // which refuses, and the others need not wait for that
      adopt_later(comm, making.place, making.rank, making.size, against);
    } else {
      adopt(comm, making.place, making.rank, making.size, given, against);
    }
  });
}

// The GPU of each that forms now; -1: unknown.
std::vector<int> devices_of(const std::vector<Making>& making) {
  std::vector<int> devices(making.size(), -1);
  for (std::size_t i = 0; i < making.size(); ++i) {
    const ncclComm_t comm = forms(making[i]) ? comm_of(making[i]) : nullptr;
    if (comm != nullptr && TUTTI_NCCL_PASS(ncclCommCuDevice, (comm, &devices[i])) != ncclSuccess) devices[i] = -1;
  }
  return devices;
}

// Which of them cannot be formed beside each other: those of one GPU, and splits that ask the same connection.
std::vector<bool> in_company(const std::vector<Making>& making, const std::vector<int>& devices) {
  std::map<int, int> on_device;
  std::map<const void*, int> by_family;
  std::vector<const void*> families(making.size(), nullptr);
  for (std::size_t i = 0; i < making.size(); ++i) {
    const Making& each = making[i];
    if (!forms(each)) continue;
    if (devices[i] >= 0) ++on_device[devices[i]];
    const auto parent = each.parent != nullptr ? find(each.parent) : nullptr;
    if (parent != nullptr && parent->circle != nullptr) {
      families[i] = parent->circle->family();
      ++by_family[families[i]];
    }
  }
  std::vector<bool> company(making.size(), false);
  for (std::size_t i = 0; i < making.size(); ++i) {
    company[i] =
        (devices[i] >= 0 && on_device[devices[i]] > 1) || (families[i] != nullptr && by_family[families[i]] > 1);
  }
  return company;
}

// Those that do not block and are made beside another one. Of which GPU they are NCCL does not say before they are
// ready, and then it is too late to count them; only ranks of one communicator lie on GPUs of their own for certain.
std::vector<bool> in_company_later(const std::vector<Making>& making) {
  const auto counts = [](const Making& each) {
    return !each.blocks && each.without == nullptr && each.parent == nullptr && each.place && each.size > 1;
  };
  const Making* first = nullptr;
  bool several = false;
  for (const Making& each : making) {
    if (!counts(each)) continue;
    if (first == nullptr) first = &each;
    several = several || *each.place != *first->place;
  }
  std::vector<bool> company;
  for (const Making& each : making) company.push_back(several && counts(each));
  return company;
}

}  // namespace

void adopt_all(const std::vector<Making>& making) noexcept {
  quietly([&] {
    std::vector<Given> given;  // on this thread, before others wait for what it may hold
    for (const Making& each : making) given.push_back(forms(each) ? given_to(comm_of(each)) : Given{});
    if (making.size() == 1) return adopt_one(making.front(), given.front(), nullptr);
    const std::vector<int> devices = devices_of(making);
    const std::vector<bool> company = in_company(making, devices), later = in_company_later(making);
    const auto alone = [&](std::size_t i) { return company[i] || !forms(making[i]); };
    // Those that refuse come first: they wait for nobody, and others may wait for them.
    for (std::size_t i = 0; i < making.size(); ++i) {
      if (alone(i)) adopt_one(making[i], given[i], company[i] || later[i] ? kCompany : nullptr);
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < making.size(); ++i) {
      if (alone(i)) continue;
      try {
        threads.push_back(
            start_joined_thread("that forms a group", [&each = making[i], &its = given[i], device = devices[i]] {
              begin_thread(device);
              adopt_one(each, its, nullptr);
            }));
      } catch (const std::exception&) {
        adopt_one(making[i], given[i], "there was no thread to form its group");
      }
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace tutti::nccl
