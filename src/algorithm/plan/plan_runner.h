// Runs one plan in one communicator, call after call.
//
// A call runs as invocations of the plan on segments that stay in the caches; a plan that keeps nothing in scratch and
// works on mapped tensors takes a message whole. Where peers of the same host reach into a buffer that not all ranks
// map, a shadow of it in mapped memory takes its place, a segment at a time; a buffer that only its own rank touches is
// used where it lies, also if other hosts put into it.
//
// Every rank owns one block of its arena for a plan: counters and scratch (executor/program/tables.h), then shadows. It
// is made at the first call, in which the ranks of a host tell each other where theirs lies. From then on nothing is
// set up but a program for each new size of message.
//
// Between hosts the calls of neighbouring ranks are compared as in every algorithm over messages (net_call.h). A rank
// that waits there drives the message port, since others may need what it sends and grants; it looks at the shared
// memory of its host meanwhile.
//
// Thread rule: under the communicator's lock.
#pragma once

#include <map>
#include <memory>

#include "algorithm/algorithm.h"
#include "algorithm/group_place.h"
#include "algorithm/plan/plan_buffers.h"
#include "algorithm/plan/plan_memory.h"
#include "executor/cpu/far_ports.h"
#include "executor/cpu/interpreter.h"
#include "executor/program/program.h"
#include "executor/program/tables.h"

namespace tutti {

class NetCall;

class PlanRunner {
 public:
  // Throws what Tables and Program throw.
  PlanRunner(std::shared_ptr<const plan::Plan> plan, const GroupPlace& world);

  // Throws what the constructor would throw.
  static void check(std::shared_ptr<const plan::Plan> plan, const GroupPlace& world);

  Outcome run(const Call& call, CallContext& context) noexcept;

 private:
  // A doorbell that wakes ranks which sleep in the host channel.
  class HostDoorbell final : public executor::Doorbell {
   public:
    explicit HostDoorbell(const GroupPlace& world) noexcept : world_(world) {}
    void ring(std::int32_t rank) noexcept override;

   private:
    const GroupPlace& world_;
  };

  std::vector<executor::RankLayout> layouts() const;
  std::size_t ring_bytes() const noexcept;
  std::size_t take_shadow(std::size_t piece) noexcept;
  const executor::Program& program(std::size_t block_bytes);
  const executor::Program* find_program(std::size_t block_bytes) noexcept;

  Outcome join(CallContext& context) noexcept;
  Outcome run_between_hosts(const Call& call, CallContext& context) noexcept;
  Outcome run_invocations(const Call& call, CallContext& context, NetCall* net) noexcept;
  Outcome finish_invocation(CallContext& context, NetCall* net) noexcept;
  executor::Step pass() noexcept;
  class Progress;
  Outcome await_host(CallContext& context) noexcept;
  Outcome await_hosts(CallContext& context, NetCall& net) noexcept;
  Outcome check_host() noexcept;
  Outcome ask_for_mismatch(CallContext& context, NetCall& net, Outcome outcome) noexcept;
  void explain(CallContext& context, Outcome& outcome) const noexcept;  // who is late, and where

  const GroupPlace world_;
  const executor::Tables tables_;
  const PlanGeometry geometry_;
  const bool uncut_;
  HostDoorbell doorbell_;
  PlanMemory memory_;
  std::unique_ptr<executor::FarPorts> far_;  // with several hosts
  executor::Interpreter interpreter_;
  std::map<std::size_t, std::unique_ptr<executor::Program>> programs_;  // by bytes of a rank block
  std::size_t next_shadow_ = 0;
  bool joined_ = false;
};

}  // namespace tutti
