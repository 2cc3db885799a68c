// oneCCL under the common benchmark loop: mpiexec -n N oneccl_bench [options of harness.h].
#include <mpi.h>

#include <oneapi/ccl.hpp>

#include "harness.h"

namespace {

class OneCcl final : public bench::Implementation {
 public:
  OneCcl() : comm_(make()) {}
  std::string_view name() const override { return "oneccl"; }
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  bool supports(std::string_view c) const override { return c != "gather" && c != "scatter"; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void run(std::string_view c, const float* in, float* out, std::size_t count) override {
    constexpr auto kSum = ccl::reduction::sum;
    constexpr auto kFloat = ccl::datatype::float32;
    if (c == "all_reduce")
      ccl::allreduce(in, out, count, kFloat, kSum, comm_).wait();
    else if (c == "all_gather")
      ccl::allgather(in, out, count, kFloat, comm_).wait();
    else if (c == "reduce_scatter")
      ccl::reduce_scatter(in, out, count, kFloat, kSum, comm_).wait();
    else if (c == "all_to_all")
      ccl::alltoall(in, out, count, kFloat, comm_).wait();
    else if (c == "broadcast")
      ccl::broadcast(out, count, kFloat, 0, comm_).wait();
    else if (c == "reduce")
      ccl::reduce(in, out, count, kFloat, kSum, 0, comm_).wait();
    else
      ccl::barrier(comm_);
  }

 private:
  static ccl::communicator make() {
    int rank = 0, size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> kvs;
    if (rank == 0) {
      kvs = ccl::create_main_kvs();
      address = kvs->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) kvs = ccl::create_kvs(address);
    return ccl::create_communicator(size, rank, kvs);
  }

  ccl::communicator comm_;
};

}  // namespace

int main(int argc, char** argv) {
  ccl::init();
  MPI_Init(&argc, &argv);
  {
    OneCcl impl;
    bench::bench_main(impl, bench::parse(argc, argv));
  }
  MPI_Finalize();
  return 0;
}
