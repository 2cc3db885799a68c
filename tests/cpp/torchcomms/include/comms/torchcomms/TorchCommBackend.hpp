// A stand-in for the interface of TorchComms: what src/torchcomms overrides and calls, and nothing else. So the backend
// is compiled and run where torchcomms is not installed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <comms/torchcomms/TorchWork.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

namespace torch::comms {

inline constexpr const char* TORCHCOMM_BACKEND_ABI_VERSION = "stand-in";

using Milliseconds = std::chrono::milliseconds;
using Hints = std::unordered_map<std::string, std::string>;
using InitHandle = std::string;
using AbortHook = std::function<void()>;

class ReduceOp {
 public:
  enum class RedOpType { SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM, AVG };
  using Factor = std::variant<at::Tensor, double>;

  ReduceOp(RedOpType type) : type_(type) {}
  static ReduceOp premul_sum(Factor factor) {
    ReduceOp op(RedOpType::PREMUL_SUM);
    op.factor_ = std::move(factor);
    return op;
  }
  RedOpType type() const { return type_; }
  const std::optional<Factor>& factor() const { return factor_; }

 private:
  RedOpType type_;
  std::optional<Factor> factor_;
};

// One kind for all operations: the backend tells them apart by their overrides.
struct Options {
  Hints hints;
  Milliseconds timeout{0};
  int tag = 0;
};
#define STAND_IN_OPTIONS(name) \
  struct name : Options {}
STAND_IN_OPTIONS(SendOptions);
STAND_IN_OPTIONS(RecvOptions);
STAND_IN_OPTIONS(BatchP2POptions);
STAND_IN_OPTIONS(BroadcastOptions);
STAND_IN_OPTIONS(AllReduceOptions);
STAND_IN_OPTIONS(ReduceOptions);
STAND_IN_OPTIONS(AllGatherOptions);
STAND_IN_OPTIONS(AllGatherSingleOptions);
STAND_IN_OPTIONS(ReduceScatterOptions);
STAND_IN_OPTIONS(ReduceScatterSingleOptions);
STAND_IN_OPTIONS(AllToAllOptions);
STAND_IN_OPTIONS(AllToAllSingleOptions);
STAND_IN_OPTIONS(AllToAllvSingleOptions);
STAND_IN_OPTIONS(BarrierOptions);
STAND_IN_OPTIONS(ScatterOptions);
STAND_IN_OPTIONS(GatherOptions);
STAND_IN_OPTIONS(GatherSingleOptions);
STAND_IN_OPTIONS(AllGatherPInitOptions);
STAND_IN_OPTIONS(AllGatherPExecOptions);
STAND_IN_OPTIONS(PutOptions);
STAND_IN_OPTIONS(SignalOptions);
STAND_IN_OPTIONS(WaitSignalOptions);
#undef STAND_IN_OPTIONS

struct CommOptions {
  Milliseconds timeout{60'000};
  c10::intrusive_ptr<c10d::Store> store;
  bool enable_reconfigure = false;
  Hints hints;
};

struct ReconfigureOptions {
  std::int64_t uuid = 0;
  std::variant<std::unordered_set<InitHandle>, std::vector<InitHandle>> handles;
  std::optional<Milliseconds> timeout;
  Hints hints;
};

struct BatchSendRecv {
  struct P2POp {
    enum class OpType { SEND, RECV };
    OpType type;
    at::Tensor tensor;
    int peer;
  };
};

enum class TorchCommWinAccessType { WIN_ACCESS_TYPE_UNIFIED, WIN_ACCESS_TYPE_SEPARATE };

struct TorchCommWindowAttr {
  TorchCommWinAccessType accessType;
};

class TorchCommWindow {
 public:
  using Work = c10::intrusive_ptr<TorchWork>;

  virtual ~TorchCommWindow() = default;
  virtual void tensor_register(const at::Tensor& tensor, bool owning) = 0;
  virtual void tensor_deregister() = 0;
  virtual std::shared_ptr<TorchCommWindow> clone() = 0;
  virtual Work put(const at::Tensor& tensor, int peer, std::size_t first, bool async, const PutOptions& options) = 0;
  virtual Work signal(int peer, bool async, const SignalOptions& options) = 0;
  virtual Work wait_signal(int peer, bool async, const WaitSignalOptions& options) = 0;
  virtual at::Tensor map_remote_tensor(int rank) = 0;
  virtual std::shared_ptr<TorchCommWindowAttr> get_attr(int peer) = 0;

  std::size_t get_size() const { return win_size_; }
  std::optional<at::Tensor> get_tensor() const { return buf_tensor_; }

 protected:
  std::size_t win_size_ = 0;
  std::optional<at::Tensor> buf_tensor_;
  at::ScalarType buf_dtype_ = at::kFloat;
  c10::Device buf_device_{c10::kCPU};
  std::vector<std::int64_t> buf_shape_;
};

class TorchCommBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Splits = std::vector<std::uint64_t>;
  using Work = c10::intrusive_ptr<TorchWork>;
  using AllGatherPHandle = void*;

  virtual ~TorchCommBackend() = default;

