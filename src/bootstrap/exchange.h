// Exchange of small blobs among all ranks of a forming communicator, through its store.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.h"
#include "tutti/store.h"

namespace tutti {

// What all ranks find once they have what it follows from, or are told: nobody's own reason, and said as it is.
class KnownToAll : public Error {
 public:
  using Error::Error;
};

// Not told again: whoever has told it has told all.
class Told : public KnownToAll {
 public:
  using KnownToAll::KnownToAll;
};

// What all ranks exchange while a group forms; kCudaTopic, the first of a group on GPUs.
inline constexpr std::string_view kHostTopic = "host", kNetworkTopic = "networks", kCudaTopic = "cuda-settings";

// Keys of one communicator. Parts are joined with a delimiter and their lengths, so that no two different lists of
// parts give the same key ("a1","2" and "a","12" cannot meet).
std::string store_key(std::string_view id, std::string_view topic, std::string_view detail = {});

// Where a rank's blob of an exchange lies: a rank that cannot go on may put there why, for the others to find.
std::string exchange_key(std::string_view id, std::string_view topic, int rank);

// "rank 3", "ranks 1, 2 and 5": for messages.
std::string name_ranks(const std::vector<int>& ranks);

// Up to so many ranks each reads what every other has given: one round trip. Of more ranks rank 0 does, and passes all
// on in one value: one round trip more, but 2n keys are read where n of n ranks would be n^2.
inline constexpr int kMostDirect = 16;

// Where a rank that fails while the group `id` forms says why, for those that await something of another rank: whoever
// waits looks there twice a second.
std::string failure_key(std::string_view id);

// Throws what another rank has said there; `rank` is this one.
void throw_if_told(Store& store, std::string_view id, int rank);

// The keys under which others may await something of this rank while the group `id` forms.
std::vector<std::string> awaited_keys(std::string_view id, int rank);

// Every rank gives a blob and gets all of them, in rank order. Throws Error(kTimeout) naming the ranks that gave none,
// and Error(kPeerLost) with the reason of a rank that cannot join, within a second. `watch`, if there is one, is called
// twice a second while this rank waits, which ends by what it throws.
std::vector<std::string> exchange(Store& store, std::string_view id, std::string_view topic, int rank, int size,
                                  std::string_view blob, std::chrono::milliseconds timeout,
                                  const std::function<void()>& watch = {});

// Gives a rank's blob in place of exchange(), where what is in it ends the group: the rank need not wait for the
// others'. They get it, and of the rest what there is (else empty blobs).
void give(Store& store, std::string_view id, std::string_view topic, int rank, int size, std::string_view blob);

// Tells the others that this rank has failed while the group `id` forms, whatever it was: what they await of it is
// given as the reason, and those that await something of other ranks find it where they look. What is KnownToAll is
// only put there. Never throws: the error at hand is the better one.
void tell_failure(Store& store, std::string_view id, int rank, const std::exception& error) noexcept;

// Gives `reason` in place of all that the others may still await of `rank` in exchanges, and where whoever waits looks.
// Never throws.
void give_reason(Store& store, std::string_view id, int rank, std::string_view reason) noexcept;

// Whether this rank has told of a failure under the same id in this store. What it and others gave then is there still,
// and may be taken for what they give now. Never throws.
bool failed_before(Store& store, std::string_view id, int rank) noexcept;

// Throws `error`, as what it is, with the advice to take another name.
[[noreturn]] void throw_failed_again(const Error& error);

// `join()`; what it throws is told to the others by `teller`, which has failed_before() and tell() as above.
template <class Teller, class Join>
auto telling(Teller& teller, const Join& join) {
  try {
    return join();
  } catch (const Error& error) {
    const bool before = teller.failed_before();
    teller.tell(error);
    if (!before) throw;
    throw_failed_again(error);
  } catch (const std::exception& error) {
    teller.tell(error);
    throw;
  }
}
template <class Join>
auto telling(Store& store, std::string_view id, int rank, const Join& join) {
  struct {
    Store& store;
    std::string_view id;
    int rank;
    bool failed_before() noexcept { return tutti::failed_before(store, id, rank); }
    void tell(const std::exception& error) noexcept { tell_failure(store, id, rank, error); }
  } teller{store, id, rank};
  return telling(teller, join);
}

}  // namespace tutti
