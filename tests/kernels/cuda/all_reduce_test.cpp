#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/comm/communicator.h"
#include "kernels/comm/ring.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/card_ranks.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

#define MINFER_NEEDS_TWO_CARDS() \
  if (n_cuda_devices() < 2) GTEST_SKIP() << "needs two CUDA cards"

constexpr AllReduceKind kKinds[] = {AllReduceKind::OneShot, AllReduceKind::TwoShot,
                                    AllReduceKind::Ring};

// A tensor of each rank, on the host.
using OfAll = std::vector<HostTensor>;

OfAll random_of_all(int n_ranks, uint64_t seed, const Shape& shape, DType dtype) {
  OfAll all;
  for (int rank = 0; rank < n_ranks; ++rank) {
    all.push_back(random_normal(seed * 16 + uint64_t(rank), shape, dtype));
  }
  return all;
}

void expect_same_bits(const OfAll& all) {
  for (const HostTensor& other : all) {
    EXPECT_EQ(std::memcmp(all[0].view().data, other.view().data, size_t(other.view().n_bytes())),
              0);
  }
}

// The sum of element i in float64, and the largest error of a sum over n ranks, of which each
// partial sum is rounded to f32 and then to the type: (n - 1) of them, as a fraction of the sum of
// the magnitudes; with the sizes of subnormal numbers.
struct Expected {
  double sum = 0, error = 0;
};
Expected expected(const OfAll& parts, int64_t i) {
  const DType dtype = parts[0].view().dtype;
  double sum = 0, magnitude = 0;
  for (const HostTensor& part : parts) {
    sum += double(part.at(i));
    magnitude += std::abs(double(part.at(i)));
  }
  const double n = double(parts.size());
  const double subnormal = dtype == DType::F16 ? 0x1p-25 : kSmallestNormal;
  return {sum, n * (1.01 * (unit_roundoff(dtype) + kU) * magnitude + subnormal)};
}

// One all-reduce of all ranks: what goes in, and what comes out.
struct Operation {
  OfAll parts, residuals;  // residuals: all alike, or none
  std::optional<AllReduceKind> kind;
  int n_channels = 0;
  OfAll results;  // of the residual stream if there is one, else of the parts

  void check() const {
    expect_same_bits(results);
    const bool adds = !residuals.empty();
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < parts[0].view().n_elements(); ++i) {
      Expected e = expected(parts, i);
      if (adds) {
        e.sum += double(residuals[0].at(i));
        e.error += kU * (std::abs(e.sum) + e.error);
      }
      // So that NaN is wrong, too.
      n_wrong += !(std::abs(double(results[0].at(i)) - e.sum) <= e.error);
    }
    EXPECT_EQ(n_wrong, 0);
  }
};

// Runs them in a row on the cards, without waiting for one before the next.
void run(RankGroup& group, std::vector<Operation>& operations) {
  struct OnCard {
    DeviceTensor part, residual;
  };
  std::vector<std::vector<OnCard>> on_cards(size_t(group.n_ranks()));
  group.run([&](int rank) {
    for (const Operation& o : operations) {
      OnCard& t = on_cards[size_t(rank)].emplace_back();
      t.part = group.backend(rank).upload(o.parts[size_t(rank)]);
      if (!o.residuals.empty()) t.residual = group.backend(rank).upload(o.residuals[0]);
    }
    group.backend(rank).synchronize();
  });
  group.run([&](int rank) {
    Communicator& own = *group.backend(rank).communicator();
    for (size_t i = 0; i < operations.size(); ++i) {
      const OnCard& t = on_cards[size_t(rank)][i];
      own.set_channels(operations[i].n_channels);
      if (operations[i].kind) {
        EXPECT_TRUE(own.all_reduce_by(*operations[i].kind, t.part, t.residual));
      } else if (t.residual) {
        EXPECT_TRUE(own.all_reduce_add(t.residual, t.part));
      } else {
        own.all_reduce(t.part);
      }
    }
    own.set_channels(0);
    group.backend(rank).synchronize();
  });
  group.check();
  for (size_t i = 0; i < operations.size(); ++i) {
    for (int rank = 0; rank < group.n_ranks(); ++rank) {
      const OnCard& t = on_cards[size_t(rank)][i];
      operations[i].results.push_back(
          group.backend(rank).download(t.residual ? t.residual.view() : t.part.view()));
    }
  }
}

