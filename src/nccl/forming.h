// How the ranks of a communicator form a group of Tutti's: two agreements, that all ranks can and that all ranks have.
//
// Thread rule: one thread a communicator.
#pragma once

#include <atomic>
#include <string>

#include "nccl/communicators.h"
#include "tutti/user_algorithm.h"

namespace tutti::nccl {

// What the program has given to the groups that it forms, or why that is not known.
struct Given {
  AlgorithmSet algorithms;
  std::string problem;
};

// For a group beside `comm`, which NCCL has made. On a thread of the program's only: its interpreter may be asked, and
// the thread that holds that may wait for this one.
Given given_to(ncclComm_t comm) noexcept;

// Why this rank cannot be part of a group, or nothing; then `device` is its own. Cheap, and nobody is waited for:
// nothing is made yet. `comm` is one that NCCL has made.
std::string refusal_of(ncclComm_t comm, int rank, int size, int& device) noexcept;

// First in a thread that form() is called on for this device and that is not the program's: others of the program may
// be capturing.
void begin_thread(int device) noexcept;

// Over the circle of `served`, with all its ranks: gives it a group, or the reason why there is none. A rank with a
// refusal says so to the others; one that finds `given_up` set, before the second agreement, too.
void form(Served& served, const std::string& refusal, int device, AlgorithmSet algorithms,
          const std::atomic<bool>& given_up);

}  // namespace tutti::nccl
