#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/comm/ring.h"
#include "kernels/comm/thread_comm.h"
#include "models/weight_slice.h"
#include "tests/support/cpu_ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/float64_ops.h"
#include "tests/support/ring_sum.h"
#include "tests/support/sanitized.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

using std::chrono::milliseconds;

// Every chunk goes once round the ring and takes up every rank's part once, in the order of the
// ranks; then every rank gets it.
TEST(Ring, EveryRankEndsWithEverySum) {
  for (int n = 1; n <= 16; ++n) {
    SCOPED_TRACE(n);
    // What each rank holds of each chunk: the ranks whose parts are in its sum, in their order.
    std::vector<std::vector<std::vector<int>>> held(static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) held[size_t(rank)].assign(size_t(n), {rank});
    for (int i = 0; i < ring_steps(n); ++i) {
      const auto before = held;
      for (int rank = 0; rank < n; ++rank) {
        const RingStep step = ring_step(n, rank, i);
        const int from = (rank + n - 1) % n;
        EXPECT_EQ(ring_step(n, from, i).send, step.receive);
        EXPECT_EQ(ring_step(n, from, i).reduces, step.reduces);
        std::vector<int> sum = before[size_t(from)][size_t(step.receive)];
        if (step.reduces) sum.push_back(rank);
        held[size_t(rank)][size_t(step.receive)] = sum;
      }
    }
    for (int rank = 0; rank < n; ++rank) {
      for (int chunk = 0; chunk < n; ++chunk) {
        std::vector<int> expected;
        for (int k = 0; k < n; ++k) expected.push_back((chunk + k) % n);
        EXPECT_EQ(held[size_t(rank)][size_t(chunk)], expected) << rank << ' ' << chunk;
      }
    }
  }
}

TEST(Ring, ChunksCoverThePayload) {
  for (const int64_t n : {0, 1, 5, 16, 4097}) {
    for (int n_ranks = 1; n_ranks <= 16; ++n_ranks) {
      EXPECT_EQ(chunk_begin(n, n_ranks, 0), 0);
      EXPECT_EQ(chunk_begin(n, n_ranks, n_ranks), n);
      for (int c = 0; c < n_ranks; ++c) {
        EXPECT_LE(chunk_begin(n, n_ranks, c), chunk_begin(n, n_ranks, c + 1));
      }
    }
  }
}

// f(rank) on a thread for each rank.
template <typename F>
void on_threads(int n_ranks, F f) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n_ranks; ++rank) threads.emplace_back([&f, rank] { f(rank); });
  for (std::thread& thread : threads) thread.join();
}

// MINFER_LONG_TESTS=1: 100,000 of them.
TEST(ThreadRanks, RandomAllReducesEqualASerialReference) {
  const bool is_long = std::getenv("MINFER_LONG_TESTS") != nullptr;
  const int n_reductions = is_long ? 100'000 : kSanitized ? 600 : 3000;
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
  int done = 0;
  while (done < n_reductions) {
    const int n_ranks = 1 + int(draw(16));
    ThreadRanks ranks(n_ranks);
    constexpr int kInARow = 50;
    struct Reduction {
      std::vector<HostTensor> inputs, results;
    };
    std::vector<Reduction> all(kInARow);
    for (Reduction& r : all) {
      const DType dtype = std::array{DType::F32, DType::F16, DType::BF16}[size_t(draw(3))];
      const Shape shape{1 + draw(4), draw(8) == 0 ? 1 + draw(3000) : 1 + draw(60)};
      for (int rank = 0; rank < n_ranks; ++rank) {
        r.inputs.push_back(random_normal(random(), shape, dtype));
        r.results.push_back(random_normal(0, shape, dtype));
        std::memcpy(r.results.back().view().data, r.inputs.back().view().data,
                    size_t(r.inputs.back().view().n_bytes()));
      }
    }
    on_threads(n_ranks, [&](int rank) {
      for (Reduction& r : all) ranks.communicator(rank).all_reduce(r.results[size_t(rank)]);
    });
    for (const Reduction& r : all) {
      const Tensor x = r.inputs[0];
      visit_float(x.dtype, [&]<typename T>() {
        for (int64_t i = 0; i < x.n_elements(); ++i) {
          const float expected = ring_sum<T>(r.inputs, i / x.shape[1], i % x.shape[1]);
          for (const HostTensor& result : r.results) ASSERT_EQ(result.at(i), expected);
        }
      });
    }
    done += kInARow;
  }
}

