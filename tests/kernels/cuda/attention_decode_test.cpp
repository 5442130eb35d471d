#include "kernels/cuda/attention/decode.h"
#include "tests/kernels/cuda/attention_cases.h"

namespace minfer::test {
namespace {

using DecodeParam = std::tuple<Heads, DType, DType>;
class Decode : public testing::TestWithParam<DecodeParam> {};

// The launcher's choice, and others: one block alone at any length, a few with many positions each,
// more blocks than shares, shares of a single step, and more of them than one batch of the merge.
std::vector<cuda::attention::DecodeSplits> splits_of(const Heads& h, int64_t capacity) {
  return {cuda::attention::decode_splits(h.n_heads, h.n_kv_heads, capacity),
          {1, 256, 128},
          {5, 256, 128},
          {40, 16, 16},
          {3, 0, 64},
          {64, 128, 1}};
}

TEST_P(Decode, MatchesFloat64AndAppendsExactly) {
  MINFER_NEEDS_CUDA();
  const auto [h, dtype, cache_dtype] = GetParam();
  constexpr int64_t kCapacity = 4100;
  TestCache cache(1, cache_dtype, h, kCapacity);
  const int64_t rotary_dim = h.head_dim % 16 == 0 ? h.head_dim : h.head_dim / 4 * 2;
  const bool rotates = h.n_heads != 9;
  const HostTensor table = angles(kCapacity, rotary_dim);
  const DeviceTensor table_dev = to_device(table);
  const HostTensor* const used = rotates ? &table : nullptr;
  const auto all_splits = splits_of(h, kCapacity);
  std::vector<DeviceTensor> workspaces;
  for (const auto& splits : all_splits) {
    const int64_t n_bytes =
        cuda::attention::decode_workspace(h.n_heads, h.n_kv_heads, h.head_dim, splits);
    workspaces.push_back(cuda::allocate_device(DType::U8, {n_bytes}));
    MINFER_CUDA_CHECK(cudaMemset(workspaces.back().view().data, 0, size_t(n_bytes)));
  }
  const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});

