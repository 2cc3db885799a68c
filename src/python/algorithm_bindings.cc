#include "python/algorithm_bindings.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "algorithm/plan/verdict_store.h"
#include "algorithm/user/given_algorithms.h"
#include "algorithm/user/identity.h"
#include "base/collective_traits.h"
#include "base/names.h"
#include "interpreter/with_python.h"
#include "python/device_bindings.h"
#include "python/signals.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

// Of const objects: bound without const, because nanobind has no other, and with nothing that changes them.
using Handle = std::shared_ptr<UserAlgorithm>;

Handle bound(const UserAlgorithmPtr& algorithm) { return std::const_pointer_cast<UserAlgorithm>(algorithm); }

// Of a KernelSource: file, text, headers, options.
using KernelFields = std::tuple<std::string, std::string, std::map<std::string, std::string>, std::vector<std::string>>;

const char* kind_name(UserAlgorithm::Kind kind) {
  switch (kind) {
    case UserAlgorithm::Kind::kPlan:
      return "plan";
    case UserAlgorithm::Kind::kPlugin:
      return "plugin";
    case UserAlgorithm::Kind::kKernel:
      return "kernel";
    default:
      return "library";
  }
}

std::optional<std::string> tutti_collective(const UserAlgorithm& algorithm) {
  const std::optional<Collective> collective = algorithm.collective();
  if (!collective) return std::nullopt;
  return std::string(to_string(*collective));
}

AlgorithmLimits limits_of(std::uint64_t min_bytes, std::uint64_t max_bytes, int ranks, int ranks_per_host) {
  if (min_bytes > max_bytes) {
    throw_error(ErrorKind::kInvalidArgument, "the smallest message, " + std::to_string(min_bytes) +
                                                 " bytes, is larger than the largest, " + std::to_string(max_bytes));
  }
  if (ranks < 0 || ranks_per_host < 0) {
    throw_error(ErrorKind::kInvalidArgument, "numbers of ranks are not negative; 0 means any");
  }
  return {min_bytes, max_bytes, ranks, ranks_per_host};
}

std::size_t block_of(std::size_t bytes, bool blocks, int ranks, const char* which) {
  const auto n = static_cast<std::size_t>(blocks ? ranks : 1);
  if (bytes % n == 0) return bytes / n;
  throw_error(ErrorKind::kInvalidArgument, std::string("the ") + which + " has " + std::to_string(bytes) +
                                               " bytes, which are no " + std::to_string(n) + " equal blocks");
}

}  // namespace

Call named_call(int size, const UserAlgorithm& algorithm, AddressAndBytes input, AddressAndBytes output,
                const std::string& dtype, const std::optional<std::string>& op, int root) {
  const std::optional<Collective> collective = algorithm.collective();
  if (!collective) {
    throw_error(ErrorKind::kUnsupported, "\"" + algorithm.name() + "\" is for the collective \"" +
                                             algorithm.collective_name() +
                                             "\", which has no definition to run it by: see `tutti plan run`");
  }
  Call call;
  call.collective = *collective;
  call.dtype = from_name<DataType>(dtype, "element type", kDataTypeCount);
  const CollectiveTraits& traits = traits_of(*collective);
  if (traits.has_root) call.root = root >= 0 ? root : std::max(0, algorithm.root());
  if (op) {
    call.op = from_name<ReduceOp>(*op, "reduce operation", kReduceOpCount);
  } else if (traits.reduces) {
    if (!algorithm.default_op()) {
      throw_error(ErrorKind::kInvalidArgument, "\"" + algorithm.name() + "\" needs an op: ReduceOp.SUM, MIN, ...");
    }
    call.op = *algorithm.default_op();
  }
  const auto memory = [](AddressAndBytes m) { return reinterpret_cast<const void*>(m.first); };
  const std::size_t in = block_of(input.second, traits.input_blocks, size, "input");
  const std::size_t out = block_of(output.second, traits.output_blocks, size, "output");
  const bool one = traits.takes_a_block();
  call.count = (one ? out : in) / size_of(call.dtype);
  call.input = Blocks::single(memory(input), in);
  call.output = Blocks::single(memory(output), out);
  return call;
}