class CudaAllReduce : public testing::TestWithParam<DType> {
 protected:
  Operation make(const Shape& shape, bool adds, std::optional<AllReduceKind> kind) {
    Operation o{.parts = random_of_all(n_ranks_, ++seed_, shape, GetParam()),
                .residuals = {},
                .kind = kind,
                .results = {}};
    if (adds) o.residuals = random_of_all(1, ++seed_, shape, DType::F32);
    return o;
  }

  int n_ranks_ = 2;
  uint64_t seed_ = 0;
};

TEST_P(CudaAllReduce, EveryAlgorithmNearFloat64) {
  MINFER_NEEDS_TWO_CARDS();
  const auto backend = card_ranks(n_ranks_);
  // Around words of 8 and of 16 bytes, blocks, rounds of a block, slots, and limits of algorithms.
  for (const Shape& shape :
       {Shape{1, 1}, Shape{1, 2}, Shape{1, 7}, Shape{1, 8}, Shape{1, 24}, Shape{3, 1003},
        Shape{1, 4096}, Shape{1, 7680}, Shape{1, 7688}, Shape{1, 131080}, Shape{1, 262144},
        Shape{1, 262152}, Shape{5, 52429}, Shape{1, 1 << 20}, Shape{9, 131080}, Shape{1, 2097160},
        Shape{1, 5000008}}) {
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(cat(shape[0], " x ", shape[1], adds ? ", residual" : ""));
      std::vector<Operation> operations;
      operations.push_back(make(shape, adds, {}));
      const int64_t n_bytes = operations[0].parts[0].view().n_bytes();
      for (const AllReduceKind kind : kKinds) {
        const bool takes =
            kind == AllReduceKind::OneShot ? n_bytes <= 512 << 10 : n_bytes % 16 == 0;
        if (takes) operations.push_back(make(shape, adds, kind));
      }
      run(*backend->ranks(), operations);
      for (const Operation& o : operations) o.check();
    }
  }
}

TEST_P(CudaAllReduce, ManyOfAllKindsInARow) {
  MINFER_NEEDS_TWO_CARDS();
  const auto backend = card_ranks(n_ranks_);
  std::mt19937_64 random(11);
  const auto draw = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
  for (int round = 0; round < 5; ++round) {
    std::vector<Operation> operations;
    for (int i = 0; i < 60; ++i) {
      const int64_t n = 8 * (1 + draw(draw(4) == 0 ? 40'000 : 2'000));
      Operation o = make({1, n}, draw(2) == 0, {});
      if (draw(4) > 0) o.kind = kKinds[draw(3)];
      const bool is_short = o.parts[0].view().n_bytes() <= 512 << 10;
      if (o.kind == AllReduceKind::OneShot && !is_short) o.kind = {};
      o.n_channels = int(draw(3) == 0 ? 1 + draw(64) : 0);
      operations.push_back(std::move(o));
    }
    run(*backend->ranks(), operations);
    for (const Operation& o : operations) o.check();
  }
}

// A graph counts its operations itself, so it can be replayed.
TEST_P(CudaAllReduce, InAGraph) {
  MINFER_NEEDS_TWO_CARDS();
  const auto backend = card_ranks(n_ranks_);
  RankGroup& group = *backend->ranks();
  constexpr int64_t kN = 70'000;  // small integers: sums are exact
  constexpr int kReplays = 2;
  OfAll inputs, results;
  for (int rank = 0; rank < n_ranks_; ++rank) {
    HostTensor& x = inputs.emplace_back(GetParam(), Shape{1, kN});
    visit_float(GetParam(), [&]<typename T>() {
      for (int64_t i = 0; i < kN; ++i) x.as<T>()[i] = from_f32<T>(float((i + rank) % 3));
    });
    results.emplace_back(GetParam(), Shape{1, kN});
  }
  std::vector<DeviceTensor> xs(static_cast<size_t>(n_ranks_));
  group.run([&](int rank) {
    xs[size_t(rank)] = group.backend(rank).upload(inputs[size_t(rank)]);
    group.backend(rank).synchronize();
  });
  group.run([&](int rank) {
    Backend& own = group.backend(rank);
    const Tensor x = xs[size_t(rank)];
    const cudaStream_t stream = dynamic_cast<cuda::CudaBackend&>(own).stream();
    const cuda::GraphExec graph = cuda::capture_graph(stream, [&] {
      for (const AllReduceKind kind : kKinds) own.communicator()->all_reduce_by(kind, x);
    });
    for (int i = 0; i < kReplays; ++i) MINFER_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream));
    own.download_into(results[size_t(rank)], x);
  });
  group.check();
  for (int64_t i = 0; i < kN; ++i) {
    float sum = 0;
    for (const HostTensor& input : inputs) sum += input.at(i);
    for (int k = 1; k < kReplays * 3; ++k) sum *= float(n_ranks_);
    for (const HostTensor& result : results) ASSERT_EQ(result.at(i), sum) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaAllReduce, testing::Values(DType::F32, DType::F16, DType::BF16),
                         [](const auto& info) { return cat(info.param); });

