#include "tests/kernels/cuda/attention_cases.h"
#include "tests/kernels/cuda/decode_splits.h"

namespace minfer::test {
namespace {

// Sinks join once, whether one block has all positions or many blocks have some.
TEST(DecodeOfSequences, SinksMatchFloat64) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 1100;
  for (const Heads& h : {Heads{8, 2, 128}, Heads{3, 1, 37}, Heads{20, 2, 64}}) {
    for (const DType cache_dtype : {DType::F16, DType::U8}) {
      TestCache cache(1, cache_dtype, h, kCapacity);
      const HostTensor sinks = random_normal(4, {h.n_heads}, DType::F32, 8);
      const HostTensor q = random_normal(7, {1, h.n_heads, h.head_dim}, DType::F16, 2);
      const HostTensor k = random_normal(8, {1, h.n_kv_heads, h.head_dim}, DType::F16);
      const HostTensor v = random_normal(9, {1, h.n_kv_heads, h.head_dim}, DType::F16);
      const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
      const DeviceTensor sinks_dev = to_device(sinks);
      const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});
      for (const int pos : {0, 1, 130, 500, 1099}) {
        for (const int64_t window : {0, 64}) {
          for (const auto& splits : splits_of(h, kCapacity)) {
            SCOPED_TRACE(cat(h, ", ", cache_dtype, ", position ", pos, ", window ", window, ", ",
                             splits.n, " splits"));
            const DeviceTensor out = poisoned_device(DType::F16, q.view().shape);
            const int64_t n_bytes =
                cuda::attention::decode_workspace(1, h.n_heads, h.n_kv_heads, h.head_dim, splits);
            const DeviceTensor workspace = cuda::allocate_device(DType::U8, {n_bytes});
            MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
            MINFER_CUDA_CHECK(
                cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
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
                                     .scale = scale_of(h),
                                     .window = window,
                                     .sinks = sinks_dev,
                                     .workspace = workspace.view().data},
                                    splits);
            const HostTensor got = to_host(out);
            for (int64_t head = 0; head < h.n_kv_heads; ++head) {
              const int64_t at = cache.row(head, pos);
              put_row(rotated_row(k, head, h.head_dim, nullptr, pos), at, cache.keys,
                      cache.key_scales);
              put_row(rotated_row(v, head, h.head_dim, nullptr, pos), at, cache.values,
                      cache.value_scales);
            }
            for (int64_t head = 0; head < h.n_heads; ++head) {
              const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
              const auto seen = [&](bool is_k) {
                return seen_rows(cache.head_values(is_k, kv_head, pos + 1), h.head_dim, pos,
                                 window);
              };
              const float64::Values keys = seen(true);
              const AttentionRow row = attention_row(row_of(q, head), keys, seen(false), h,
                                                     std::ssize(keys) / h.head_dim - 1, DType::F16,
                                                     Through::Nothing, 0, sinks.at(head));
              std::vector<float> values;
              for (int64_t i = 0; i < h.head_dim; ++i)
                values.push_back(got.at(head * h.head_dim + i));
              ASSERT_NO_FATAL_FAILURE(row.expect(values.data(), cat("head ", head)));
            }
          }
        }
      }
    }
  }
}

