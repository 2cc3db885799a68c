// Stepping through a plan from Python: numbers and bytes; what they mean is worked out there.
#include "python/stepper_bindings.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "executor/cpu/stepper.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "tutti/error.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

using executor::Code;
using executor::Interpreter;
using plan::ChannelKind;

std::string_view waits_for(Code code) {
  switch (code) {
    case Code::kWait:
      return "signal";
    case Code::kAcquire:
      return "semaphore";
    case Code::kBarrier:
      return "barrier";
    case Code::kFlush:
      return "flush";
    case Code::kForward:
    case Code::kUnpack:
    case Code::kFold:
    case Code::kAwaitPackets:
      return "packets";
    default:
      return "";
  }
}

class PlanStepper {
 public:
  PlanStepper(const std::string& text, std::int64_t cells) : stepper_(plan::read_plan(text), cells) {}

  void begin() { stepper_.begin(); }

  // True if something was done.
  bool step(std::int32_t rank, std::size_t task) {
    check(rank, task);
    return stepper_.step(rank, task) == executor::Step::kRan;
  }

  nb::list tasks(std::int32_t rank) const {
    check(rank, 0);
    const Interpreter& own = stepper_.interpreter(rank);
    const std::size_t blocks = own.program().blocks().size();
    nb::list out;
    for (std::size_t task = 0; task < own.tasks(); ++task) {
      const Interpreter::View view = own.view(task);
      nb::dict entry;
      entry["block"] = task < blocks ? static_cast<std::int64_t>(task) : -1;
      entry["port"] = task < blocks ? -1 : static_cast<std::int64_t>(task - blocks);
      entry["ended"] = view.at == nullptr;
      if (view.at != nullptr) describe(own, view, entry);
      out.append(entry);
    }
    return out;
  }

  // Of channels: (raised, taken); of semaphores what they stand at.
  nb::dict counters(std::int32_t rank) const {
    check(rank, 0);
    const Interpreter& own = stepper_.interpreter(rank);
    const plan::Rank& entry = stepper_.tables().plan().ranks[rank];
    nb::dict out;
    std::size_t index = 0;
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      nb::list list;
      for (std::size_t i = 0; i < entry.channels_of(kind).size(); ++i, ++index) {
        list.append(nb::make_tuple(own.raised(index), own.taken(index)));
      }
      out[kind == ChannelKind::kMemory ? "memory" : "port"] = list;
    }
    nb::list semaphores;
    for (std::size_t i = 0; i < entry.semaphores.size(); ++i) semaphores.append(own.semaphore(i));
    out["semaphores"] = semaphores;
    return out;
  }

  nb::bytes chunk(std::int32_t rank, const std::string& buffer, std::int32_t index, bool packets) const {
    check(rank, 0);
    const auto kind = plan::buffer_of(buffer);
    if (!kind) throw_error(ErrorKind::kInvalidArgument, "buffer \"" + buffer + "\": i, o or s is expected");
    if (index < 0 || index >= chunks(rank, *kind)) {
      throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(rank) + "'s buffer \"" + buffer +
                                                   "\" has no chunk " + std::to_string(index));
    }
    const auto bytes = stepper_.chunk(rank, *kind, index, packets);
    return nb::bytes(bytes.data(), bytes.size());
  }

  std::int64_t cell_bytes() const { return stepper_.cell_bytes(); }

  std::int64_t chunks_of(std::int32_t rank, const std::string& buffer) const {
    check(rank, 0);
    return chunks(rank, plan::buffer_of(buffer).value_or(plan::BufferKind::kInput));
  }

 private:
  std::int64_t chunks(std::int32_t rank, plan::BufferKind buffer) const {
    if (buffer == plan::BufferKind::kScratch) return stepper_.tables().plan().ranks[rank].chunks_of(buffer);
    const plan::Shape& shape = stepper_.tables().shape();
    const auto side = static_cast<std::size_t>(buffer);
    return std::int64_t{shape.blocks[side]} * shape.block_chunks[side];
  }

  void check(std::int32_t rank, std::size_t task) const {
    if (rank < 0 || rank >= stepper_.tables().ranks()) {
      throw_error(ErrorKind::kInvalidArgument, "there is no rank " + std::to_string(rank));
    }
    if (task != 0 && task >= stepper_.interpreter(rank).tasks()) {
      throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(rank) + " has no task " + std::to_string(task));
    }
  }

  void describe(const Interpreter& own, const Interpreter::View& view, nb::dict& entry) const {
    const executor::Position& position = own.program().positions()[view.at->position];
    const std::string_view waits = waits_for(view.at->code);
    entry["of_block"] = position.block;
    entry["op"] = position.operation;
    entry["inner"] = position.inner;
    entry["ready"] = view.ready;
    entry["done"] = view.done;
    entry["bytes"] = view.at->bytes;
    entry["waits_for"] = nb::str(waits.data(), waits.size());
    // Of a signal the index of the rank's own counter, memory channels first; of a semaphore its id.
    const bool signal = view.at->code == Code::kWait;
    entry["counter"] = signal ? view.at->counter - stepper_.tables().first_counter(own.rank()) : view.at->counter;
    entry["peer"] = view.at->peer;
  }

  executor::Stepper stepper_;
};

}  // namespace

void bind_stepper(nb::module_& m) {
  nb::class_<PlanStepper>(m, "PlanStepper", "All ranks of a plan in this process, run an operation at a time.")
      .def(nb::init<const std::string&, std::int64_t>(), "text"_a, "cells"_a = 1)
      .def("begin", &PlanStepper::begin, "Begins the next call.")
      .def("step", &PlanStepper::step, "rank"_a, "task"_a)
      .def("tasks", &PlanStepper::tasks, "rank"_a)
      .def("counters", &PlanStepper::counters, "rank"_a)
      .def("chunk", &PlanStepper::chunk, "rank"_a, "buffer"_a, "index"_a, "packets"_a = false)
      .def("chunks_of", &PlanStepper::chunks_of, "rank"_a, "buffer"_a)
      .def_prop_ro("cell_bytes", &PlanStepper::cell_bytes);
}

}  // namespace tutti
