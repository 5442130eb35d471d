#include "models/shards.h"

#include <gtest/gtest.h>

#include "models/weight_slice.h"
#include "tests/support/expect_error.h"
#include "tests/support/specs.h"
#include "tests/support/tensors.h"

namespace minfer::test {
namespace {

int64_t by_element(const WeightInfo&) { return 1; }

ModelSpec spec_of(int64_t n_heads, int64_t n_kv_heads, int64_t head_dim, int64_t ffn_dim) {
  return llama_spec({.dim = 64,
                     .ffn_dim = ffn_dim,
                     .n_heads = n_heads,
                     .n_kv_heads = n_kv_heads,
                     .head_dim = head_dim,
                     .vocab_size = 131,
                     .trained_seq_len = 64});
}

// The rows or columns of a weight that all ranks have together, in their order.
std::vector<int64_t> covered(const Shards& shards, const WeightInfo& weight) {
  std::vector<int64_t> all;
  for (int rank = 0; rank < shards.n_ranks(); ++rank) {
    for (const ShardRange& range : shards.slice(weight, rank)) {
      for (int64_t i = 0; i < range.n; ++i) all.push_back(range.begin + i);
    }
  }
  return all;
}

std::vector<int64_t> counted(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(i);
  return all;
}

TEST(Shards, CoverEveryWeightOnce) {
  for (const int n_ranks : {1, 2, 4}) {
    const ModelSpec whole = spec_of(8, 4, 8, 176);
    const Shards shards(whole, n_ranks, by_element);
    for_each_weight(whole, [&](const WeightInfo& weight) {
      const int64_t n = weight.shape[weight.slice == SliceAxis::In ? 1 : 0];
      if (weight.slice != SliceAxis::None) {
        EXPECT_EQ(covered(shards, weight), counted(n)) << int(weight.role);
      } else {
        EXPECT_EQ(shards.slice(weight, n_ranks - 1), (std::vector<ShardRange>{{0, n}}));
      }
    });
    for (int rank = 0; rank < n_ranks; ++rank) {
      EXPECT_EQ(shards.spec(rank).layer(0).n_heads, 8 / n_ranks);
      EXPECT_EQ(shards.spec(rank).layer(0).n_kv_heads, 4 / n_ranks);
    }
  }
}

// What a rank's weights must be for its spec is what it is given.
TEST(Shards, HaveTheSizesOfTheRanksSpec) {
  struct Case {
    int64_t n_heads, n_kv_heads, ffn_dim;
    int n_ranks;
  };
  for (const Case& c :
       {Case{9, 3, 96, 2}, Case{9, 3, 96, 4}, Case{9, 3, 96, 8}, Case{8, 2, 80, 4},
        Case{8, 1, 64, 8}, Case{6, 6, 100, 4}, Case{5, 1, 33, 3}, Case{12, 4, 50, 5}}) {
    SCOPED_TRACE(cat(c.n_heads, " heads, ", c.n_kv_heads, " kv, ", c.n_ranks, " ranks"));
    const ModelSpec whole = spec_of(c.n_heads, c.n_kv_heads, 4, c.ffn_dim);
    const Shards shards(whole, c.n_ranks, by_element);
    for (int rank = 0; rank < c.n_ranks; ++rank) {
      const ModelSpec& spec = shards.spec(rank);
      EXPECT_EQ(spec.layer(0).n_heads % spec.layer(0).n_kv_heads, 0);
      std::vector<WeightInfo> of_whole;
      for_each_weight(whole, [&](const WeightInfo& weight) { of_whole.push_back(weight); });
      size_t i = 0;
      for_each_weight(spec, [&](const WeightInfo& weight) {
        ASSERT_LT(i, of_whole.size());
        const WeightInfo& from = of_whole[i++];
        ASSERT_EQ(from.role, weight.role);
        int64_t n = 0;
        for (const ShardRange& range : shards.slice(from, rank)) n += range.n;
        EXPECT_EQ(n, weight.shape[from.slice == SliceAxis::In ? 1 : 0]) << int(weight.role);
      });
      // Each local query head finds its own key/value head.
      const int64_t per_kv = c.n_heads / c.n_kv_heads;
      const int64_t local_per_kv = spec.layer(0).n_heads / spec.layer(0).n_kv_heads;
      std::vector<int64_t> q_rows, kv_rows;
      for (const WeightInfo& weight : of_whole) {
        if (weight.layer != 0) continue;
        const bool is_q = weight.role == WeightRole::Wq, is_k = weight.role == WeightRole::Wk;
        if (!is_q && !is_k) continue;
        for (const ShardRange& range : shards.slice(weight, rank)) {
          for (int64_t row = 0; row < range.n; row += 4) {
            (is_q ? q_rows : kv_rows).push_back((range.begin + row) / 4);
          }
        }
      }
      for (size_t q = 0; q < q_rows.size(); ++q) {
        EXPECT_EQ(kv_rows[q / size_t(local_per_kv)], q_rows[q] / per_kv) << rank << ' ' << q;
      }
    }
  }
}

// While there are as many key/value heads as ranks, none is in two caches.
// Ranks share the hidden elements of each expert, and those of the shared one.
TEST(Shards, CutEveryExpert) {
  ModelSpec whole = spec_of(8, 4, 8, 128);
  for (LayerSpec& layer : whole.layers) {
    layer.n_experts = 3;
    layer.n_active_experts = 2;
    layer.shared_ffn_dim = 256;
    layer.shared_gate = true;
  }
  const Shards shards(whole, 4, by_element);
  int64_t n_sliced = 0;
  for_each_weight(whole, [&](const WeightInfo& weight) {
    const int64_t n = weight.shape[weight.slice == SliceAxis::In ? 1 : 0];
    if (weight.slice != SliceAxis::None) {
      EXPECT_EQ(covered(shards, weight), counted(n)) << int(weight.role);
      n_sliced += weight.is_of_expert();
    } else {
      EXPECT_EQ(shards.slice(weight, 3), (std::vector<ShardRange>{{0, n}}));
    }
  });
  EXPECT_EQ(n_sliced, 2 * 3 * 3);
  EXPECT_EQ(shards.spec(1).layer(0).ffn_dim, 32);
  EXPECT_EQ(shards.spec(1).layer(0).shared_ffn_dim, 64);
  EXPECT_EQ(shards.spec(1).layer(0).n_experts, 3);
}

TEST(Shards, CutKeyAndValueHeadsIfThereAreEnough) {
  const ModelSpec whole = spec_of(9, 3, 4, 96);
  for (const int n_ranks : {2, 3}) {
    const Shards shards(whole, n_ranks, by_element);
    int64_t n_kv_heads = 0;
    for (int rank = 0; rank < n_ranks; ++rank) n_kv_heads += shards.spec(rank).layer(0).n_kv_heads;
    EXPECT_EQ(n_kv_heads, 3) << n_ranks;
  }
}

// Columns that share a scale stay together.
TEST(Shards, CutBetweenGroups) {
  const ModelSpec whole = spec_of(8, 8, 16, 352);
  const Shards shards(whole, 4, [](const WeightInfo&) { return int64_t{32}; });
  for_each_weight(whole, [&](const WeightInfo& weight) {
    if (weight.slice != SliceAxis::In) return;
    for (int rank = 0; rank < 4; ++rank) {
      for (const ShardRange& range : shards.slice(weight, rank)) {
        EXPECT_EQ(range.begin % 32, 0);
        EXPECT_EQ(range.n % 32, 0);
      }
    }
    const int64_t n = weight.shape[1];
    EXPECT_EQ(covered(shards, weight), counted(n));
  });
}

TEST(Shards, RefuseWithTheNumbersThatWork) {
  const ModelSpec whole = spec_of(4, 2, 16, 128);
  expect_error(ErrorKind::Usage, "--tp 8: this model can be cut for 1 to 4 ranks",
               [&] { Shards(whole, 8, by_element); });
  // Groups of 32 columns are two heads; 128 elements are four groups.
  expect_error(ErrorKind::Usage, "--tp 4: this model can be cut for 1 to 2 ranks",
               [&] { Shards(whole, 4, [](const WeightInfo&) { return int64_t{32}; }); });
}

TEST(WeightSlice, TakesRowsAndColumns) {
  const HostTensor x = random_normal(1, {6, 10}, DType::F16);
  const std::vector<ShardRange> ranges = {{4, 2}, {1, 1}, {1, 1}};
  const HostTensor rows = take_rows(x, ranges), columns = take_columns(x, ranges);
  EXPECT_EQ(rows.view().shape, (Shape{4, 10}));
  EXPECT_EQ(columns.view().shape, (Shape{6, 4}));
  const std::vector<int64_t> from = {4, 5, 1, 1};
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 10; ++j) {
      EXPECT_EQ(rows.at(i * 10 + j), x.at(from[size_t(i)] * 10 + j));
    }
    for (int64_t j = 0; j < 6; ++j) {
      EXPECT_EQ(columns.at(j * 4 + i), x.at(j * 10 + from[size_t(i)]));
    }
  }
}

