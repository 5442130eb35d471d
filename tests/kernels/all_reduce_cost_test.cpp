#include "kernels/comm/all_reduce_cost.h"

#include <gtest/gtest.h>

#include <vector>

namespace minfer::test {
namespace {

constexpr AllReduceKind kKinds[] = {AllReduceKind::Ring, AllReduceKind::Tree,
                                    AllReduceKind::OneShot, AllReduceKind::TwoShot,
                                    AllReduceKind::TwoLevel};
constexpr LinkCost kNvlink{.alpha = 2e-6, .beta = 300e9}, kNetwork{.alpha = 6e-6, .beta = 50e9};

// The formulas say what the schedules take, message by message.
TEST(AllReduceCost, FormulasAreThoseOfTheSchedules) {
  for (const int n : {2, 3, 4, 5, 8, 16, 64, 256}) {
    for (const int per_host : {4, 8, 256}) {
      const RankTopology ranks{
          .n_ranks = n, .ranks_per_host = per_host, .inside = kNvlink, .between = kNetwork};
      for (const double bytes : {1024.0, 65536.0, 1e6, 256e6}) {
        for (const AllReduceKind kind : kKinds) {
          if (!applies(kind, ranks)) continue;
          const double formula = predicted_seconds(kind, ranks, bytes);
          const double simulated = simulated_seconds(kind, ranks, bytes);
          // Without a power of two, branches of the tree are shorter; a host that is not full has
          // fewer neighbours inside.
          const bool is_even =
              kind == AllReduceKind::Tree ? (n & (n - 1)) == 0 : n <= per_host || n % per_host == 0;
          if (!is_even) continue;
          EXPECT_NEAR(simulated / formula, 1, n <= per_host ? 0.01 : 0.1)
              << name_of(kind) << ' ' << n << " ranks, " << per_host << " a host, " << bytes;
        }
      }
    }
  }
}

TEST(AllReduceCost, FitsTheLinkThatMadeTheSamples) {
  for (const AllReduceKind kind : {AllReduceKind::Ring, AllReduceKind::OneShot}) {
    for (const int n : {2, 8}) {
      const RankTopology ranks{
          .n_ranks = n, .ranks_per_host = n, .inside = kNvlink, .between = kNetwork};
      std::vector<AllReduceSample> samples;
      for (double bytes = 1024; bytes < 1e9; bytes *= 2) {
        const double noise = samples.size() % 2 == 0 ? 1.02 : 0.98;
        samples.push_back({bytes, predicted_seconds(kind, ranks, bytes) * noise});
      }
      const LinkFit fit = fit_link(kind, n, samples);
      EXPECT_NEAR(fit.link.alpha / kNvlink.alpha, 1, 0.03) << name_of(kind);
      EXPECT_NEAR(fit.link.beta / kNvlink.beta, 1, 0.03) << name_of(kind);
      EXPECT_LE(fit.worst, 0.05);
      EXPECT_GE(fit.worst, 0.01);
    }
  }
}

// A ring's bytes are least, a tree's steps are fewest.
TEST(AllReduceCost, RingsWinWithLargeMessagesAndTreesWithSmallOnes) {
  const RankTopology ranks{
      .n_ranks = 64, .ranks_per_host = 64, .inside = kNvlink, .between = kNetwork};
  EXPECT_LT(predicted_seconds(AllReduceKind::Tree, ranks, 1024),
            predicted_seconds(AllReduceKind::Ring, ranks, 1024));
  EXPECT_LT(predicted_seconds(AllReduceKind::Ring, ranks, 256e6),
            predicted_seconds(AllReduceKind::Tree, ranks, 256e6));
}

}  // namespace
}  // namespace minfer::test
