// How the ranks of a communicator form a group of Tutti's: two agreements, that all ranks can and that all ranks have.
//
// Thread rule: one thread a communicator.
#pragma once

#include <atomic>
#include <string>

#include "nccl/communicators.h"

namespace tutti::nccl {

// Why this rank cannot be part of a group, or nothing; then `device` is its own. Cheap, and nobody is waited for:
// nothing is made yet. `comm` is one that NCCL has made.
std::string refusal_of(ncclComm_t comm, int rank, int size, int& device) noexcept;

// First in a thread that form() is called on and that is not the program's: others of the program may be capturing.
void relax_captures() noexcept;

// Over the circle of `served`, with all its ranks: gives it a group, or the reason why there is none. A rank with a
// refusal says so to the others; one that finds `given_up` set, before the second agreement, too.
void form(Served& served, const std::string& refusal, int device, const std::atomic<bool>& given_up);

}  // namespace tutti::nccl