  virtual void init(at::Device device, const std::string& name, const CommOptions& options) = 0;
  virtual void finalize() = 0;
  virtual int getRank() const = 0;
  virtual int getSize() const = 0;
  virtual std::string_view getBackendName() const = 0;
  virtual std::string_view getBackendVersion() const = 0;
  virtual std::string_view getCommName() const = 0;
  virtual const CommOptions& getOptions() const = 0;
  virtual const at::Device& getDevice() const = 0;
  virtual bool isInitialized() const = 0;
  virtual void setTimeout(Milliseconds timeout) = 0;
  virtual void setHints(Hints hints) = 0;
  virtual std::shared_ptr<TorchCommBackend> split(const std::vector<int>& ranks, const std::string& name,
                                                  const CommOptions& options) = 0;
  virtual bool supportsReconfigure() const = 0;
  virtual InitHandle getInitHandle() const = 0;
  virtual Work reconfigure(const ReconfigureOptions& options) = 0;
  virtual bool isAbortSupported() const = 0;
  virtual bool isAborted() const = 0;
  virtual void abort() = 0;

  virtual Work send(const at::Tensor& tensor, int peer, bool async, const SendOptions& options) = 0;
  virtual Work recv(at::Tensor& tensor, int peer, bool async, const RecvOptions& options) = 0;
  virtual Work batch_op_issue(const std::vector<BatchSendRecv::P2POp>& messages, bool async,
                              const BatchP2POptions& options) = 0;
  virtual Work broadcast(at::Tensor& tensor, int root, bool async, const BroadcastOptions& options) = 0;
  virtual Work all_reduce(at::Tensor& tensor, const ReduceOp& op, bool async, const AllReduceOptions& options) = 0;
  virtual Work reduce(const at::Tensor& tensor, int root, const ReduceOp& op, bool async,
                      const ReduceOptions& options) = 0;
  virtual Work all_gather(const Tensors& outputs, const at::Tensor& input, bool async,
                          const AllGatherOptions& options) = 0;
  virtual Work all_gather_v(const Tensors& outputs, const at::Tensor& input, bool async,
                            const AllGatherOptions& options) = 0;
  virtual Work all_gather_single(at::Tensor& output, const at::Tensor& input, bool async,
                                 const AllGatherSingleOptions& options) = 0;
  virtual Work reduce_scatter(at::Tensor& output, const Tensors& inputs, const ReduceOp& op, bool async,
                              const ReduceScatterOptions& options) = 0;
  virtual Work reduce_scatter_v(at::Tensor& output, const Tensors& inputs, const ReduceOp& op, bool async,
                                const ReduceScatterOptions& options) = 0;
  virtual Work reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const ReduceOp& op, bool async,
                                     const ReduceScatterSingleOptions& options) = 0;
  virtual Work all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async,
                                 const AllToAllSingleOptions& options) = 0;
  virtual Work all_to_all_v_single(at::Tensor& output, const at::Tensor& input, const Splits& output_splits,
                                   const Splits& input_splits, bool async, const AllToAllvSingleOptions& options) = 0;
  virtual Work all_to_all(const Tensors& outputs, const Tensors& inputs, bool async,
                          const AllToAllOptions& options) = 0;
  virtual Work barrier(bool async, const BarrierOptions& options) = 0;
  virtual Work scatter(at::Tensor& output, const Tensors& inputs, int root, bool async,
                       const ScatterOptions& options) = 0;
  virtual Work gather(const Tensors& outputs, const at::Tensor& input, int root, bool async,
                      const GatherOptions& options) = 0;
  virtual Work gather_single(at::Tensor& output, const at::Tensor& input, int root, bool async,
                             const GatherSingleOptions& options) = 0;
  virtual AllGatherPHandle all_gather_p_init(at::Tensor& output, const AllGatherPInitOptions& options) = 0;
  virtual Work all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async,
                                 const AllGatherPExecOptions& options) = 0;
  virtual void all_gather_p_free(AllGatherPHandle handle) = 0;
  virtual void tensor_register(const at::Tensor& tensor) = 0;
  virtual void tensor_deregister(const at::Tensor& tensor) = 0;
  virtual bool supportsWindow() const = 0;
  virtual std::shared_ptr<TorchCommWindow> new_window(const std::optional<at::Tensor>& tensor) = 0;

  virtual void registerAbortHook(std::int64_t number, AbortHook hook) { abortHooks_.emplace(number, std::move(hook)); }
  virtual void unregisterAbortHook(std::int64_t number) { abortHooks_.erase(number); }

  std::unordered_map<std::int64_t, AbortHook> abortHooks_;

 protected:
  void runAbortHooks() {
    for (const auto& [number, hook] : abortHooks_) {
      try {
        hook();
      } catch (const std::exception& error) {
        TORCH_WARN("an abort hook has failed: ", error.what());
      }
    }
  }
};

struct DynamicLoaderInterface {
  TorchCommBackend* (*new_comm)();
  void (*destroy_comm)(TorchCommBackend*);
  const char* (*get_supported_version)();
};

}  // namespace torch::comms