// A row's bits are the same among other rows and alone.
TEST(ThreadRanks, RowsDoNotDependOnEachOther) {
  constexpr int kRanks = 4;
  constexpr int64_t kRows = 5, kColumns = 37;
  ThreadRanks ranks(kRanks);
  std::vector<HostTensor> together, alone;
  for (int rank = 0; rank < kRanks; ++rank) {
    together.push_back(random_normal(uint64_t(rank), {kRows, kColumns}));
    alone.push_back(random_normal(uint64_t(rank), {kRows, kColumns}));
  }
  on_threads(kRanks, [&](int rank) {
    ranks.communicator(rank).all_reduce(together[size_t(rank)]);
    for (int64_t row = 0; row < kRows; ++row) {
      ranks.communicator(rank).all_reduce(alone[size_t(rank)].view().rows(row, 1));
    }
  });
  for (int64_t i = 0; i < kRows * kColumns; ++i) EXPECT_EQ(together[0].at(i), alone[0].at(i));
}

TEST(ThreadRanks, GathersColumnsOfSeveralWidths) {
  const std::vector<int64_t> begins = {0, 3, 3, 10};  // the second rank has none
  constexpr int64_t kRows = 3, kColumns = 11;
  const int n_ranks = int(begins.size());
  ThreadRanks ranks(n_ranks);
  const HostTensor whole = random_normal(3, {kRows, kColumns});
  std::vector<HostTensor> outs(begins.size());
  on_threads(n_ranks, [&](int rank) {
    const int64_t begin = begins[size_t(rank)];
    const int64_t end = rank + 1 < n_ranks ? begins[size_t(rank) + 1] : kColumns;
    HostTensor part(DType::F32, {kRows, std::max<int64_t>(end - begin, 1)});
    Tensor view = part.view();
    view.shape.dims[1] = end - begin;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = begin; i < end; ++i) {
        part.as<float>()[row * (end - begin) + i - begin] = whole.at(row * kColumns + i);
      }
    }
    HostTensor& out = outs[size_t(rank)] = random_normal(9, {kRows, kColumns});
    for (int again = 0; again < 20; ++again) {
      ranks.communicator(rank).all_gather(out, view, begin);
    }
  });
  for (const HostTensor& out : outs) {
    for (int64_t i = 0; i < kRows * kColumns; ++i) EXPECT_EQ(out.at(i), whole.at(i));
  }
}

TEST(ThreadRanks, ARankThatDoesNotComeIsNamed) {
  ThreadRanks ranks(3, milliseconds(50));
  on_threads(3, [&](int rank) {
    HostTensor x = random_normal(1, {1, 9});
    if (rank == 1) return;  // it never comes
    try {
      ranks.communicator(rank).all_reduce(x);
      ADD_FAILURE() << "rank " << rank << " has a sum";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Peer);
      // Rank 2 waits for the rank before it; rank 0 for rank 2, which waits.
      EXPECT_NE(std::string(error.what()).find(rank == 2 ? "rank 1" : "rank 2"), std::string::npos)
          << error.what();
    }
  });
}

// x += scale * rms_norm(linear(input)), and the norm behind it, against float64. Two roundings of
// the matmul's terms, and those of norms: far below 2^-17 of the largest magnitude here.
TEST(ResidualOfRanks, PostNormIsOfTheSumOverRanks) {
  constexpr int64_t kRows = 3, kIn = 12, kOut = 10;
  constexpr float kScale = 0.3f, kEps = 1e-5f;
  const HostTensor x = random_normal(1, {kRows, kOut}), input = random_normal(2, {kRows, kIn});
  const HostTensor w = random_normal(3, {kOut, kIn}), bias = random_normal(4, {kOut});
  const HostTensor post = random_normal(5, {kOut}), next = random_normal(6, {kOut});
  float64::Values y = float64::matmul(doubles(input), doubles(w), kIn);
  for (size_t i = 0; i < y.size(); ++i) y[i] += double(bias.at(int64_t(i) % kOut));
  y = float64::rms_norm(y, doubles(post), double(kEps));
  float64::Values want = doubles(x);
  for (size_t i = 0; i < y.size(); ++i) want[i] += double(kScale) * y[i];
  const float64::Values want_normed = float64::rms_norm(want, doubles(next), double(kEps));
  for (const int n_ranks : {1, 2, 3}) {
    SCOPED_TRACE(n_ranks);
    const auto backend = cpu_ranks(n_ranks);
    std::vector<std::vector<float>> sums{size_t(n_ranks)}, normed{size_t(n_ranks)};
    const auto run = [&](int rank, Backend& own) {
      const int64_t n = kIn / n_ranks;
      const ShardRange columns{rank * n, n};
      const Linear linear{
          .weight = own.pack_matrix(take_columns(w.view(), std::span(&columns, 1)).view()),
          .bias = own.upload_vector(bias)};
      const DeviceTensor stream = own.upload(x), out = poisoned(own, {kRows, kOut});
      const DeviceTensor part =
          own.upload(take_columns(input.view(), std::span(&columns, 1)).view());
      const DeviceTensor post_weight = own.upload_vector(post),
                         next_weight = own.upload_vector(next);
      const NormArgs next_norm{
          .out = out, .x = stream, .weight = next_weight, .bias = {}, .eps = kEps};
      own.add_to_residual({.x = stream,
                           .input = part,
                           .linear = linear,
                           .post_norm = {.weight = post_weight, .kind = NormKind::Rms, .eps = kEps},
                           .scale = kScale,
                           .next = &next_norm});
      sums[size_t(rank)] = values_of(own, stream);
      normed[size_t(rank)] = values_of(own, out);
    };
    on_all_ranks(*backend, run);
    for (int rank = 0; rank < n_ranks; ++rank) {
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(double(sums[size_t(rank)][i]), want[i], 0x1p-17);
        EXPECT_NEAR(double(normed[size_t(rank)][i]), want_normed[i], 0x1p-17);
      }
    }
  }
}