// The norms of heads give the bits that rms_norm gives in front of the kernel: the squares of these
// elements have the same sum in every order.
TEST(DecodeOfSequences, NormsHeadsAsRmsNorm) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 300;
  constexpr float kEps = 1e-3f;
  for (const Heads& h : {Heads{8, 2, 128}, Heads{3, 1, 37}, Heads{12, 1, 64}, Heads{2, 2, 256}}) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      const auto eighths = [&](uint64_t seed, int64_t n_heads) {
        HostTensor x = random_normal(seed, {1, n_heads, h.head_dim}, dtype, 2);
        visit_float(dtype, [&]<typename T>() {
          for (int64_t i = 0; i < x.view().n_elements(); ++i) {
            x.as<T>()[i] = from_f32<T>(std::round(x.at(i) * 8) / 8);
          }
        });
        return to_device(x);
      };
      const DeviceTensor q = eighths(1, h.n_heads), k = eighths(2, h.n_kv_heads);
      const DeviceTensor v = eighths(3, h.n_kv_heads);
      const DeviceTensor q_norm = to_device(random_normal(4, {h.head_dim}, dtype));
      const DeviceTensor k_norm = to_device(random_normal(5, {h.head_dim}, dtype));
      const DeviceTensor table = to_device(angles(kCapacity, h.head_dim / 2 * 2));
      const int pos = 200;
      const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {1});
      MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, &pos, sizeof(pos), cudaMemcpyHostToDevice));
      const auto run = [&](bool in_kernel) {
        TestCache cache(1, DType::F16, h, kCapacity);
        const DeviceTensor out = poisoned_device(dtype, q.view().shape);
        const DeviceTensor normed_q = poisoned_device(dtype, q.view().shape);
        const DeviceTensor normed_k = poisoned_device(dtype, k.view().shape);
        const auto norm = [&](const DeviceTensor& to, const DeviceTensor& x,
                              const DeviceTensor& w) {
          const auto heads = [&](const DeviceTensor& t) {
            return t.view().reshaped({t.view().n_elements() / h.head_dim, h.head_dim});
          };
          cuda::rms_norm(nullptr, heads(to), heads(x), w, kEps);
        };
        norm(normed_q, q, q_norm);
        norm(normed_k, k, k_norm);
        const int64_t n_bytes =
            cuda::attention_decode_workspace(1, h.n_heads, h.n_kv_heads, h.head_dim, kCapacity);
        const DeviceTensor workspace = cuda::allocate_device(DType::U8, {n_bytes});
        MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
        cuda::attention_decode(nullptr, {.out = out,
                                         .q = in_kernel ? q : normed_q,
                                         .k = in_kernel ? k : normed_k,
                                         .v = v,
                                         .rope = table,
                                         .cache = &cache.layer,
                                         .pages = cache.pages_on_card(),
                                         .pos = static_cast<const int*>(pos_dev.view().data),
                                         .max_seq_len = kCapacity,
                                         .scale = scale_of(h),
                                         .q_norm = in_kernel ? q_norm.view() : Tensor(),
                                         .k_norm = in_kernel ? k_norm.view() : Tensor(),
                                         .norm_eps = kEps,
                                         .workspace = workspace.view().data});
        return std::pair(to_host(out), to_host(cache.layer.keys));
      };
      const auto [out, keys] = run(true);
      const auto [want_out, want_keys] = run(false);
      const auto same = [](const HostTensor& a, const HostTensor& b) {
        return std::memcmp(a.view().data, b.view().data, size_t(b.view().n_bytes())) == 0;
      };
      EXPECT_TRUE(same(out, want_out)) << h << ' ' << dtype;
      EXPECT_TRUE(same(keys, want_keys)) << h << ' ' << dtype;
    }
  }
}