class CudaAllReduceNorm : public testing::TestWithParam<DType> {};

TEST_P(CudaAllReduceNorm, NearFloat64) {
  MINFER_NEEDS_TWO_CARDS();
  constexpr int kRanks = 2;
  constexpr float kEps = 1e-5f;
  const auto backend = card_ranks(kRanks);
  RankGroup& group = *backend->ranks();
  uint64_t seed = 0;
  for (const Shape& shape : {Shape{1, 4}, Shape{2, 36}, Shape{1, 1024}, Shape{3, 1028},
                             Shape{1, 4096}, Shape{8, 4096}, Shape{16, 4096}, Shape{61, 4096},
                             Shape{5, 4100}, Shape{3, 8192}, Shape{2, 11008}, Shape{15, 16384}}) {
    SCOPED_TRACE(cat(shape[0], " x ", shape[1]));
    const int64_t dim = shape[1];
    Operation o{.parts = random_of_all(kRanks, ++seed, shape, GetParam()),
                .residuals = random_of_all(1, ++seed, shape, DType::F32),
                .kind = {},
                .results = {}};
    const HostTensor weight = random_normal(++seed, {dim}, GetParam());
    HostTensor nan(GetParam(), shape);
    std::memset(nan.view().data, 0xff, size_t(nan.view().n_bytes()));
    o.results.resize(kRanks);
    OfAll normed(kRanks);
    group.run([&](int rank) {
      Backend& own = group.backend(rank);
      const DeviceTensor part = own.upload(o.parts[size_t(rank)]), w = own.upload(weight);
      const DeviceTensor residual = own.upload(o.residuals[0]), out = own.upload(nan);
      EXPECT_TRUE(own.communicator()->all_reduce_add_norm(residual, part, out, w, kEps));
      o.results[size_t(rank)] = own.download(residual);
      normed[size_t(rank)] = own.download(out);
    });
    group.check();
    o.check();
    expect_same_bits(normed);
    // Up to 16 squares of a thread, 10 steps over lanes and warps, the square root and two
    // products: fewer than 40 roundings in f32, and one to the type.
    const double relative = unit_roundoff(GetParam()) + 40 * kU;
    int64_t n_wrong = 0;
    for (int64_t row = 0; row < shape[0]; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double x = double(o.results[0].at(row * dim + i));
        squares += x * x;
      }
      const double scale = 1 / std::sqrt(squares / double(dim) + double(kEps));
      for (int64_t i = 0; i < dim; ++i) {
        const double want = double(o.results[0].at(row * dim + i)) * scale * double(weight.at(i));
        const double got = double(normed[0].at(row * dim + i));
        n_wrong += !(std::abs(got - want) <= relative * std::abs(want) + 0x1p-25);
      }
    }
    EXPECT_EQ(n_wrong, 0);
  }
}

// What it refuses, the backend does by other operations.
TEST_P(CudaAllReduceNorm, RefusesWhatItCannotDo) {
  MINFER_NEEDS_TWO_CARDS();
  const auto backend = card_ranks(2);
  RankGroup& group = *backend->ranks();
  for (const Shape& shape : {Shape{1, 4095}, Shape{65, 4096}, Shape{1, 32768}}) {
    group.run([&](int rank) {
      Backend& own = group.backend(rank);
      const DeviceTensor part = own.allocate(GetParam(), shape);
      const DeviceTensor residual = own.allocate(DType::F32, shape);
      const DeviceTensor w = own.allocate(GetParam(), {shape[1]});
      EXPECT_FALSE(own.communicator()->all_reduce_add_norm(residual, part, part, w, 1e-5f));
    });
  }
}

