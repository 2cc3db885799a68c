#include "algorithm/compiled/native_kernel.h"

#include <utility>

#include "algorithm/compiled/kernel_store.h"
#include "algorithm/compiled/nvrtc.h"
#include "base/bytes.h"
#include "base/collective_traits.h"

namespace tutti {
namespace {

// In the order of cuda::Reducer.
constexpr std::pair<const char*, const char*> kEntries[] = {{"tutti_native_sum_f32", "SumF32"},
                                                            {"tutti_native_sum_bf16", "SumBf16"},
                                                            {"tutti_native_sum_f16", "SumF16"},
                                                            {"tutti_native_any", "ReduceAny"}};

std::size_t entries_of(const KernelAlgorithm& kernel) { return reduces(kernel.collective) ? std::size(kEntries) : 1; }

// As a string literal of C++.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? '?' : c;
  }
  return out + "\"";
}

}  // namespace

std::vector<std::string> native_entries(const KernelAlgorithm& kernel) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < entries_of(kernel); ++i) names.emplace_back(kEntries[i].first);
  return names;
}

std::string native_text(const KernelAlgorithm& kernel) {
  std::string text = "#include \"algorithm/cuda/native_call.cuh\"\n#line 1 " + quoted(kernel.source->file) + "\n" +
                     kernel.source->text + "\n#line 1 \"entries of " + kernel.function + "\"\n";
  for (std::size_t i = 0; i < entries_of(kernel); ++i) {
    text += "extern \"C\" __global__ void __launch_bounds__(" + std::to_string(kernel.threads) +
            " + tutti::cuda::kControlThreads, 1)\n    " + kEntries[i].first +
            "(const __grid_constant__ tutti::cuda::DeviceWorld world,\n"
            "        const __grid_constant__ tutti::cuda::NativeArgs args) {\n"
            "  tutti::cuda::run_native_block<tutti::cuda::" +
            kEntries[i].second + ", tutti::kernels::" + kernel.function +
            ">(tutti::cuda::GridTeam{}, world, args);\n"
            "}\n";
  }
  return text;
}

std::string compile_native(const KernelAlgorithm& kernel, const std::string& architecture,
                           const std::string& cache_folder, const std::string& nvrtc) {
  const Nvrtc compiler = Nvrtc::load(nvrtc);
  const std::string text = native_text(kernel);
  ByteWriter all;  // each text framed: no two sources are alike here
  all.text(text).u32(static_cast<std::uint32_t>(kernel.source->headers.size()));
  for (const auto& [name, content] : kernel.source->headers) all.text(name).text(content);
  for (const std::string& option : kernel.source->options) all.text(option);
  const KernelStore store(cache_folder);
  const std::string key = KernelStore::key(all.str(), architecture, compiler.identity());
  if (std::optional<std::string> kept = store.find(key)) return *std::move(kept);
  std::string cubin = compiler.compile(text, architecture, kernel.source.get()).cubin;
  store.keep(key, cubin);
  return cubin;
}

}  // namespace tutti
