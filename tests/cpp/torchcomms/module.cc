// The Python module of the stand-in: new_comm and communicators under the names that torchcomms gives them, over the
// library that TUTTI_TORCHCOMMS_BACKEND names, else the entry point of the backend's name, loaded as torchcomms loads
// it.
#include <ATen/core/ivalue.h>
#include <dlfcn.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <comms/torchcomms/TorchCommBackend.hpp>
#include <comms/torchcomms/TorchCommFactory.hpp>
#include <thread>

#include "c10d.h"

namespace py = pybind11;
namespace {

using namespace torch::comms;
using Backend = TorchCommBackend;
using BackendPtr = std::shared_ptr<Backend>;
using Tensors = std::vector<at::Tensor>;
using Release = py::call_guard<py::gil_scoped_release>;
using Timeout = std::optional<Milliseconds>;
using Given = const std::optional<Hints>&;
using Store = std::optional<c10::intrusive_ptr<c10d::Store>>;

#define A(name) py::arg(#name)

DynamicLoaderInterface load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  auto* const create = reinterpret_cast<DynamicLoaderInterface (*)()>(dlsym(library, "create_dynamic_loader_tutti"));
  if (create == nullptr) throw std::runtime_error(dlerror());
  const DynamicLoaderInterface loader = create();
  if (std::string(loader.get_supported_version()) != TORCHCOMM_BACKEND_ABI_VERSION) {
    throw std::runtime_error("the library was built for another interface");
  }
  return loader;
}

// As torchcomms finds it: what the entry point of the name loads says it by a variable.
std::string library_of(const std::string& backend) {
  if (const char* built = std::getenv("TUTTI_TORCHCOMMS_BACKEND")) return built;
  const py::gil_scoped_acquire locked;
  const auto entry_points = py::module_::import("importlib.metadata").attr("entry_points");
  for (const py::handle point : entry_points(A(group) = "torchcomms.backends", A(name) = backend)) {
    point.attr("load")();
    if (const char* found = std::getenv("TORCHCOMMS_BACKEND_LIB_PATH_TUTTI")) return found;
  }
  throw std::runtime_error("no installed package is the backend " + backend);
}

CommOptions options_of(const Timeout& timeout, const Store& store, bool enable_reconfigure, const Hints& hints) {
  CommOptions options;
  if (timeout.has_value()) options.timeout = *timeout;
  if (store.has_value()) options.store = *store;
  options.enable_reconfigure = enable_reconfigure;
  options.hints = hints;
  return options;
}

BackendPtr new_comm(const std::string& backend, at::Device device, const std::string& name, const Timeout& timeout,
                    const Store& store, bool enable_reconfigure, const Hints& hints) {
  static const DynamicLoaderInterface loader = load(library_of(backend));
  const BackendPtr made(loader.new_comm(), loader.destroy_comm);
  made->init(device, name, options_of(timeout, store, enable_reconfigure, hints));
  return made;
}

template <typename Options>
Options with(Given hints, const Timeout& timeout) {
  Options options;
  if (hints.has_value()) options.hints = *hints;
  if (timeout.has_value()) options.timeout = *timeout;
  return options;
}

// A function of Python's, called and dropped with Python's lock, on whatever thread.
std::function<void()> held(py::function given) {
  const auto drop = [](py::function* function) {
    const py::gil_scoped_acquire locked;
    delete function;
  };
  return [function = std::shared_ptr<py::function>(new py::function(std::move(given)), drop)] {
    const py::gil_scoped_acquire locked;
    (*function)();
  };
}