TEST(WeightSlice, TakesGroupsOfQuantizedMatrices) {
  constexpr int64_t kOut = 5, kIn = 96;
  for (const DType codes : {DType::U4, DType::U8}) {
    for (const int64_t group : {int64_t{32}, kIn}) {
      for (const bool asymmetric : {false, true}) {
        const HostQuantizedMatrix x =
            make_quantized_matrix(codes, DType::F16, kOut, kIn, group, asymmetric);
        auto* const bytes = static_cast<uint8_t*>(x.codes.view().data);
        for (int64_t i = 0; i < x.codes.view().n_bytes(); ++i) bytes[i] = uint8_t(i * 37 + 11);
        for (int64_t i = 0; i < x.scales.view().n_elements(); ++i) {
          x.scales.as<f16>()[i] = from_f32<f16>(0.01f * float(i + 1));
          if (asymmetric) x.mins.as<float>()[i] = -0.1f * float(i);
        }
        const std::vector<ShardRange> ranges = {{64, 32}, {0, 32}};
        const HostQuantizedMatrix taken = take_columns(x.view(), ranges);
        std::vector<float> row(kIn), cut(64);
        for (int64_t i = 0; i < kOut; ++i) {
          dequantize_row(row.data(), x.view(), i);
          dequantize_row(cut.data(), taken.view(), i);
          for (size_t j = 0; j < 64; ++j) {
            EXPECT_EQ(cut[j], row[j < 32 ? 64 + j : j - 32]) << i << ' ' << j;
          }
        }
        const std::vector<ShardRange> of_rows = {{3, 2}};
        dequantize_row(row.data(), x.view(), 4);
        std::vector<float> whole_row(kIn);
        dequantize_row(whole_row.data(), take_rows(x.view(), of_rows).view(), 1);
        EXPECT_EQ(whole_row, row);
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