// Sequences with different positions in pages of one cache: each gives the same bits as alone with
// as many splits.
TEST(DecodeOfSequences, EachIsAsAlone) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kMaxSeqLen = 1500;
  const int64_t table_pages = pages_for(kMaxSeqLen);
  const std::vector<int> positions = {700, 0, 127, 128, 1499, 300, 5, 1000};
  for (const Heads& h : {Heads{8, 2, 128}, Heads{3, 1, 37}, Heads{12, 1, 64}}) {
    for (const DType cache_dtype : {DType::F16, DType::U8}) {
      for (const int64_t n : {8, 2, 5}) {
        TestCache cache(1, cache_dtype, h, n * table_pages * kPagePositions);
        const HostTensor table = angles(kMaxSeqLen, h.head_dim / 2 * 2);
        const DeviceTensor table_dev = to_device(table);
        const auto random = [&](uint64_t seed, int64_t n_heads) {
          return to_device(random_normal(seed, {n, n_heads, h.head_dim}, DType::F16));
        };
        const DeviceTensor q = random(7, h.n_heads), k = random(8, h.n_kv_heads);
        const DeviceTensor v = random(9, h.n_kv_heads);
        const DeviceTensor pos = cuda::allocate_device(DType::F32, {n});
        MINFER_CUDA_CHECK(
            cudaMemcpy(pos.view().data, positions.data(), size_t(4 * n), cudaMemcpyHostToDevice));
        const auto splits = cuda::attention::decode_splits(n, h.n_heads, h.n_kv_heads, kMaxSeqLen);
        const int64_t n_bytes =
            cuda::attention::decode_workspace(n, h.n_heads, h.n_kv_heads, h.head_dim, splits);
        const DeviceTensor workspace = cuda::allocate_device(DType::U8, {n_bytes});
        MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
        // Sequences first ... first + count - 1.
        const auto run = [&](const DeviceTensor& out, int64_t first, int64_t count) {
          cuda::attention::decode(nullptr,
                                  {.out = out.view().rows(first, count),
                                   .q = q.view().rows(first, count),
                                   .k = k.view().rows(first, count),
                                   .v = v.view().rows(first, count),
                                   .rope = table_dev,
                                   .cache = &cache.layer,
                                   .pages = cache.pages_on_card() + first * table_pages,
                                   .pos = static_cast<const int*>(pos.view().data) + first,
                                   .max_seq_len = kMaxSeqLen,
                                   .scale = scale_of(h),
                                   .workspace = workspace.view().data},
                                  splits);
        };
        const DeviceTensor alone = poisoned_device(DType::F16, q.view().shape);
        for (int64_t i = 0; i < n; ++i) run(alone, i, 1);
        const HostTensor keys = to_host(cache.layer.keys), values = to_host(cache.layer.values);
        const std::string what = cat(h, ", ", cache_dtype, ", ", n, " sequences");
        cache.restore();
        const DeviceTensor together = poisoned_device(DType::F16, q.view().shape);
        run(together, 0, n);
        expect_same_bytes(together, to_host(alone), what);
        expect_same_bytes(cache.layer.keys, keys, what + ": keys");
        expect_same_bytes(cache.layer.values, values, what + ": values");
      }
    }
  }
}