void bind_work(py::module_& module) {
  using Status = TorchWork::WorkStatus;
  py::enum_<Status>(module, "WorkStatus")
      .value("NOT_STARTED", Status::NOT_STARTED)
      .value("INPROGRESS", Status::INPROGRESS)
      .value("COMPLETED", Status::COMPLETED)
      .value("TIMEDOUT", Status::TIMEDOUT)
      .value("ERROR", Status::ERROR);
  py::class_<TorchWork, c10::intrusive_ptr<TorchWork>> work(module, "TorchWork");
  work.def("wait", &TorchWork::wait, Release())
      .def("wait_blocking", &TorchWork::waitBlocking, Release())
      .def("is_completed", &TorchWork::isCompleted);
  // What TorchComms has for C++ alone.
  work.def("status", &TorchWork::status)
      .def("get_timeout", &TorchWork::getTimeout)
      .def("host_synchronize", &TorchWork::hostSynchronize, Release())
      .def(
          "future_value",  // for the current stream to use
          [](TorchWork& w, const Tensors& outputs) {
            const auto future = w.future_of(outputs);
            future->waitAndThrow();
            return future->value().toTensorVector();
          },
          Release())
      .def("completed_behind",  // whether a future is complete whose turn comes behind another's callback
           [](TorchWork& w, const Tensors& outputs, py::function f) {
             auto callback = held(std::move(f));
             const py::gil_scoped_release released;
             w.future_of(outputs)->addCallback([callback](c10::ivalue::Future&) { callback(); });
             return std::function<bool()>([future = w.future_of(outputs)] { return future->completed(); });
           })
      .def("register_work_start_hook",
           [](TorchWork& w, py::function f) { w.registerWorkStartHook(held(std::move(f))); })
      .def("register_work_end_hook",
           [](TorchWork& w, py::function f) {
             auto hook = held(std::move(f));
             const py::gil_scoped_release released;
             w.registerWorkEndHook(std::move(hook));
           })
      .def("register_work_wait_pre_hook",
           [](TorchWork& w, py::function f) { w.registerWorkWaitPreHook(held(std::move(f))); })
      .def("register_work_wait_post_hook",
           [](TorchWork& w, py::function f) { w.registerWorkWaitPostHook(held(std::move(f))); })
      .def_static("while_registering", [](const std::optional<py::function>& f) {
        TorchWork::registering = f.has_value() ? held(*f) : TorchWork::Hook();
      });
}

void bind_reduce_op(py::module_& module) {
  using Type = ReduceOp::RedOpType;
  py::class_<ReduceOp> op(module, "ReduceOp");
  const std::pair<const char*, Type> named[] = {{"SUM", Type::SUM},   {"PRODUCT", Type::PRODUCT}, {"MIN", Type::MIN},
                                                {"MAX", Type::MAX},   {"BAND", Type::BAND},       {"BOR", Type::BOR},
                                                {"BXOR", Type::BXOR}, {"AVG", Type::AVG}};
  for (const auto& [name, type] : named) op.attr(name) = ReduceOp(type);
  op.def_static("PREMUL_SUM", [](double factor) { return ReduceOp::premul_sum(factor); });
}

using Class = py::class_<Backend, BackendPtr>;

#define ASYNC py::arg("async_op")
#define LIMIT py::arg("hints") = std::nullopt, py::arg("timeout") = std::nullopt, Release()

