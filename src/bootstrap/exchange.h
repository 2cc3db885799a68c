// Exchange of small blobs among all ranks of a forming communicator, through its store.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/store.h"

namespace tutti {

// Keys of one communicator. Parts are joined with a delimiter and their lengths, so that no two different lists of
// parts give the same key ("a1","2" and "a","12" cannot meet).
std::string store_key(std::string_view id, std::string_view topic, std::string_view detail = {});

// Where a rank's blob of an exchange lies: a rank that cannot go on may put there why, for the others to find.
std::string exchange_key(std::string_view id, std::string_view topic, int rank);

// "rank 3", "ranks 1, 2 and 5": for messages.
std::string name_ranks(const std::vector<int>& ranks);

// Every rank gives a blob and gets all of them, in rank order. Throws Error(kTimeout) naming the ranks that gave none.
std::vector<std::string> exchange(Store& store, std::string_view id, std::string_view topic, int rank, int size,
                                  std::string_view blob, std::chrono::milliseconds timeout);

}  // namespace tutti
