// What crosses between the library and an algorithm in C++ that was compiled at run time: C structures, so that
// compiler and standard library of the two may differ. Authors use algorithm.h.
#pragma once

#include <cstdint>

extern "C" {

inline constexpr std::uint32_t kTuttiPluginVersion = 2;

// One call on one rank. Owned by the library, valid during `run`.
struct TuttiPluginCall {
  void* library;  // what the functions below want first
  const void* input;
  void* output;
  void* const* scratch;              // by rank: where it lies in this process
  const void* const* mapped_inputs;  // by rank; null unless the library knows all ranks' memory to be mapped
  void* const* mapped_outputs;
  const char* dtype;  // "f32", "bf16", "i64", ... as `tutti bench` names them
  const char* op;     // "sum", ...
  std::uint64_t input_bytes, output_bytes, block_bytes, scratch_bytes;
  std::uint64_t element_bytes;
  std::int32_t rank, size;
  std::int32_t root;  // -1 where the collective has none
  int (*signal)(void* library, std::int32_t peer);
  int (*wait)(void* library, std::int32_t peer);
  void (*fail)(void* library, const char* reason);
  void (*copy)(void* library, void* to, const void* from, std::uint64_t bytes);
  void (*reduce)(void* library, void* to, const void* const* from, std::int32_t sources, std::uint64_t elements);
  std::int64_t (*extra)(void* library, const char* name, std::int64_t otherwise);
  // Packets: words of which the upper half is a flag.
  std::uint32_t flag;  // of this call, the same on all ranks; never 0
  int (*await_packets)(void* library, std::int32_t peer, const std::uint64_t* words, std::uint64_t count);
  void (*ring)(void* library, std::int32_t peer);  // packets were stored for it
};

// What a plug-in has of one algorithm.
struct TuttiPluginAlgorithm {
  const char* function;
  const char* name;
  const char* collective;
  std::uint64_t scratch_bytes;
  std::uint64_t min_bytes, max_bytes;
  int (*run)(const TuttiPluginCall* call);
  const char* (*refusal)(const char* dtype, const char* op, std::uint64_t block_bytes, std::int32_t ranks);
  std::int32_t blocks, threads;  // of its kernel's launches; 0 blocks: it has no kernel
  const TuttiPluginAlgorithm* next;
};

}  // extern "C"