// Long sums whose parts are made row by row while others travel, several in a row on other numbers:
// some with an all-reduce by kernels behind each, some after a sum that one rank began alone.
TEST_P(CudaAllReduce, MadeSumsNearFloat64) {
  MINFER_NEEDS_TWO_CARDS();
  if (GetParam() == DType::F32) GTEST_SKIP() << "parts have the type of activations";
  const auto backend = card_ranks(n_ranks_);
  RankGroup& group = *backend->ranks();
  constexpr float kEps = 1e-5f;
  constexpr size_t kSums = 5;
  struct Case {
    Shape shape;
    bool kernels_between, interrupted;
  };
  for (const auto& [shape, kernels_between, interrupted] :
       {Case{{1024, 64}, true, false}, Case{{1024, 64}, false, true},
        Case{{1537, 4096}, false, false}, Case{{2048, 1003}, true, true}}) {
    SCOPED_TRACE(cat(shape[0], " x ", shape[1], kernels_between ? ", kernels between" : "",
                     interrupted ? ", interrupted" : ""));
    std::vector<Operation> sums;
    for (size_t i = 0; i < kSums; ++i) sums.push_back(make(shape, false, {}));
    const HostTensor start = random_normal(1, shape);
    const HostTensor weight = random_normal(2, {shape[1]}, GetParam());
    if (interrupted) {
      const auto one_fails = [&](int rank) {
        if (rank == 1) throw Error(ErrorKind::Input, "as a test wants it");
        Backend& own = group.backend(rank);
        const DeviceTensor residual = own.upload(start), w = own.upload(weight);
        const DeviceTensor out = own.allocate(GetParam(), shape);
        own.communicator()->all_reduce_made({residual, out, w, kEps, [](Tensor, int64_t) {}});
      };
      EXPECT_THROW(group.run(one_fails), Error);
    }
    OfAll streams(2), normed(2);
    group.run([&](int rank) {
      auto& own = dynamic_cast<cuda::CudaBackend&>(group.backend(rank));
      std::vector<DeviceTensor> parts;
      for (const Operation& o : sums) parts.push_back(own.upload(o.parts[size_t(rank)]));
      const DeviceTensor residual = own.upload(start), w = own.upload(weight);
      const DeviceTensor out = own.upload(random_normal(9, shape, GetParam(), NAN));
      const DeviceTensor other = own.upload(random_normal(3, shape, GetParam()));
      own.synchronize();
      for (const DeviceTensor& part : parts) {
        const auto make_rows = [&](Tensor rows, int64_t first) {
          const Tensor from = part.view().rows(first, rows.shape[0]);
          MINFER_CUDA_CHECK(cudaMemcpyAsync(rows.data, from.data, size_t(from.n_bytes()),
                                            cudaMemcpyDeviceToDevice, own.stream()));
        };
        EXPECT_TRUE(own.communicator()->all_reduce_made({residual, out, w, kEps, make_rows}));
        if (kernels_between) own.communicator()->all_reduce(other);
      }
      streams[size_t(rank)] = own.download(residual);
      normed[size_t(rank)] = own.download(out);
    });
    group.check();
    expect_same_bits(streams);
    expect_same_bits(normed);
    int64_t n_wrong = 0;
    const int64_t n = shape[1];
    for (int64_t row = 0; row < shape[0]; ++row) {
      double squares = 0;
      for (int64_t i = row * n; i < (row + 1) * n; ++i) {
        double sum = double(start.at(i)), magnitude = std::abs(sum);
        for (const Operation& o : sums) {
          for (const HostTensor& part : o.parts) {
            sum += double(part.at(i));
            magnitude += std::abs(double(part.at(i)));
          }
        }
        // Each of the 2 kSums additions rounds once, to f32.
        const double error = 2 * kSums * 1.01 * kU * magnitude;
        n_wrong += !(std::abs(double(streams[0].at(i)) - sum) <= error);
        squares += std::pow(double(streams[0].at(i)), 2);
      }
      const double scale = 1 / std::sqrt(squares / double(n) + double(kEps));
      for (int64_t k = 0; k < n; ++k) {
        const double want = double(streams[0].at(row * n + k)) * scale * double(weight.at(k));
        // One rounding to the type, those of a sum of n squares, and a few more.
        const double error =
            std::abs(want) * (1.01 * unit_roundoff(GetParam()) + double(n + 8) * kU);
        const double subnormal = GetParam() == DType::F16 ? 0x1p-25 : kSmallestNormal;
        n_wrong += !(std::abs(double(normed[0].at(row * n + k)) - want) <= error + subnormal);
      }
    }
    EXPECT_EQ(n_wrong, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaAllReduceNorm, testing::Values(DType::F16, DType::BF16),
                         [](const auto& info) { return cat(info.param); });

}  // namespace
}  // namespace minfer::test