void bind_calls(Class& comm) {
  using T = at::Tensor;
  comm.def(
      "broadcast",
      [](Backend& b, T x, int root, bool async, Given h, Timeout t) {
        return b.broadcast(x, root, async, with<BroadcastOptions>(h, t));
      },
      A(tensor), A(root), ASYNC, LIMIT);
  comm.def(
      "all_reduce",
      [](Backend& b, T x, const ReduceOp& op, bool async, Given h, Timeout t) {
        return b.all_reduce(x, op, async, with<AllReduceOptions>(h, t));
      },
      A(tensor), A(op), ASYNC, LIMIT);
  comm.def(
      "reduce",
      [](Backend& b, T x, int root, const ReduceOp& op, bool async, Given h, Timeout t) {
        return b.reduce(x, root, op, async, with<ReduceOptions>(h, t));
      },
      A(tensor), A(root), A(op), ASYNC, LIMIT);
  comm.def(
      "all_gather",
      [](Backend& b, Tensors out, T in, bool async, Given h, Timeout t) {
        return b.all_gather(out, in, async, with<AllGatherOptions>(h, t));
      },
      A(tensor_list), A(tensor), ASYNC, LIMIT);
  comm.def(
      "all_gather_v",
      [](Backend& b, Tensors out, T in, bool async, Given h, Timeout t) {
        return b.all_gather_v(out, in, async, with<AllGatherOptions>(h, t));
      },
      A(tensor_list), A(tensor), ASYNC, LIMIT);
  comm.def(
      "all_gather_single",
      [](Backend& b, T out, T in, bool async, Given h, Timeout t) {
        return b.all_gather_single(out, in, async, with<AllGatherSingleOptions>(h, t));
      },
      A(output), A(input), ASYNC, LIMIT);
  comm.def(
      "reduce_scatter",
      [](Backend& b, T out, Tensors in, const ReduceOp& op, bool async, Given h, Timeout t) {
        return b.reduce_scatter(out, in, op, async, with<ReduceScatterOptions>(h, t));
      },
      A(output), A(input_list), A(op), ASYNC, LIMIT);
  comm.def(
      "reduce_scatter_v",
      [](Backend& b, T out, Tensors in, const ReduceOp& op, bool async, Given h, Timeout t) {
        return b.reduce_scatter_v(out, in, op, async, with<ReduceScatterOptions>(h, t));
      },
      A(output), A(input_list), A(op), ASYNC, LIMIT);
  comm.def(
      "reduce_scatter_single",
      [](Backend& b, T out, T in, const ReduceOp& op, bool async, Given h, Timeout t) {
        return b.reduce_scatter_single(out, in, op, async, with<ReduceScatterSingleOptions>(h, t));
      },
      A(output), A(input), A(op), ASYNC, LIMIT);
  comm.def(
      "all_to_all",
      [](Backend& b, Tensors out, Tensors in, bool async, Given h, Timeout t) {
        return b.all_to_all(out, in, async, with<AllToAllOptions>(h, t));
      },
      A(output_tensor_list), A(input_tensor_list), ASYNC, LIMIT);
  comm.def(
      "all_to_all_single",
      [](Backend& b, T out, T in, bool async, Given h, Timeout t) {
        return b.all_to_all_single(out, in, async, with<AllToAllSingleOptions>(h, t));
      },
      A(output), A(input), ASYNC, LIMIT);
  comm.def(
      "all_to_all_v_single",
      [](Backend& b, T out, T in, std::vector<std::uint64_t> os, std::vector<std::uint64_t> is, bool async, Given h,
         Timeout t) { return b.all_to_all_v_single(out, in, os, is, async, with<AllToAllvSingleOptions>(h, t)); },
      A(output), A(input), A(output_split_sizes), A(input_split_sizes), ASYNC, LIMIT);
  comm.def(
      "barrier",
      [](Backend& b, bool async, Given h, Timeout t) { return b.barrier(async, with<BarrierOptions>(h, t)); }, ASYNC,
      LIMIT);
  comm.def(
      "scatter",
      [](Backend& b, T out, Tensors in, int root, bool async, Given h, Timeout t) {
        return b.scatter(out, in, root, async, with<ScatterOptions>(h, t));
      },
      A(output_tensor), A(input_tensor_list), A(root), ASYNC, LIMIT);
  comm.def(
      "gather",
      [](Backend& b, Tensors out, T in, int root, bool async, Given h, Timeout t) {
        return b.gather(out, in, root, async, with<GatherOptions>(h, t));
      },
      A(output_tensor_list), A(input_tensor), A(root), ASYNC, LIMIT);
  comm.def(
      "gather_single",
      [](Backend& b, T out, T in, int root, bool async, Given h, Timeout t) {
        return b.gather_single(out, in, root, async, with<GatherSingleOptions>(h, t));
      },
      A(output), A(input), A(root), ASYNC, LIMIT);
  comm.def(
      "send",
      [](Backend& b, T x, int peer, bool async, Given h, Timeout t, int tag) {
        auto options = with<SendOptions>(h, t);
        options.tag = tag;
        return b.send(x, peer, async, options);
      },
      A(tensor), A(dst), ASYNC, LIMIT, py::arg("tag") = 0);
  comm.def(
      "recv",
      [](Backend& b, T x, int peer, bool async, Given h, Timeout t, int tag) {
        auto options = with<RecvOptions>(h, t);
        options.tag = tag;
        return b.recv(x, peer, async, options);
      },
      A(tensor), A(src), ASYNC, LIMIT, py::arg("tag") = 0);
}

