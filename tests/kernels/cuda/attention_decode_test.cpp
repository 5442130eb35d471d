#include <map>

#include "tests/kernels/cuda/attention_cases.h"
#include "tests/kernels/cuda/decode_splits.h"

namespace minfer::test {
namespace {

using DecodeParam = std::tuple<Heads, DType, DType>;
class Decode : public testing::TestWithParam<DecodeParam> {};

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
        cuda::attention::decode_workspace(1, h.n_heads, h.n_kv_heads, h.head_dim, splits);
    workspaces.push_back(cuda::allocate_device(DType::U8, {n_bytes}));
    MINFER_CUDA_CHECK(cudaMemset(workspaces.back().view().data, 0, size_t(n_bytes)));
  }
  const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});

  PlainErrors errors;  // over all positions: the errors of one may be small by chance
  for (int pos : {0,   1,   15,  16,  17,  31,  32,  63,   64,   127,  128,  129,
                  255, 256, 257, 383, 384, 500, 511, 1024, 1999, 4095, 4096, 4099}) {
    if (pos > 1000 && pos < 4099 && h.n_heads > 16) continue;  // float64 is slow
    const Shape q_shape{1, h.n_heads, h.head_dim}, kv_shape{1, h.n_kv_heads, h.head_dim};
    const HostTensor q = random_normal(uint64_t(pos) + 7, q_shape, dtype, 2);
    const HostTensor k = random_normal(uint64_t(pos) + 8, kv_shape, dtype);
    const HostTensor v = random_normal(uint64_t(pos) + 9, kv_shape, dtype);
    const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
    const DeviceTensor out = poisoned_device(dtype, {1, h.n_heads + 1, h.head_dim});
    MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
    const int64_t head_step = h.n_heads > 16 ? 11 : 1;
    std::map<int64_t, AttentionRow> rows;  // by head; with many heads, only some: float64 is slow
    // The first choice is the launcher's; for the others, only the output is checked.
    for (size_t choice = 0; choice < all_splits.size(); ++choice) {
      const DeviceTensor& workspace = workspaces[choice];
      MINFER_CUDA_CHECK(cudaMemset(out.view().data, 0xFF, size_t(out.view().n_bytes())));
      const cuda::AttentionDecode step{.out = {out.view().data, dtype, q_shape},
                                       .q = q_dev,
                                       .k = k_dev,
                                       .v = v_dev,
                                       .rope = rotates ? table_dev.view() : Tensor(),
                                       .cache = &cache.layer,
                                       .pages = cache.pages_on_card(),
                                       .pos = static_cast<const int*>(pos_dev.view().data),
                                       .max_seq_len = kCapacity,
                                       .scale = scale_of(h),
                                       .workspace = workspace.view().data};
      const auto& splits = all_splits[choice];
      const std::string where = cat("position ", pos, ", ", splits.n, " splits, ",
                                    splits.most_alone, " alone, at least ", splits.least);
      HostTensor got;
      for (int again = 0; again < 3; ++again) {
        if (choice == 0) cache.restore();
        cache.poison(pos);
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

      // Row pos is correct, the rows before it are unchanged, and those after it are still
      // poisoned.
      if (choice == 0) {
        for (int64_t head = 0; head < h.n_kv_heads; ++head) {
          const int64_t at = cache.row(head, pos);
          put_row(rotated_row(k, head, h.head_dim, used, pos), at, cache.keys, cache.key_scales);
          put_row(rotated_row(v, head, h.head_dim, nullptr, pos), at, cache.values,
                  cache.value_scales);
        }
        const auto expect = [&](const DeviceTensor& got_part, const HostTensor& want) {
          if (got_part) expect_same_bytes(got_part, cache.poisoned(want, pos + 1), where);
        };
        expect(cache.layer.keys, cache.keys);
        expect(cache.layer.values, cache.values);
        expect(cache.layer.key_scales, cache.key_scales);
        expect(cache.layer.value_scales, cache.value_scales);
        for (int64_t head = 0; head < h.n_heads; head += head_step) {
          const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
          float64::Values turned;
          for (float x : rotated_row(q, head, h.head_dim, used, pos))
            turned.push_back(double(to_f32(to_f16(x))));
          const float64::Values keys = cache.head_values(true, kv_head, pos + 1);
          const float64::Values values = cache.head_values(false, kv_head, pos + 1);
          rows[head] = attention_row(turned, keys, values, h, pos, dtype, Through::Nothing);
          const auto plain = plain::attention_row(turned, keys, values, pos, scale_of(h), dtype);
          for (int64_t i = 0; i < h.head_dim; ++i)
            errors.add(double(got.at(head * h.head_dim + i)), plain[size_t(i)],
                       rows[head].out[size_t(i)]);
        }
      }
      for (const auto& [head, row] : rows) {
        std::vector<float> values;
        for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(head * h.head_dim + i));
        ASSERT_NO_FATAL_FAILURE(row.expect(values.data(), cat(where, ", head ", head)));
      }
      for (int64_t i = 0; i < h.head_dim; ++i)
        ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[h.n_heads * h.head_dim + i], 0xFFFF)
            << "past the end";
    }
  }
  errors.expect_within(dtype, "all positions");
}

