// SharedMemory in host memory: a memfd, mapped and registered with CUDA.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/mapping.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/leftovers.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/shared_memory.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

class HostMemory final : public SharedMemory {
 public:
  HostMemory(UniqueFd fd, std::size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
    check_cuda(cudaGetDevice(&index_), "cudaGetDevice");
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (p == MAP_FAILED) throw_system_error(ErrorKind::kExhausted, "mmap", errno);
    host_ = p;
    try {
      check_cuda(cudaHostRegister(p, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
      registered_ = true;
      check_cuda(cudaHostGetDevicePointer(&device_, host_, 0), "cudaHostGetDevicePointer");
    } catch (...) {
      release();
      throw;
    }
  }
  ~HostMemory() override { release(); }
  std::byte* data() const noexcept override { return static_cast<std::byte*>(device_); }
  std::size_t bytes() const noexcept override { return bytes_; }
  std::byte* host() const noexcept override { return static_cast<std::byte*>(host_); }
  UniqueFd export_fd() const override { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }
  void allow(int /*device*/) override {}  // portable: every device of the process sees it

 private:
  void release() noexcept {
    if (!registered_) {
      ::munmap(host_, bytes_);
      return;
    }
    leave(Leftover::kOwn, bytes_, [index = index_, host = host_, bytes = bytes_] {
      give_back_on(index, [host] { static_cast<void>(cudaHostUnregister(host)); });
      ::munmap(host, bytes);
    });
  }

  UniqueFd fd_;
  std::size_t bytes_;
  int index_ = 0;  // of the device that is current
  void* host_ = nullptr;
  bool registered_ = false;
  void* device_ = nullptr;
};

}  // namespace

std::shared_ptr<SharedMemory> make_host_memory(std::size_t bytes) {
  return std::make_shared<HostMemory>(create_memfd("tutti-cuda", bytes), bytes);
}

std::shared_ptr<SharedMemory> open_host_memory(int fd, std::size_t bytes) {
  if (!keeps_bytes(fd, bytes)) {
    throw_error(ErrorKind::kInternal,
                "host memory that another rank offers could shrink, or is smaller than it says; install one version of "
                "Tutti everywhere, or report it with the output of 'tutti doctor'");
  }
  return std::make_shared<HostMemory>(UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), bytes);
}

}  // namespace tutti::cuda
