#include "communicator/cuda/code_requests.h"

#include <exception>
#include <new>
#include <utility>

#include "communicator/cuda/quiet_device.h"
#include "tutti/error.h"

namespace tutti::cuda {

CompileMode parse_compile_mode(const std::string& text) {
  if (text == "off") return CompileMode::kOff;
  if (text == "on") return CompileMode::kOn;
  if (text == "wait") return CompileMode::kWait;
  throw_error(ErrorKind::kInvalidArgument, "TUTTI_CUDA_COMPILE=" + text + ": it may be off, on or wait");
}

CodeRequests::CodeRequests(const Options& options)
    : mode_(options.mode),
      logger_(options.logger),
      compiler_(options.cache_folder, options.architecture, options.nvrtc) {}

const LoadedCode* CodeRequests::find(const std::shared_ptr<const executor::DevicePlan>& plan,
                                     const executor::EmitRequest& request, bool may_load) {
  if (!enabled()) return nullptr;
  const Key key{plan.get(), request.variant, request.dtype, request.op};
  auto found = items_.find(key);
  if (found == items_.end()) {
    if (!may_load || items_.size() >= kMostKernels) return nullptr;
    Item asked;
    asked.plan = plan;
    try {
      asked.code = compiler_.request([plan, request] {
        const executor::PlanSource source = executor::emit(*plan, request);
        return KernelText{source.text(), source.workers, source.cluster};
      });
    } catch (const Error& error) {  // no thread: a call does not fail for that, on this rank alone
      tell(asked, LogLevel::kWarning, "", error.what());
      return nullptr;
    }
    found = items_.emplace(key, std::move(asked)).first;
    count(1);
    if (mode_ == CompileMode::kWait) PlanCompiler::wait(*found->second.code);
  }
  Item& item = found->second;
  if (item.is_open() && item.code->state() == CompiledPlanCode::State::kFailed) give_up(item);
  return item.loaded.get();
}

void CodeRequests::count(int more) noexcept {
  open_ += more;
  QuietDevice::of_process().count(more);
}

void CodeRequests::tell(const Item& item, LogLevel level, const char* because, const char* why) const noexcept {
  try {
    logger_.log(level, "plan:" + item.plan->plan().name + " is interpreted" + because + ": " + why);
  } catch (const std::bad_alloc&) {
  }
}

void CodeRequests::give_up(Item& item) noexcept {
  item.given_up = true;
  count(-1);
  tell(item, LogLevel::kInfo, "", item.code->why().c_str());
}

void CodeRequests::load_ready(const Load& load) noexcept {
  if (open_ == 0) return;
  for (auto& [key, item] : items_) {
    if (!item.is_open()) continue;
    const CompiledPlanCode::State state = item.code->state();
    // Also of a size that is not called again: nobody looks for it any more.
    if (state == CompiledPlanCode::State::kFailed) give_up(item);
    if (state != CompiledPlanCode::State::kReady) continue;
    count(-1);
    try {
      item.loaded = load(*item.code, *item.plan);
    } catch (const std::exception& error) {
      item.given_up = true;
      tell(item, LogLevel::kWarning, ", because its code cannot be loaded", error.what());
    }
  }
}

void CodeRequests::drop_open() noexcept {
  if (open_ == 0) return;
  std::erase_if(items_, [](const auto& entry) { return entry.second.is_open(); });
  count(-open_);
}

void CodeRequests::end_compiling() noexcept {
  compiler_.end();
  drop_open();
}

void CodeRequests::clear() noexcept {
  items_.clear();
  count(-open_);
}

}  // namespace tutti::cuda
