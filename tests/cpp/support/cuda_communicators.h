// Communicators of devices without a device, for plug-ins of tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithm/plan/verdict_store.h"
#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/limited.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/meeting_place.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/named_algorithm.h"
#include "device/registry.h"
#include "tutti/communicator.h"
#include "tutti/cuda/communicator.h"

namespace tutti::test {

// Checks calls and does nothing else; a plug-in overrides what it is about, run() at least. `Base`: StreamCommunicator,
// or what derives from it.
template <class Base>
class Bare : public Base {
 public:
  Bare(int rank, int size, const DeviceOptions& options) : rank_(rank), size_(size), options_(options) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return options_.name; }
  int device() const noexcept override { return std::max(options_.device, 0); }
  void check(const Call& call) const override { check_call(call, rank_, size_); }
  void exchange(const std::vector<DeviceMessage>&, DeviceStream, std::chrono::milliseconds) override {}
  DeviceStream own_stream() override { return nullptr; }
  void synchronize(DeviceStream) override {
    if (const auto error = this->failure()) throw Error(*error);
  }
  std::optional<Error> failure() const override { return std::nullopt; }
  void abort(const std::string&) noexcept override {}
  std::chrono::milliseconds timeout() const noexcept override { return options_.timeout; }
  void set_timeout(std::chrono::milliseconds) override {}
  std::string explain(const Call&) const override { return "bare"; }
  Metrics metrics() const override { return {}; }
  void reset_metrics() noexcept override {}
  std::string flight_record() const override { return {}; }
  std::uint64_t sequence() const noexcept override { return 0; }

 private:
  const int rank_, size_;
  const DeviceOptions options_;
};

