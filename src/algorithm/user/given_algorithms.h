// What a program gives to all groups that it forms from now on, for faces that form groups without being asked for
// them by name: the library under NCCL's name. Python's AlgorithmCollectionBuilder() gives here.
//
// Ownership: of the process, never destroyed: groups may form during static destruction. Thread rule: any thread; the
// giver is called on the thread that asks, with no lock held, and may take locks of its program's.
#pragma once

#include <functional>

#include "tutti/user_algorithm.h"

namespace tutti {

// For a group of so many ranks. May throw.
using AlgorithmGiver = std::function<AlgorithmSet(int ranks)>;

// In place of the one before; null: nothing is given any more.
void give_algorithms(AlgorithmGiver giver);

// What the giver answers, or throws; nothing without one.
AlgorithmSet given_algorithms(int ranks);

}  // namespace tutti
