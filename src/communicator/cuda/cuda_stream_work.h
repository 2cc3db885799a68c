// StreamWork (communicator/nccl/stream_work.h) by CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "communicator/cuda/own_stream.h"
#include "communicator/nccl/stream_work.h"

namespace tutti::cuda {

class CudaStreamWork final : public StreamWork {
 public:
  explicit CudaStreamWork(int device);

  int device() const noexcept override { return device_; }
  bool reduces_fp8() const noexcept override { return major_ >= 9; }
  bool is_capturing(DeviceStream stream) const override;
  Mark mark(DeviceStream stream) override;
  void follow(const Mark& mark, DeviceStream stream) override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, DeviceStream stream) override;
  std::shared_ptr<std::byte> memory(std::size_t bytes, DeviceStream stream) override;
  bool reached(const Mark& mark) noexcept override;
  DeviceStream own_stream() override { return own_stream_.get(); }
  void wait(DeviceStream stream) override;
  void run(const std::function<void()>& work) override;

 private:
  // Events that are free, for later marks: shared with the marks, which may outlive this object.
  struct Events {
    explicit Events(int of_device) : device(of_device) {}
    ~Events();
    const int device;
    std::mutex mutex;  // guards `free`; a leaf
    std::vector<cudaEvent_t> free;
  };

  const int device_;
  int major_ = 0;  // of its compute capability
  const std::shared_ptr<Events> events_;
  OwnStream own_stream_;
};

}  // namespace tutti::cuda