  for (int pos :
       {0, 1, 15, 16, 31, 63, 64, 127, 128, 255, 256, 257, 383, 384, 500, 1999, 4095, 4099}) {
    const Shape q_shape{h.n_heads, h.head_dim}, kv_shape{h.n_kv_heads, h.head_dim};
    const HostTensor q = random_normal(uint64_t(pos) + 7, q_shape, dtype, 2);
    const HostTensor k = random_normal(uint64_t(pos) + 8, kv_shape, dtype);
    const HostTensor v = random_normal(uint64_t(pos) + 9, kv_shape, dtype);
    const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
    const DeviceTensor out = poisoned_device(dtype, {h.n_heads + 1, h.head_dim});
    MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
    std::vector<float64::Values> k_rows, v_rows;
    // The first choice is what the launcher makes; of the others only the output is looked at.
    for (size_t choice = 0; choice < all_splits.size(); ++choice) {
      const DeviceTensor& workspace = workspaces[choice];
      MINFER_CUDA_CHECK(cudaMemset(out.view().data, 0xFF, size_t(out.view().n_bytes())));
      const cuda::AttentionDecode step{.out = out.view().rows(0, h.n_heads),
                                       .q = q_dev,
                                       .k = k_dev,
                                       .v = v_dev,
                                       .rope = rotates ? table_dev.view() : Tensor(),
                                       .cache = &cache.layer,
                                       .pos = static_cast<const int*>(pos_dev.view().data),
                                       .scale = scale_of(h),
                                       .workspace = workspace.view().data};
      const auto& splits = all_splits[choice];
      const std::string where = cat("position ", pos, ", ", splits.n, " splits, ",
                                    splits.most_alone, " alone, at least ", splits.least);
      HostTensor got;
      for (int again = 0; again < 3; ++again) {
        if (choice == 0) cache.restore();
        poison(cache.layer, pos);
        if (choice == 0) {
          cuda::attention_decode(nullptr, step);
        } else {
          cuda::attention::decode(nullptr, step, splits);
        }
        HostTensor result = to_host(out);
        if (again > 0) {
          ASSERT_EQ(
              0, std::memcmp(got.view().data, result.view().data, size_t(result.view().n_bytes())))
              << where << ", run " << again;
        }
        got = std::move(result);
      }
      const int64_t counter_bytes = 4 * h.n_kv_heads * ((h.n_heads / h.n_kv_heads + 7) / 8);
      const HostTensor counters = to_host(workspace.view().rows(0, counter_bytes));
      for (int64_t i = 0; i < counter_bytes; ++i)
        ASSERT_EQ(static_cast<const uint8_t*>(counters.view().data)[i], 0) << where;

      // Row pos is as it should be, the rows before are as they were, those behind still poisoned.
      if (choice == 0) {
        for (int64_t head = 0; head < h.n_kv_heads; ++head) {
          const int64_t at = head * kCapacity + pos;
          put_row(rotated_row(k, head, h.head_dim, used, pos), at, cache.keys, cache.key_scales);
          put_row(rotated_row(v, head, h.head_dim, nullptr, pos), at, cache.values,
                  cache.value_scales);
        }
        KvLayer want;
        want.n_kv_heads = h.n_kv_heads;
        want.capacity = kCapacity;
        want.keys = to_device(cache.keys);
        want.values = to_device(cache.values);
        if (cache_dtype == DType::U8) {
          want.key_scales = to_device(cache.key_scales);
          want.value_scales = to_device(cache.value_scales);
        }
        poison(want, pos + 1);
        expect_same_bytes(cache.layer.keys, to_host(want.keys), where + ": keys");
        expect_same_bytes(cache.layer.values, to_host(want.values), where + ": values");
        if (cache_dtype == DType::U8) {
          expect_same_bytes(cache.layer.key_scales, to_host(want.key_scales), where);
          expect_same_bytes(cache.layer.value_scales, to_host(want.value_scales), where);
        }
        for (int64_t head = 0; head < h.n_kv_heads; ++head) {
          k_rows.push_back(cache.head_values(true, head));
          v_rows.push_back(cache.head_values(false, head));
        }
      }
      PlainErrors errors;
      for (int64_t head = 0; head < h.n_heads; ++head) {
        const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
        if (h.n_heads > 16 && head % 5 != 0) continue;
        float64::Values turned;
        for (float x : rotated_row(q, head, h.head_dim, used, pos))
          turned.push_back(double(to_f32(to_f16(x))));
        std::vector<float> values;
        for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(head * h.head_dim + i));
        ASSERT_NO_FATAL_FAILURE(expect_row(turned, k_rows[size_t(kv_head)], v_rows[size_t(kv_head)],
                                           h, pos, dtype, Through::Nothing, values.data(),
                                           cat(where, ", head ", head),
                                           choice == 0 ? &errors : nullptr));
      }
      errors.expect_within(dtype, where);
      for (int64_t i = 0; i < h.head_dim; ++i)
        ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[h.n_heads * h.head_dim + i], 0xFFFF)
            << "past the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Decode,
    testing::Combine(
        testing::Values(Heads{1, 1, 64}, Heads{4, 2, 128}, Heads{8, 1, 80}, Heads{9, 3, 96},
                        Heads{32, 32, 128}, Heads{32, 8, 128}, Heads{2, 1, 8}, Heads{4, 2, 40},
                        Heads{2, 2, 256}, Heads{3, 1, 37}, Heads{20, 2, 64}, Heads{16, 1, 128},
                        Heads{12, 1, 96}, Heads{16, 2, 16}, Heads{3, 1, 255}, Heads{8, 1, 256}),
        testing::Values(DType::F16, DType::BF16), testing::Values(DType::F16, DType::U8)));

}  // namespace
}  // namespace minfer::test