void bind_persistent(Class& comm) {
  comm.def(
          "all_gather_p_init",
          [](Backend& b, at::Tensor out, Given h, Timeout t) {
            return b.all_gather_p_init(out, with<AllGatherPInitOptions>(h, t));
          },
          A(output), LIMIT)
      .def(
          "all_gather_p_exec",
          [](Backend& b, void* handle, at::Tensor in, bool async, Given h, Timeout t) {
            return b.all_gather_p_exec(handle, in, async, with<AllGatherPExecOptions>(h, t));
          },
          A(handle), A(input), ASYNC, LIMIT)
      .def("all_gather_p_free", &Backend::all_gather_p_free, A(handle), Release())
      .def("tensor_register", &Backend::tensor_register, A(tensor), Release())
      .def("tensor_deregister", &Backend::tensor_deregister, A(tensor), Release());
}

struct Batch {
  BackendPtr comm;
  std::vector<BatchSendRecv::P2POp> messages;
};

void bind_batch(py::module_& module, Class& comm) {
  using Type = BatchSendRecv::P2POp::OpType;
  py::class_<BatchP2POptions>(module, "BatchP2POptions")
      .def(py::init<>())
      .def_readwrite("timeout", &BatchP2POptions::timeout);
  py::class_<Batch>(module, "BatchSendRecv")
      .def("send",
           [](Batch& b, at::Tensor x, int peer) {
             b.messages.push_back({Type::SEND, x, peer});
           })
      .def("recv",
           [](Batch& b, at::Tensor x, int peer) {
             b.messages.push_back({Type::RECV, x, peer});
           })
      .def(
          "issue",
          [](Batch& b, bool async, const BatchP2POptions& o) { return b.comm->batch_op_issue(b.messages, async, o); },
          ASYNC, py::arg("options") = BatchP2POptions(), Release());
  comm.def("batch_op_create", [](const BackendPtr& b) { return Batch{b, {}}; });
}

void bind_windows(py::module_& module, Class& comm) {
  using Window = TorchCommWindow;
  using Access = TorchCommWinAccessType;
  py::enum_<Access>(module, "TorchCommWinAccessType")
      .value("WIN_ACCESS_TYPE_UNIFIED", Access::WIN_ACCESS_TYPE_UNIFIED)
      .value("WIN_ACCESS_TYPE_SEPARATE", Access::WIN_ACCESS_TYPE_SEPARATE);
  py::class_<TorchCommWindowAttr, std::shared_ptr<TorchCommWindowAttr>>(module, "TorchCommWindowAttr")
      .def_readonly("access_type", &TorchCommWindowAttr::accessType);
  py::class_<Window, std::shared_ptr<Window>>(module, "TorchCommWindow")
      .def("tensor_register", &Window::tensor_register, A(tensor), py::arg("owning") = true, Release())
      .def("tensor_deregister", &Window::tensor_deregister, Release())
      .def("clone", &Window::clone, Release())
      .def("get_size", &Window::get_size)
      .def("get_tensor", &Window::get_tensor)
      .def("map_remote_tensor", &Window::map_remote_tensor, A(rank), Release())
      .def("get_attr", &Window::get_attr, A(peer_rank), Release())
      .def(
          "put",
          [](Window& w, at::Tensor x, int dst, std::size_t first, bool async, Given h, Timeout t) {
            return w.put(x, dst, first, async, with<PutOptions>(h, t));
          },
          A(tensor), A(dst_rank), A(target_offset_nelems), ASYNC, LIMIT)
      .def(
          "signal",
          [](Window& w, int peer, bool async, Given h, Timeout t) {
            return w.signal(peer, async, with<SignalOptions>(h, t));
          },
          A(peer_rank), ASYNC, LIMIT)
      .def(
          "wait_signal",
          [](Window& w, int peer, bool async, Given h, Timeout t) {
            return w.wait_signal(peer, async, with<WaitSignalOptions>(h, t));
          },
          A(peer_rank), ASYNC, LIMIT);
  comm.def(
      "new_window", [](Backend& b, const std::optional<at::Tensor>& tensor) { return b.new_window(tensor); },
      py::arg("tensor") = std::nullopt, Release());
}

