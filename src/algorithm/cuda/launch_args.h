// Turns a Call into the arguments of a kernel: for each collective, what goes from whom to whom.
#pragma once

#include <optional>
#include <vector>

#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/direct.cuh"
#include "algorithm/cuda/exchange_args.h"
#include "algorithm/cuda/messages.cuh"
#include "base/collective_traits.h"
#include "tutti/call.h"

namespace tutti::cuda {

// Uneven calls in which a rank does not know the sizes of all pairs: they run as messages.
bool runs_as_messages(const Call& call) noexcept;
// Bytes of the largest part of any pair (of an all-reduce: of its input), as every rank knows it.
std::size_t agreed_bytes(const Call& call, int size) noexcept;

ExchangeArgs make_exchange(const Call& call, int rank, int size, const Choice& choice, std::uint32_t fingerprint);
// The same as UniformArgs, where the call and this rank's memory allow it.
std::optional<UniformArgs> make_uniform(const Call& call, int size, const Choice& choice, std::uint32_t fingerprint);
TwoShotArgs make_two_shot(const Call& call, int size, const Choice& choice, std::uint32_t fingerprint);

// On memory that all ranks map: inputs[p] and outputs[p] are rank p's. Only this rank's own is looked at of the inputs
// of an all-gather and of the outputs of a reduce-scatter: the others may be null.
DirectArgs make_direct(const Call& call, int size, int blocks, std::byte* const* inputs, std::byte* const* outputs,
                       std::uint32_t fingerprint);

// One message of a batch, as the host gives it.
struct MessageRequest {
  bool send = true;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  std::uint32_t fingerprint = 0;
};
// A kernel's worth of up to kFewMessages: lanes by peer and direction, in order. `channels` is the same on all ranks.
FewMessages make_few_messages(const std::vector<MessageRequest>& requests, int channels);
// The same of any number: a batch of more than kManyMessages becomes several kernels.
std::vector<ManyMessages> make_many_messages(const std::vector<MessageRequest>& requests, int channels);
// The messages of an uneven all_to_all, gather or scatter, this rank's own part left out.
std::vector<MessageRequest> messages_of(const Call& call, int rank, int size, std::uint32_t fingerprint);

}  // namespace tutti::cuda
