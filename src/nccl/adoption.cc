#include "nccl/adoption.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>

#include "nccl/communicators.h"
#include "nccl/error_codes.h"
#include "nccl/real_library.h"

namespace tutti::nccl {
namespace {

void adopt_one(const Making& making, bool in_company) noexcept {
  static_cast<void>(guarded([&] {
    const ncclComm_t comm = making.comm != nullptr ? *making.comm : nullptr;
    if (making.without != nullptr) {
      adopt_without(comm, making.without);
    } else if (making.parent != nullptr) {
      adopt_split(making.parent, making.color, making.key, comm, in_company);
    } else {
      adopt(comm, making.place, making.rank, making.size, in_company);
    }
  }));
}

// Which of them cannot be formed beside each other: those of one GPU, and splits that ask the same connection.
std::vector<bool> in_company(const std::vector<Making>& making) {
  std::map<int, int> on_device;
  std::map<const void*, int> by_family;
  std::vector<int> devices(making.size(), -1);
  std::vector<const void*> families(making.size(), nullptr);
  for (std::size_t i = 0; i < making.size(); ++i) {
    const Making& each = making[i];
    if (each.without != nullptr) continue;
    const ncclComm_t comm = each.comm != nullptr ? *each.comm : nullptr;
    int device = -1;
    if (comm != nullptr && TUTTI_NCCL_PASS(ncclCommCuDevice, (comm, &device)) == ncclSuccess) {
      devices[i] = device;
      ++on_device[device];
    }
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

}  // namespace

void adopt_all(const std::vector<Making>& making) noexcept {
  static_cast<void>(guarded([&] {
    if (making.size() == 1) return adopt_one(making.front(), /*in_company=*/false);
    const std::vector<bool> company = in_company(making);
    // Those that refuse come first: they wait for nobody, and others may wait for them.
    for (std::size_t i = 0; i < making.size(); ++i) {
      if (company[i] || making[i].without != nullptr) adopt_one(making[i], company[i]);
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < making.size(); ++i) {
      if (company[i] || making[i].without != nullptr) continue;
      try {
        threads.emplace_back([&each = making[i]] { adopt_one(each, /*in_company=*/false); });
      } catch (const std::exception&) {
        adopt_one(making[i], /*in_company=*/true);  // there is no thread: its rank refuses
      }
    }
    for (std::thread& thread : threads) thread.join();
  }));
}

}  // namespace tutti::nccl
