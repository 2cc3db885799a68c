// Ranks as threads of the test's process, over an in-memory store: the whole library but for process boundaries.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "tutti/communicator.h"

namespace tutti::test {

struct World {
  int size = 2;
  std::chrono::milliseconds timeout{20'000};
  // The timeout of a rank, where it is not that of all.
  std::function<std::chrono::milliseconds(int)> timeout_of;
  // Host of a rank; all on one when empty.
  std::function<std::string(int)> host_of;
  std::string algorithm;
  // The settings of a rank, before what follows; the defaults when empty.
  std::function<Config(int)> config_of;
  // TUTTI_PLAN_PATH of a rank; none when empty.
  std::function<std::string(int)> plan_path_of;
  // Where what each rank has thrown is put, as many as ranks; then the test does not fail with it.
  std::vector<std::string>* errors = nullptr;
  // TUTTI_TUNING_PATH of a rank; no table when empty.
  std::function<std::string(int)> tuning_path_of;
  std::string log_level = "error";
};

// Runs `body` on every rank, each with its communicator; fails the test with what a rank has thrown.
inline void run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<std::size_t>(world.size));
  for (int r = 0; r < world.size; ++r) {
    threads.emplace_back([&, r] {
      try {
        CommunicatorOptions options;
        options.timeout = world.timeout_of ? world.timeout_of(r) : world.timeout;
        if (world.config_of) options.config = world.config_of(r);
        if (!world.algorithm.empty()) options.config.algorithm = world.algorithm;
        options.config.log_level = world.log_level;
        if (world.plan_path_of) options.config.plan_path = world.plan_path_of(r);
        if (world.tuning_path_of) options.config.tuning_path = world.tuning_path_of(r);
        if (world.host_of) options.config.host_id = world.host_of(r);
        const auto comm = Communicator::create(store, "test", r, world.size, options);
        body(*comm);
        EXPECT_EQ(comm->metrics().rescued_waits, 0U) << "on rank " << r;
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (world.errors != nullptr) {
    *world.errors = errors;
    return;
  }
  for (int r = 0; r < world.size; ++r) {
    EXPECT_EQ(errors[static_cast<std::size_t>(r)], "") << "on rank " << r;
  }
}

// What a call throws, or an Error of kind kInternal without text if it throws nothing.
inline Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorKind::kInternal, "");
}

}  // namespace tutti::test