namespace {

void run_by(Communicator& comm, const Handle& algorithm, AddressAndBytes input, AddressAndBytes output,
            const std::string& dtype, const std::optional<std::string>& op, int root,
            const std::map<std::string, std::int64_t>& extras, double timeout) {
  const std::chrono::milliseconds limit = milliseconds_of(timeout);
  Call call = named_call(comm.size(), *algorithm, input, output, dtype, op, root);
  const AlgorithmChoice choice{algorithm, extras};
  call.choice = &choice;
  waiting(comm, [&] { comm.run(call, limit); });
}

// A Python function that is called and forgotten on any thread.
class PythonFunction {
 public:
  explicit PythonFunction(nb::object function) : function_(std::move(function)) {}
  ~PythonFunction() { let_go_with_python(function_.release().ptr()); }
  PythonFunction(const PythonFunction&) = delete;
  PythonFunction& operator=(const PythonFunction&) = delete;

 protected:
  nb::object function_;
};

// What a communicator asks on whichever thread runs the call.
class PythonSelector : public PythonFunction {
 public:
  using PythonFunction::PythonFunction;

  UserAlgorithmPtr operator()(const AlgorithmRequest& r) const {
    const WithPython held;
    try {
      const nb::object answer =
          function_(std::string(to_string(r.collective)), std::string(to_string(r.dtype)), std::string(to_string(r.op)),
                    r.bytes, r.rank, r.ranks, r.ranks_per_host, reinterpret_cast<std::uintptr_t>(r.input),
                    reinterpret_cast<std::uintptr_t>(r.output));
      if (answer.is_none()) return nullptr;
      return nb::cast<Handle>(answer);
    } catch (const nb::python_error& error) {
      throw_error(ErrorKind::kInvalidArgument, std::string("the algorithm selector raised: ") + error.what());
    } catch (const nb::cast_error&) {
      throw_error(ErrorKind::kInvalidArgument, "the algorithm selector returned something that is no Algorithm");
    }
  }
};

}  // namespace

AlgorithmSet algorithm_set(const std::vector<Handle>& algorithms, nb::object selector) {
  AlgorithmSet set;
  set.algorithms.assign(algorithms.begin(), algorithms.end());
  if (!selector.is_none()) {
    auto function = std::make_shared<PythonSelector>(std::move(selector));
    set.choose = [function](const AlgorithmRequest& request) { return (*function)(request); };
  }
  return set;
}

namespace {

// For tutti._torch, whose binding library knows nothing of ours: a pointer to an AlgorithmSet.
nb::capsule set_capsule(const std::vector<Handle>& algorithms, nb::object selector) {
  auto set = std::make_unique<AlgorithmSet>(algorithm_set(algorithms, std::move(selector)));
  return {set.release(), "tutti.AlgorithmSet", [](void* p) noexcept { delete static_cast<AlgorithmSet*>(p); }};
}

// Asked by groups that the program forms without seeing it: `giver(ranks)` returns algorithms and a selector function
// or None.
class PythonGiver : public PythonFunction {
 public:
  using PythonFunction::PythonFunction;

  AlgorithmSet operator()(int ranks) const {
    if (python_has_ended()) return {};
    const WithPython held;
    try {
      auto [algorithms, selector] = nb::cast<std::pair<std::vector<Handle>, nb::object>>(function_(ranks));
      return algorithm_set(algorithms, std::move(selector));
    } catch (const nb::python_error& error) {
      throw_error(ErrorKind::kInvalidArgument, std::string("AlgorithmCollectionBuilder raised: ") + error.what());
    }
  }
};

void give_by(nb::object giver) {
  if (giver.is_none()) return give_algorithms({});
  give_algorithms([held = std::make_shared<PythonGiver>(std::move(giver))](int ranks) { return (*held)(ranks); });
}

}  // namespace