// Rows of one sequence at consecutive positions: each sees the keys and values of those in front of
// it, which the same launch appends, and none behind it. The new rows lie in one block's range and
// in those of two, in one tile and in two, and in two pages.
TEST(DecodeOfSequences, RowsOfOneSeeThoseInFront) {
  MINFER_NEEDS_CUDA();
  constexpr int64_t kCapacity = 700, kMostRows = 8;
  struct Case {
    Heads heads;
    int64_t n_rows, window;
    bool has_sinks;
  };
  for (const auto& [h, n, window, has_sinks] :
       {Case{{8, 2, 128}, 8, 0, false}, Case{{3, 1, 37}, 5, 0, true},
        Case{{12, 1, 64}, 3, 100, false}, Case{{2, 2, 256}, 8, 7, true},
        Case{{4, 4, 128}, 2, 0, false}, Case{{20, 2, 64}, 8, 0, false}}) {
    for (const DType cache_dtype : {DType::F16, DType::U8}) {
      TestCache cache(1, cache_dtype, h, kCapacity);
      const HostTensor table = angles(kCapacity, h.head_dim / 4 * 2);
      const DeviceTensor table_dev = to_device(table);
      const HostTensor sinks = random_normal(4, {h.n_heads}, DType::F32, 8);
      const DeviceTensor sinks_dev = to_device(sinks);
      const DeviceTensor pos_dev = cuda::allocate_device(DType::F32, {kMostRows});
      for (const int pos : {0, 27, 123, 250, 690}) {
        const auto random = [&](uint64_t seed, int64_t n_heads, float size) {
          return random_normal(uint64_t(pos) + seed, {n, n_heads, h.head_dim}, DType::F16, size);
        };
        const HostTensor q = random(7, h.n_heads, 2), k = random(8, h.n_kv_heads, 1);
        const HostTensor v = random(9, h.n_kv_heads, 1);
        const DeviceTensor q_dev = to_device(q), k_dev = to_device(k), v_dev = to_device(v);
        std::vector<int> positions;
        for (int i = 0; i < n; ++i) positions.push_back(pos + i);
        MINFER_CUDA_CHECK(cudaMemcpy(pos_dev.view().data, positions.data(), size_t(4 * n),
                                     cudaMemcpyHostToDevice));
        for (int64_t row = 0; row < n * h.n_kv_heads; ++row) {
          const int64_t at = cache.row(row % h.n_kv_heads, pos + row / h.n_kv_heads);
          put_row(rotated_row(k, row, h.head_dim, &table, pos + row / h.n_kv_heads), at, cache.keys,
                  cache.key_scales);
          put_row(rotated_row(v, row, h.head_dim, nullptr, 0), at, cache.values,
                  cache.value_scales);
        }
        for (const auto& splits :
             {cuda::attention::decode_splits(1, h.n_heads, h.n_kv_heads, kCapacity, n),
              cuda::attention::DecodeSplits{5, 256, 128},
              {40, 0, 16}}) {
          const std::string what = cat(h, ", ", cache_dtype, ", ", n, " rows at ", pos, ", ",
                                       splits.n, " splits of at least ", splits.least);
          const int64_t n_bytes =
              cuda::attention::decode_workspace(1, h.n_heads, h.n_kv_heads, h.head_dim, splits, n);
          const DeviceTensor workspace = cuda::allocate_device(DType::U8, {n_bytes});
          MINFER_CUDA_CHECK(cudaMemset(workspace.view().data, 0, size_t(n_bytes)));
          const DeviceTensor out = poisoned_device(DType::F16, {n + 1, h.n_heads, h.head_dim});
          cache.restore();
          cache.poison(pos);
          const int64_t unseen = window > 0 ? std::max<int64_t>(0, pos + 1 - window) : 0;
          cache.poison_pages_before(unseen);
          for (int again = 0; again < 2; ++again) {  // the counters are left as they were
            cuda::attention::decode(nullptr,
                                    {.out = out.view().rows(0, n),
                                     .q = q_dev,
                                     .k = k_dev,
                                     .v = v_dev,
                                     .rope = table_dev,
                                     .cache = &cache.layer,
                                     .pages = cache.pages_on_card(),
                                     .pos = static_cast<const int*>(pos_dev.view().data),
                                     .rows_of_sequence = n,
                                     .max_seq_len = kCapacity,
                                     .scale = scale_of(h),
                                     .window = window,
                                     .sinks = has_sinks ? sinks_dev.view() : Tensor(),
                                     .workspace = workspace.view().data},
                                    splits);
          }
          const HostTensor got = to_host(out);
          for (int64_t i = 0; i < h.n_heads * h.head_dim; ++i) {
            ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[n * h.n_heads * h.head_dim + i],
                      0xFFFF)
                << what << ", past the end";
          }
          if (unseen < kPagePositions) {
            const auto expect = [&](const DeviceTensor& part, const HostTensor& want) {
              if (part) expect_same_bytes(part, cache.poisoned(want, pos + n), what);
            };
            expect(cache.layer.keys, cache.keys);
            expect(cache.layer.values, cache.values);
            expect(cache.layer.key_scales, cache.key_scales);
            expect(cache.layer.value_scales, cache.value_scales);
          }
          for (int64_t i = 0; i < n * h.n_heads; ++i) {
            const int64_t head = i % h.n_heads, last = pos + i / h.n_heads;
            const int64_t kv_head = head / (h.n_heads / h.n_kv_heads);
            float64::Values turned;
            for (const float x : rotated_row(q, i, h.head_dim, &table, last)) {
              turned.push_back(double(to_f32(to_f16(x))));
            }
            const auto seen = [&](bool is_k) {
              return seen_rows(cache.head_values(is_k, kv_head, last + 1), h.head_dim, last,
                               window);
            };
            const float64::Values keys = seen(true);
            const AttentionRow row = attention_row(
                turned, keys, seen(false), h, std::ssize(keys) / h.head_dim - 1, DType::F16,
                Through::Nothing, 0, has_sinks ? std::optional(sinks.at(head)) : std::nullopt);
            std::vector<float> values;
            for (int64_t d = 0; d < h.head_dim; ++d) values.push_back(got.at(i * h.head_dim + d));
            ASSERT_NO_FATAL_FAILURE(
                row.expect(values.data(), cat(what, ", row ", i / h.n_heads, ", head ", head)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace minfer::test
