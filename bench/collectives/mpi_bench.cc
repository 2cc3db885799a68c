// An MPI library under the common benchmark loop: mpirun -np N mpi_bench [options of harness.h].
#include <mpi.h>

#include "harness.h"

namespace {

class Mpi final : public bench::Implementation {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  std::string_view name() const override { return "openmpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool supports(std::string_view) const override { return true; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void run(std::string_view c, const float* in, float* out, std::size_t count) override {
    const int n = static_cast<int>(count);
    const MPI_Comm world = MPI_COMM_WORLD;
    if (c == "all_reduce")
      MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, world);
    else if (c == "all_gather")
      MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, world);
    else if (c == "reduce_scatter")
      MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, world);
    else if (c == "all_to_all")
      MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, world);
    else if (c == "broadcast")
      MPI_Bcast(out, n, MPI_FLOAT, 0, world);
    else if (c == "reduce")
      MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 0, world);
    else if (c == "gather")
      MPI_Gather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, world);
    else if (c == "scatter")
      MPI_Scatter(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, world);
    else
      MPI_Barrier(world);
  }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    Mpi impl;
    bench::bench_main(impl, bench::parse(argc, argv));
  }
  MPI_Finalize();
  return 0;
}