INSTANTIATE_TEST_SUITE_P(
    Heads, Decode,
    testing::Combine(
        testing::Values(Heads{1, 1, 64}, Heads{4, 2, 128}, Heads{8, 1, 80}, Heads{9, 3, 96},
                        Heads{32, 32, 128}, Heads{32, 8, 128}, Heads{2, 1, 8}, Heads{4, 2, 40},
                        Heads{2, 2, 256}, Heads{3, 1, 37}, Heads{20, 2, 64}, Heads{16, 1, 128},
                        Heads{12, 1, 96}, Heads{16, 2, 16}, Heads{3, 1, 255}, Heads{8, 1, 256}),
        testing::Values(DType::F16, DType::BF16), testing::Values(DType::F16, DType::U8)));

// Windows in every kind of cache, whole and cut off, with splits and without. The pages before a
// window belong to other sequences.
TEST(DecodeOfWindows, MatchFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kMaxSeqLen = 1300;
  for (const Heads& h : {Heads{8, 2, 128}, Heads{3, 1, 37}, Heads{12, 1, 64}, Heads{4, 2, 256}}) {
    for (const DType cache_dtype : {DType::F16, DType::U8}) {
      TestCache cache(1, cache_dtype, h, kMaxSeqLen);
      const Shape q_shape{1, h.n_heads, h.head_dim}, kv_shape{1, h.n_kv_heads, h.head_dim};
      const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});
      const DeviceTensor workspace = cuda::allocate_device(
          DType::U8,
          {cuda::attention_decode_workspace(1, h.n_heads, h.n_kv_heads, h.head_dim, kMaxSeqLen)});
      MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(workspace.view().n_bytes())));
      for (const int window : {1, 7, 32, 100, 128, 600}) {
        for (const int pos : {0, 31, 99, 127, 128, 500, 1299}) {
          const HostTensor q = random_normal(uint64_t(pos) + 7, q_shape, DType::F16, 2);
          const HostTensor k = random_normal(uint64_t(pos) + 8, kv_shape, DType::F16);
          const HostTensor v = random_normal(uint64_t(pos) + 9, kv_shape, DType::F16);
          MINFER_CUDA_CHECK(
              cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
          cache.restore();
          cache.poison(pos);
          cache.poison_pages_before(std::max(0, pos + 1 - window));
          for (int64_t head = 0; head < h.n_kv_heads; ++head) {
            const int64_t at = cache.row(head, pos);
            put_row(rotated_row(k, head, h.head_dim, nullptr, pos), at, cache.keys,
                    cache.key_scales);
            put_row(rotated_row(v, head, h.head_dim, nullptr, pos), at, cache.values,
                    cache.value_scales);
          }
          const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
          const DeviceTensor out = poisoned_device(DType::F16, q_shape);
          cuda::attention_decode(nullptr, {.out = out,
                                           .q = q_dev,
                                           .k = k_dev,
                                           .v = v_dev,
                                           .rope = {},
                                           .cache = &cache.layer,
                                           .pages = cache.pages_on_card(),
                                           .pos = static_cast<const int*>(pos_dev.view().data),
                                           .max_seq_len = kMaxSeqLen,
                                           .scale = scale_of(h),
                                           .window = window,
                                           .workspace = workspace.view().data});
          const HostTensor got = to_host(out);
          for (int64_t head = 0; head < h.n_heads; ++head) {
            const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
            const auto seen = [&](bool is_k) {
              return seen_rows(cache.head_values(is_k, kv_head, pos + 1), h.head_dim, pos, window);
            };
            const float64::Values keys = seen(true);
            std::vector<float> values;
            for (int64_t i = 0; i < h.head_dim; ++i) {
              values.push_back(got.at(head * h.head_dim + i));
            }
            ASSERT_NO_FATAL_FAILURE(expect_row(
                row_of(q, head), keys, seen(false), h, std::ssize(keys) / h.head_dim - 1,
                DType::F16, Through::Nothing, values.data(),
                cat(h, ", ", cache_dtype, ", window ", window, " at ", pos, ", head ", head)));
          }
        }
      }
    }
  }
}