// Threads ask for the communicator's state without a pause while `call` runs: at nearly any moment one of them has the
// lock that this takes.
void while_others_ask(const Backend& comm, const py::function& call) {
  std::vector<std::jthread> asking;
  for (int i = 0; i < 3; ++i) {
    asking.emplace_back([&comm](const std::stop_token& over) {
      while (!over.stop_requested()) static_cast<void>(comm.isAborted());
    });
  }
  call();
}

struct Registered {
  Backend* comm;
  std::int64_t number;
};

void bind_life(py::module_& module, Class& comm) {
  py::class_<Registered>(module, "RemovableHandle").def("remove", [](const Registered& hook) {
    hook.comm->unregisterAbortHook(hook.number);
  });
  comm.def("get_rank", &Backend::getRank)
      .def("get_size", &Backend::getSize)
      .def("get_name", [](const Backend& b) { return std::string(b.getCommName()); })
      .def("get_device", [](const Backend& b) { return b.getDevice(); })
      .def("get_backend", [](const Backend& b) { return std::string(b.getBackendName()); })
      .def("finalize", &Backend::finalize, Release())
      .def("abort", &Backend::abort, Release())
      .def("is_aborted", &Backend::isAborted)
      .def("while_others_ask", &while_others_ask)
      .def("get_init_handle", &Backend::getInitHandle)
      .def("is_initialized", &Backend::isInitialized)
      .def("set_timeout", &Backend::setTimeout)
      .def("set_hints", &Backend::setHints, A(hints))
      .def(
          "split",
          [](Backend& b, const std::vector<int>& ranks, const std::string& name, Given hints, const Timeout& timeout) {
            return b.split(ranks, name, options_of(timeout, std::nullopt, false, hints.value_or(Hints())));
          },
          A(ranks), A(name), LIMIT)
      .def(
          "reconfigure",
          [](Backend& b, std::int64_t uuid, decltype(ReconfigureOptions::handles) handles, const Timeout& timeout,
             Given hints) {
            ReconfigureOptions options;
            options.uuid = uuid;
            options.handles = std::move(handles);
            options.timeout = timeout;
            if (hints.has_value()) options.hints = *hints;
            return b.reconfigure(options);
          },
          A(uuid), A(init_handles), py::arg("timeout") = std::nullopt, py::arg("hints") = std::nullopt, Release())
      .def("get_mem_allocator",
           [](const Backend& b) { return TorchCommFactory::get().get_allocator(std::string(b.getBackendName())); })
      .def("register_abort_hook", [](Backend& b, py::function hook) {
        static std::int64_t number = 0;
        b.registerAbortHook(++number, held(std::move(hook)));
        return Registered{&b, number};
      });
}

}  // namespace

PYBIND11_MODULE(torchcomms_stand_in, module) {
  py::module_::import("torch.distributed");
  bind_work(module);
  bind_reduce_op(module);
  Class comm(module, "TorchComm");
  bind_calls(comm);
  bind_persistent(comm);
  bind_batch(module, comm);
  bind_windows(module, comm);
  bind_life(module, comm);
  bind_c10d(module);
  module.def("new_comm", &new_comm, A(backend), A(device), A(name), py::arg("timeout") = std::nullopt,
             py::arg("store") = std::nullopt, py::arg("enable_reconfigure") = false, py::arg("hints") = Hints(),
             Release());
}
