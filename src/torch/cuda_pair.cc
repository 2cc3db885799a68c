#include "torch/cuda_pair.h"

#include <Python.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "communicator/device_entry.h"
#include "tutti/cuda_capture.h"

namespace tutti::face {
namespace {

// A call may have to drop tensors of Python's, or run its callbacks, before the thread ends.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace

CudaPair::CudaPair(Plan plan, c10::Stream stream)
    : plan_(std::move(plan)), stream_(stream), timeout_(plan_.options.timeout) {
  calls_ = std::make_unique<DeferredCalls>([this] { make(); });
}

CudaPair::~CudaPair() {
  give_up("the group was destroyed");
  const WithoutGil without_gil;
  calls_.reset();
}

void CudaPair::refuse_capture(c10::Device device, int peer) {
  const c10::Stream current = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device);
  if (!cuda_is_capturing(device.index(), current.native_handle())) return;
  throw_error(ErrorKind::kInvalidArgument,
              "the first message to or from rank " + std::to_string(peer) +
                  " cannot be captured: both ranks make a communicator for it; send one message in this direction, and "
                  "wait for it, before the capture");
}

void CudaPair::throw_if_given_up() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (given_up_.has_value()) throw Error(ErrorKind::kAborted, *given_up_);
}

// On the maker's thread.
void CudaPair::make() {
  try {
    // For as long as this thread lives. PyTorch returns to a thread's own device once it has destroyed an event; on the
    // first GPU, a new thread's own, that would make a context, which takes half a gigabyte.
    c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(stream_.device());
    throw_if_given_up();
    cuda_relax_capture_in_thread();
    auto made = make_communicator(
        "cuda", plan_.bootstraps.among({plan_.from, plan_.to}, plan_.id, [this] { throw_if_given_up(); }),
        plan_.options);
    const std::lock_guard<std::mutex> lock(mutex_);
    made->set_timeout(timeout_);
    if (aborted_) made->abort(*given_up_);
    communicator_ = made;
    lane_.emplace(CudaLane{std::move(made), stream_});
  } catch (const Error& error) {
    throw Error(error.kind(), "the first message from rank " + std::to_string(plan_.from) + " to rank " +
                                  std::to_string(plan_.to) + " (ranks 0 and 1 of group '" + plan_.options.name +
                                  "') was not sent: " + error.what());
  }
}

std::shared_ptr<CudaCommunicator> CudaPair::communicator() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return communicator_;
}

void CudaPair::abort(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  if (!given_up_.has_value()) given_up_ = "aborted: " + reason;
  if (communicator_ != nullptr) communicator_->abort(reason);
}

void CudaPair::give_up(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!given_up_.has_value()) given_up_ = reason;
}

void CudaPair::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
  if (communicator_ != nullptr) communicator_->set_timeout(timeout);
}

}  // namespace tutti::face