// What CUDA's have beside.
class BareCommunicator : public Bare<CudaCommunicator> {
 public:
  using Bare::Bare;
  void set_algorithms(AlgorithmSet set) override { algorithms_ = std::move(set); }
  // As the real one, by the limits alone: what the function answers, or the first that was given, then those of files.
  std::uint64_t plan_for(const Call& call) const override {
    check(call);
    if (algorithms_.choose) {
      const UserAlgorithmPtr answer = algorithms_.choose(request_of(call, shape_of(call), rank()));
      if (answer != nullptr && fits(*answer, call)) return answer->identity();
    }
    for (const auto* list : {&algorithms_.algorithms, &files_}) {
      if (list == &algorithms_.algorithms && algorithms_.choose) continue;
      for (const UserAlgorithmPtr& each : *list) {
        if (fits(*each, call)) return each->identity();
      }
    }
    return 0;
  }
  void run_as(std::uint64_t plan, const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override {
    for (const auto* list : {&algorithms_.algorithms, &files_}) {
      for (const UserAlgorithmPtr& each : *list) {
        if (each->identity() != plan) continue;
        const AlgorithmChoice choice{each, {}};
        Call named = call;
        named.choice = &choice;
        return run(named, stream, timeout);
      }
    }
    run(call, stream, timeout);
  }
  void use_files(const DeviceOptions& options) {
    for (const PlanFile& file : load_plans(options.config->plan_path, size(), cache_folder(*options.config)).files) {
      files_.push_back(plan_algorithm(file));
    }
  }
  std::shared_ptr<CudaMemory> allocate(const std::string&, std::size_t) override { return nullptr; }
  std::uint32_t port_memory(const CudaRegion&) override { return 0; }
  void finish() noexcept override {}
  const std::string& transport() const noexcept override { return transport_; }
  const std::string& gpus() const noexcept override { return gpus_; }

 private:
  CallShape shape_of(const Call& call) const {
    CallShape shape;
    shape.collective = call.collective;
    shape.dtype = call.dtype;
    shape.op = call.op;
    shape.bytes = block_bytes(call, rank());
    shape.ranks = size();
    shape.root = call.root;
    return shape;
  }
  bool fits(const UserAlgorithm& algorithm, const Call& call) const {
    return algorithm.collective() == call.collective && limits_refusal(algorithm.limits(), shape_of(call)) == nullptr;
  }

  AlgorithmSet algorithms_;
  std::vector<UserAlgorithmPtr> files_;
  const std::string transport_ = "peer memory of nothing";
  const std::string gpus_ = "no GPU";
};

// Makes every call at once, by a Communicator on CPUs, in memory that the host reaches. `Base`: as above, without these
// calls.
template <class Base>
class OnHost : public Base {
 public:
  OnHost(Bootstrap& bootstrap, const DeviceOptions& options)
      : Base(bootstrap.rank(), bootstrap.size(), options), host_(made_at(bootstrap, options)) {}
  void run(const Call& call, DeviceStream, std::chrono::milliseconds timeout) override {
    Call here = call;
    here.may_overlap = false;  // the host looks
    if (call.collective == Collective::kBroadcast && call.root == host_->rank()) {
      // On the CPU a broadcast has one buffer.
      const std::size_t bytes = call.output.size(0);
      if (bytes > 0) std::memmove(call.output.data(0), call.input.data(0), bytes);
      here.input = here.output;
    }
    host_->run(here, timeout);
  }
  void set_algorithms(AlgorithmSet set) override { host_->set_algorithms(std::move(set)); }
  void prepare(const UserAlgorithmPtr&) override {}
  void exchange(const std::vector<DeviceMessage>& messages, DeviceStream, std::chrono::milliseconds timeout) override {
    std::vector<WorkPtr> works;
    for (const DeviceMessage& m : messages) {
      works.push_back(m.send ? host_->isend(m.data, m.bytes, DataType::kByte, m.peer, m.tag, timeout)
                             : host_->irecv(m.data, m.bytes, DataType::kByte, m.peer, m.tag, timeout));
    }
    for (const WorkPtr& work : works) work->wait();
  }
  std::optional<Error> failure() const override { return host_->failure(); }
  void abort(const std::string& reason) noexcept override { host_->abort(reason); }
  std::chrono::milliseconds timeout() const noexcept override { return host_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { host_->set_timeout(timeout); }
  std::string explain(const Call& call) const override { return host_->explain(call); }
  Metrics metrics() const override {
    Metrics metrics = host_->metrics();
    for (MetricsRow& row : metrics.rows) row.device = "cuda";
    return metrics;
  }
  void reset_metrics() noexcept override { host_->reset_metrics(); }
  std::string flight_record() const override { return host_->flight_record(); }
  std::uint64_t sequence() const noexcept override { return host_->sequence(); }

 private:
  // Where rank 0 says.
  static std::shared_ptr<Communicator> made_at(Bootstrap& bootstrap, const DeviceOptions& asked) {
    CommunicatorOptions options{asked.timeout, *asked.config, asked.name};
    MeetingPlaceBytes bytes{};
    if (bootstrap.rank() == 0) bytes = encode(offer_meeting_place("127.0.0.1"));
    const std::string given = bootstrap.all_gather("host", {bytes.data(), bytes.size()}, options.timeout).front();
    std::copy(given.begin(), given.end(), bytes.begin());
    const MeetingPlace place = *decode_meeting_place(bytes);
    const auto store = reach(place, options.timeout);
    auto made = Communicator::create(*store, "host", bootstrap.rank(), bootstrap.size(), options);
    bootstrap.all_gather("host, made", "", options.timeout);
    take_offer(place);
    return made;
  }

  const std::shared_ptr<Communicator> host_;
};

// Has a name and communicators, and no memory.
class BareDevice : public Device {
 public:
  std::string_view name() const noexcept override { return "cuda"; }
  void* allocate(std::size_t) override { return nullptr; }
  void deallocate(void*, std::size_t) noexcept override {}
  void copy(void*, const void*, std::size_t) const noexcept override {}
};

// What libtutti_<name>.so gives.
template <class Made>
constexpr DevicePlugin plugin_of(const char* name) noexcept {
  return {kDeviceAbiVersion, name, []() -> Device* { return new Made; },
          [](Device* device) noexcept { delete device; }};
}

}  // namespace tutti::test