// The ring of stages wraps around many times: with few splits, as when all heads of a model share
// the card, and with many.
TEST(DecodeOfLongCache, MatchesFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr Heads kHeads{4, 2, 128};
  constexpr int64_t kCapacity = 32800;
  const Shape q_shape{1, kHeads.n_heads, kHeads.head_dim},
      kv_shape{1, kHeads.n_kv_heads, kHeads.head_dim};
  const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});
  for (DType cache_dtype : {DType::F16, DType::U8}) {
    TestCache cache(3, cache_dtype, kHeads, kCapacity);
    for (int pos : {32767, 32768}) {
      const HostTensor q = random_normal(uint64_t(pos) + 7, q_shape, DType::F16, 2);
      const HostTensor k = random_normal(uint64_t(pos) + 8, kv_shape, DType::F16);
      const HostTensor v = random_normal(uint64_t(pos) + 9, kv_shape, DType::F16);
      const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
      MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
      for (int64_t head = 0; head < kHeads.n_kv_heads; ++head) {
        const int64_t at = cache.row(head, pos);
        put_row(rotated_row(k, head, kHeads.head_dim, nullptr, pos), at, cache.keys,
                cache.key_scales);
        put_row(rotated_row(v, head, kHeads.head_dim, nullptr, pos), at, cache.values,
                cache.value_scales);
      }
      const auto chosen =
          cuda::attention::decode_splits(1, kHeads.n_heads, kHeads.n_kv_heads, kCapacity);
      for (const cuda::attention::DecodeSplits& splits :
           {chosen, cuda::attention::DecodeSplits{4, 256, 128}}) {
        const int64_t n_bytes = cuda::attention::decode_workspace(
            1, kHeads.n_heads, kHeads.n_kv_heads, kHeads.head_dim, splits);
        const DeviceTensor workspace = cuda::allocate_device(DType::U8, {n_bytes});
        MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
        const DeviceTensor out = poisoned_device(DType::F16, q_shape);
        cache.poison(pos);
        cuda::attention::decode(nullptr,
                                {.out = out,
                                 .q = q_dev,
                                 .k = k_dev,
                                 .v = v_dev,
                                 .rope = {},
                                 .cache = &cache.layer,
                                 .pages = cache.pages_on_card(),
                                 .pos = static_cast<const int*>(pos_dev.view().data),
                                 .max_seq_len = kCapacity,
                                 .scale = scale_of(kHeads),
                                 .workspace = workspace.view().data},
                                splits);
        const HostTensor got = to_host(out);
        for (int64_t head = 0; head < kHeads.n_heads; ++head) {
          const int64_t kv_head = head / (kHeads.n_heads / kHeads.n_kv_heads);
          float64::Values query;
          std::vector<float> values;
          for (int64_t i = head * kHeads.head_dim; i < (head + 1) * kHeads.head_dim; ++i) {
            query.push_back(double(q.at(i)));
            values.push_back(got.at(i));
          }
          ASSERT_NO_FATAL_FAILURE(expect_row(
              query, cache.head_values(true, kv_head, pos + 1),
              cache.head_values(false, kv_head, pos + 1), kHeads, pos, DType::F16, Through::Nothing,
              values.data(),
              cat("position ", pos, ", ", splits.n, " splits, ", cache_dtype, ", head ", head)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
