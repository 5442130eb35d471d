// Run by mpirun: random all-reduces and all-gathers between MPI processes have the bits of a serial
// reference. MINFER_LONG_TESTS=1: 100,000 of them.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "kernels/comm/mpi_comm.h"
#include "tests/support/ring_sum.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

// Every rank draws the same numbers, so each knows the inputs of all.
class Collectives {
 public:
  explicit Collectives(Communicator& communicator) : communicator_(communicator) {}

  void all_reduce() {
    const DType dtype = std::array{DType::F32, DType::F16, DType::BF16}[size_t(draw(3))];
    std::vector<HostTensor> inputs;
    const Shape shape{1 + draw(4), draw(8) == 0 ? 1 + draw(30'000) : 1 + draw(60)};
    for (int rank = 0; rank < n_ranks(); ++rank) {
      inputs.push_back(random_normal(random_(), shape, dtype));
    }
    HostTensor x(dtype, shape);
    const Tensor own = inputs[size_t(communicator_.rank())].view();
    std::memcpy(x.view().data, own.data, size_t(own.n_bytes()));
    communicator_.all_reduce(x);
    visit_float(dtype, [&]<typename T>() {
      for (int64_t i = 0; i < x.view().n_elements(); ++i) {
        const float want = ring_sum<T>(inputs, i / shape[1], i % shape[1]);
        MINFER_CHECK(x.at(i) == want, "all_reduce of ", dtype, ' ', shape, ": element ", i, " is ",
                     x.at(i), ", expected ", want);
      }
    });
  }

  void all_gather() {
    const Shape shape{1 + draw(4), 1 + draw(300)};
    const HostTensor whole = random_normal(random_(), shape);
    std::vector<int64_t> ends;  // of the columns of each rank; some have none
    for (int rank = 1; rank < n_ranks(); ++rank) ends.push_back(draw(shape[1] + 1));
    ends.push_back(shape[1]);
    std::ranges::sort(ends);
    const auto rank = size_t(communicator_.rank());
    const int64_t begin = rank == 0 ? 0 : ends[rank - 1], n = ends[rank] - begin;
    HostTensor part(DType::F32, {shape[0], std::max<int64_t>(n, 1)});
    Tensor own = part.view();
    own.shape.dims[1] = n;
    for (int64_t i = 0; i < shape[0] * n; ++i) {
      part.as<float>()[i] = whole.at(i / n * shape[1] + begin + i % n);
    }
    const HostTensor out = random_normal(9, shape);
    communicator_.all_gather(out.view(), own, begin);
    for (int64_t i = 0; i < whole.view().n_elements(); ++i) {
      MINFER_CHECK(out.at(i) == whole.at(i), "all_gather of ", shape, ": element ", i, " is ",
                   out.at(i), ", expected ", whole.at(i));
    }
  }

 private:
  int64_t draw(int64_t below) { return int64_t(random_() % uint64_t(below)); }
  int n_ranks() const { return communicator_.n_ranks(); }

  Communicator& communicator_;
  std::mt19937_64 random_{7};
};

void run(MpiProcess& process) {
  const int n_runs = std::getenv("MINFER_LONG_TESTS") != nullptr ? 100'000 : 600;
  Collectives collectives(process.communicator());
  for (int i = 0; i < n_runs; ++i) {
    collectives.all_reduce();
    if (i % 4 == 0) collectives.all_gather();
  }
  // Larger than one message of MPI may be here.
  HostTensor large(DType::F32, {1, int64_t{40} << 20});
  std::fill_n(large.as<float>(), large.view().n_elements(), 1.0f);
  process.communicator().all_reduce(large);
  MINFER_CHECK(large.at(0) == float(process.communicator().n_ranks()) &&
                   large.at(large.view().n_elements() - 1) == large.at(0),
               "all_reduce of 160 MB");

  const std::string text(100'000, 'a');
  MINFER_CHECK(process.from_rank_0(process.rank() == 0 ? text : "x") == text, "from_rank_0");
  MINFER_CHECK(process.from_rank_0("").empty(), "from_rank_0 of nothing");
  const int64_t n = process.communicator().n_ranks();
  MINFER_CHECK(process.sum(process.rank() + 1) == n * (n + 1) / 2, "sum");
  if (process.rank() == 0) std::printf("%d all-reduces of %d ranks\n", n_runs, int(n));
  process.finish();
}

}  // namespace
}  // namespace minfer::test

int main() {
  std::unique_ptr<minfer::MpiProcess> process;
  try {
    process = minfer::start_mpi({.on_lost_rank = [&](const minfer::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      process->end_all(7);
    }});
    minfer::test::run(*process);
    return 0;
  } catch (const minfer::Error& error) {
    std::fprintf(stderr, "%s: %s\n", process ? process->name().c_str() : "", error.what());
    if (process) process->end_all(static_cast<int>(error.kind()));
    return static_cast<int>(error.kind());
  }
}