// A norm over the heads of all ranks has the bits of one row, whatever the number of rows, and is
// that of the whole row within the roundings of its sum.
TEST(ResidualOfRanks, WholeWidthNormIsOverAllRanks) {
  constexpr int64_t kRows = 5, kHeads = 6, kDim = 7;
  constexpr float kEps = 1e-5f;
  const HostTensor x = random_normal(1, {kRows, kHeads * kDim});
  const HostTensor weight = random_normal(2, {kHeads * kDim});
  const float64::Values want = float64::rms_norm(doubles(x), doubles(weight), double(kEps));
  for (const int n_ranks : {2, 3}) {
    SCOPED_TRACE(n_ranks);
    const auto backend = cpu_ranks(n_ranks);
    on_all_ranks(*backend, [&](int rank, Backend& own) {
      const int64_t n_heads = kHeads / n_ranks;
      const ShardRange columns{rank * n_heads * kDim, n_heads * kDim};
      const DeviceTensor heads = own.upload(
          take_columns(x.view(), std::span(&columns, 1)).view().reshaped({kRows, n_heads, kDim}));
      const DeviceTensor w =
          own.upload_vector(take_rows(weight.view(), std::span(&columns, 1)).view());
      own.norm_heads(heads, QkNorm::WholeWidth, w, kEps);
      const std::vector<float> got = values_of(own, heads);
      for (int64_t i = 0; i < std::ssize(got); ++i) {
        const int64_t at = i / columns.n * kHeads * kDim + columns.begin + i % columns.n;
        EXPECT_NEAR(double(got[size_t(i)]), want[size_t(at)],
                    (double(kHeads * kDim) + 16) * kU * std::abs(want[size_t(at)]));
      }
    });
  }
}

TEST(RankGroup, AnErrorOfOneRankEndsTheWaitsOfAll) {
  const auto backend = cpu_ranks(4);
  RankGroup& group = *backend->ranks();
  ASSERT_EQ(group.n_ranks(), 4);
  for (const int failing : {0, 2}) {
    const std::string name = failing == 0 ? "" : "rank 2: ";
    expect_error(ErrorKind::Numeric, name + "something is wrong", [&] {
      group.run([&](int rank) {
        MINFER_REQUIRE(Numeric, rank != failing, "something is wrong");
        const Linear linear{.weight = group.backend(rank).pack_matrix(random_normal(1, {8, 8})),
                            .bias = {}};
        const DeviceTensor x = group.backend(rank).upload(random_normal(2, {1, 8}));
        group.backend(rank).add_to_residual({.x = x, .input = x, .linear = linear});
      });
    });
    // The group is as good as new.
    std::vector<int> calls(4);
    group.run([&](int rank) {
      const DeviceTensor x = group.backend(rank).upload(random_normal(2, {1, 8}));
      const Linear linear{.weight = group.backend(rank).pack_matrix(random_normal(1, {8, 8})),
                          .bias = {}};
      group.backend(rank).add_to_residual({.x = x, .input = x, .linear = linear});
      ++calls[size_t(rank)];
    });
    EXPECT_EQ(calls, std::vector<int>(4, 1));
  }
}

// The other ranks wait in an all-reduce when one is cancelled.
TEST(RankGroup, PassesOnThatTheCallerWantedTheEnd) {
  const auto backend = cpu_ranks(3);
  RankGroup& group = *backend->ranks();
  EXPECT_THROW(group.run([&](int rank) {
    if (rank == 1) throw Cancelled();
    const DeviceTensor x = group.backend(rank).upload(random_normal(2, {1, 8}));
    const Linear linear{.weight = group.backend(rank).pack_matrix(random_normal(1, {8, 8})),
                        .bias = {}};
    group.backend(rank).add_to_residual({.x = x, .input = x, .linear = linear});
  }),
               Cancelled);
}

}  // namespace
}  // namespace minfer::test