void bind_algorithms(nb::module_& m) {
  nb::class_<UserAlgorithm>(m, "UserAlgorithm")
      .def_prop_ro("kind", [](const UserAlgorithm& a) { return kind_name(a.kind()); })
      .def_prop_ro("name", &UserAlgorithm::name)
      .def_prop_ro("collective_name", &UserAlgorithm::collective_name)
      .def_prop_ro("collective", &tutti_collective)
      .def_prop_ro("in_place", &UserAlgorithm::in_place)
      .def_prop_ro("min_bytes", [](const UserAlgorithm& a) { return a.limits().min_bytes; })
      .def_prop_ro("max_bytes", [](const UserAlgorithm& a) { return a.limits().max_bytes; })
      .def_prop_ro("ranks", [](const UserAlgorithm& a) { return a.limits().ranks; })
      .def_prop_ro("ranks_per_host", [](const UserAlgorithm& a) { return a.limits().ranks_per_host; })
      .def_prop_ro("identity", [](const UserAlgorithm& a) { return fold(a.identity()); })
      .def(
          "with_limits",
          [](const UserAlgorithm& a, std::uint64_t min_bytes, std::uint64_t max_bytes, int ranks, int ranks_per_host) {
            return bound(a.with_limits(limits_of(min_bytes, max_bytes, ranks, ranks_per_host)));
          },
          "min_bytes"_a, "max_bytes"_a, "ranks"_a, "ranks_per_host"_a);
  m.def(
      "plan_algorithm",
      [](const std::string& text, const std::string& place, int ranks, int ranks_per_host) {
        AlgorithmLimits limits = limits_of(0, ~std::uint64_t{0}, ranks, ranks_per_host);
        return waiting(
            [&] { return bound(plan_algorithm(text, place, limits, cache_folder(config_from_environment()))); });
      },
      "text"_a, "place"_a, "ranks"_a = 0, "ranks_per_host"_a = 0);
  m.def(
      "plugin_algorithms",
      [](const std::string& path, const std::string& content, const std::optional<KernelFields>& kernels) {
        std::shared_ptr<const KernelSource> source;
        if (kernels) {
          const auto& [file, text, headers, options] = *kernels;
          source = std::make_shared<const KernelSource>(KernelSource{file, text, headers, options});
        }
        std::vector<std::pair<std::string, Handle>> list;
        for (const PluginAlgorithm& entry : plugin_algorithms(path, content, std::move(source))) {
          list.emplace_back(entry.function, bound(entry.algorithm));
        }
        return list;
      },
      "path"_a, "content"_a, "kernels"_a.none() = nb::none());
  m.def(
      "library_algorithm",
      [](const std::string& collective, const std::string& name) {
        return bound(library_algorithm(from_name<Collective>(collective, "collective", kCollectiveCount), name));
      },
      "collective"_a, "name"_a);
  m.def("run_by", &run_by, "comm"_a, "algorithm"_a, "input"_a, "output"_a, "dtype"_a, "op"_a.none(), "root"_a = -1,
        "extras"_a = std::map<std::string, std::int64_t>(), "timeout"_a = 0.0);
  m.def(
      "set_algorithms",
      [](Communicator& comm, const std::vector<Handle>& algorithms, nb::object selector) {
        AlgorithmSet set = algorithm_set(algorithms, std::move(selector));
        waiting(comm, [&] { comm.set_algorithms(std::move(set)); });
      },
      "comm"_a, "algorithms"_a, "selector"_a.none());
  m.def("algorithm_set", &set_capsule, "algorithms"_a, "selector"_a.none());
  m.def("give_algorithms", &give_by, "giver"_a.none());
}

}  // namespace tutti
