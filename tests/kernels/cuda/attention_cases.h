#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/launchers.h"
#include "tests/kernels/cuda/plain_half.h"
#include "tests/support/cuda_tensors.h"
#include "tests/support/test_pages.h"

// What tests of attention on a card have in common: caches, the rotated and rounded rows that go
// into them, and the error bound of a row of attention.
namespace minfer::test {

struct Heads {
  int64_t n_heads, n_kv_heads, head_dim;
};
inline std::ostream& operator<<(std::ostream& out, const Heads& h) {
  return out << h.n_heads << ":" << h.n_kv_heads << " heads of " << h.head_dim;
}

inline float scale_of(const Heads& h) { return 1 / std::sqrt(float(h.head_dim)); }

// A cache on the card whose pages are in random order, and its values on the host. Every row has
// random values, on the host and on the card alike.
struct TestCache {
  TestCache(uint64_t seed, DType dtype, const Heads& heads, int64_t n_positions)
      : pages(n_positions), table(cuda::allocate_device(DType::F32, {std::ssize(pages.pages)})) {
    MINFER_CUDA_CHECK(cudaMemcpy(table.view().data, pages.pages.data(), pages.pages.size() * 4,
                                 cudaMemcpyHostToDevice));
    const Shape shape{pages.n_in_pool(), heads.n_kv_heads, kPagePositions, heads.head_dim};
    const Shape rows_shape{shape[0], shape[1], shape[2]};
    layer.n_kv_heads = heads.n_kv_heads;
    layer.head_dim = heads.head_dim;
    layer.n_pages = pages.n_in_pool();
    layer.dtype = dtype;
    const auto fill = [&](uint64_t s, DeviceTensor& rows, DeviceTensor& scales,
                          HostTensor& host_rows, HostTensor& host_scales) {
      host_rows.reset(dtype, shape);
      const HostTensor normal = random_normal(s, shape);
      if (dtype == DType::F16) {
        for (int64_t i = 0; i < shape.n_elements(); ++i)
          host_rows.as<f16>()[i] = to_f16(normal.at(i));
      } else {
        host_scales = random_normal(s + 1, rows_shape);
        for (int64_t i = 0; i < rows_shape.n_elements(); ++i) {
          float& scale = host_scales.as<float>()[i];
          scale = 0.005f + std::abs(scale) / 50;
        }
        for (int64_t i = 0; i < shape.n_elements(); ++i) {
          const float code = std::clamp(std::nearbyint(normal.at(i) * 50), -127.0f, 127.0f);
          static_cast<uint8_t*>(host_rows.view().data)[i] = uint8_t(int(code) + 128);
        }
        scales = to_device(host_scales);
      }
      rows = to_device(host_rows);
    };
    fill(seed, layer.keys, layer.key_scales, keys, key_scales);
    fill(seed + 2, layer.values, layer.value_scales, values, value_scales);
  }

  const int32_t* pages_on_card() const { return static_cast<const int32_t*>(table.view().data); }
  cuda::CachePlace at(int64_t pos) const { return {pages_on_card(), std::ssize(pages.pages), pos}; }
  // The index of a row among all rows, on the host and on the card.
  int64_t row(int64_t head, int64_t pos) const { return pages.row(layer.n_kv_heads, head, pos); }

  void restore() {
    const auto copy = [](const Tensor& to, const HostTensor& from) {
      if (!to) return;
      MINFER_CUDA_CHECK(
          cudaMemcpy(to.data, from.view().data, size_t(to.n_bytes()), cudaMemcpyHostToDevice));
    };
    copy(layer.keys, keys);
    copy(layer.values, values);
    copy(layer.key_scales, key_scales);
    copy(layer.value_scales, value_scales);
  }

  // Fills, on the card, the positions from `begin` on and the unused pages with bytes of 0xFF: NaN,
  // or code 255 with a scale of NaN.
  void poison(int64_t begin) const {
    for (const DeviceTensor* x :
         {&layer.keys, &layer.values, &layer.key_scales, &layer.value_scales}) {
      if (!*x) continue;
      for_each_unused(begin, [&](int64_t first_row, int64_t n_rows) {
        const int64_t row_bytes = x->view().n_bytes() / n_rows_in_all();
        MINFER_CUDA_CHECK(cudaMemset2D(static_cast<char*>(x->view().data) + first_row * row_bytes,
                                       size_t(kPagePositions * row_bytes), 0xFF,
                                       size_t(n_rows * row_bytes), size_t(layer.n_kv_heads)));
      });
    }
  }
  // The same for whole pages before a position.
  void poison_pages_before(int64_t end) const {
    for (int64_t i = 0; i < end / kPagePositions; ++i) {
      for (const DeviceTensor* x :
           {&layer.keys, &layer.values, &layer.key_scales, &layer.value_scales}) {
        if (!*x) continue;
        const int64_t n_bytes = x->view().n_bytes() / layer.n_pages;
        MINFER_CUDA_CHECK(
            cudaMemset(static_cast<char*>(x->view().data) + pages.pages[size_t(i)] * n_bytes, 0xFF,
                       size_t(n_bytes)));
      }
    }
  }
  // A copy of one of the host tensors, poisoned in the same way.
  HostTensor poisoned(const HostTensor& host, int64_t begin) const {
    HostTensor copy(host.view().dtype, host.view().shape);
    std::memcpy(copy.view().data, host.view().data, size_t(host.view().n_bytes()));
    const int64_t row_bytes = host.view().n_bytes() / n_rows_in_all();
    for_each_unused(begin, [&](int64_t first_row, int64_t n_rows) {
      for (int64_t head = 0; head < layer.n_kv_heads; ++head) {
        std::memset(
            static_cast<char*>(copy.view().data) + (first_row + head * kPagePositions) * row_bytes,
            0xFF, size_t(n_rows * row_bytes));
      }
    });
    return copy;
  }

  // The first rows of a head in float64, [n_rows, head_dim].
  float64::Values head_values(bool is_k, int64_t head, int64_t n_rows) const {
    float64::Values x;
    const HostTensor& rows = is_k ? keys : values;
    for (int64_t i = 0; i < n_rows * layer.head_dim; ++i) {
      const int64_t its_row = row(head, i / layer.head_dim);
      const int64_t at = its_row * layer.head_dim + i % layer.head_dim;
      x.push_back(layer.dtype == DType::F16
                      ? double(rows.at(at))
                      : (double(static_cast<const uint8_t*>(rows.view().data)[at]) - 128) *
                            double((is_k ? key_scales : value_scales).at(its_row)));
    }
    return x;
  }

  // The same for every head.
  std::vector<float64::Values> all_head_values(bool is_k, int64_t n_rows) const {
    std::vector<float64::Values> values;
    for (int64_t head = 0; head < layer.n_kv_heads; ++head) {
      values.push_back(head_values(is_k, head, n_rows));
    }
    return values;
  }

  KvLayer layer;
  TestPages pages;
  DeviceTensor table;
  HostTensor keys, values, key_scales, value_scales;

 private:
  int64_t n_rows_in_all() const { return layer.n_pages * layer.n_kv_heads * kPagePositions; }

  // Calls f(first row of the first head, rows) for each page that is unused or has rows from
  // `begin` on.
  template <typename F>
  void for_each_unused(int64_t begin, const F& f) const {
    const auto first_row = [&](int64_t page) { return page * layer.n_kv_heads * kPagePositions; };
    f(first_row(0), kPagePositions);
    f(first_row(layer.n_pages - 1), kPagePositions);
    for (int64_t i = begin / kPagePositions; i < std::ssize(pages.pages); ++i) {
      const int64_t in_page = std::max<int64_t>(0, begin - i * kPagePositions);
      f(first_row(pages.pages[size_t(i)]) + in_page, kPagePositions - in_page);
    }
  }
};

// Which values of a U8 cache are rounded to F16 before they are multiplied.
enum class Through { Nothing, ValuesF16, KeysAndValuesF16 };

// One row of attention in float64, and the error bounds of the card.
struct AttentionRow {
  float64::Values out, bounds;

  void expect(const float* got, const std::string& what) const {
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(double(got[i]), out[i], bounds[i]) << what << ", element " << i;
  }
};

// Attention of q at position `last` over keys 0 ... last.
//
// The errors: a product of f16 is exact in f32. Tensor cores may truncate their sums, so a score
// errs by 2 u for each of head_dim terms, its distance from the maximum by twice that and 4 u of
// itself, and the weight by 4 u more. Sums over n keys, weighted or not, err by 2 u for each key,
// and the factors between their blocks of 16 or more keys by 4 u. Rounding a weight to F16 errs by
// 2^-11 of it, or by 2^-25, at most n times for a total weight of 1 or more; so does rounding a
// value of U8 to F16. Rounding a key of U8 to F16 moves a score by 2^-11 of the sum of its terms'
// magnitudes, or by 2^-25 |q| if the key is subnormal, and a weight relative to the total by the
// exponential of twice that. A soft cap c, whose slope is at most 1, adds 2^-21 c to a score. A
// sink is off by u of itself in units of log2, and its weight is exact but for that and 4 u. Then
// the output is rounded once.
inline AttentionRow attention_row(const float64::Values& q, const float64::Values& k,
                                  const float64::Values& v, const Heads& heads, int64_t last,
                                  DType out_dtype, Through through, float softcap = 0,
                                  std::optional<float> sink = {}) {
  const double scale = double(scale_of(heads));
  const auto want =
      float64::attention(q, k, v, 1, 1, heads.head_dim, last, scale, 0, double(softcap),
                         sink ? float64::Values{double(*sink)} : float64::Values());
  const double n = double(last + 1);
  double largest = 0, sum_q = 0;
  for (int64_t i = 0; i < (last + 1) * heads.head_dim; ++i)
    largest = std::max(largest, std::abs(v[size_t(i)]));
  for (const double x : q) sum_q += std::abs(x);
  const double relative =
      kU * (8 * double(heads.head_dim + 2) * want.scores[0] + 8 * want.spreads[0] + 4 * n + n / 2 +
            32 + 4 * std::abs(double(sink.value_or(0.0f)))) +
      4 * 0x1p-21 * double(softcap) + (through == Through::Nothing ? 1.0 : 2.01) * 0x1p-11;
  const double wider =
      through == Through::KeysAndValuesF16
          ? std::expm1(2 * (1.001 * 0x1p-11 * want.scores[0] + sum_q * scale * 0x1p-25))
          : 0;
  AttentionRow row{want.out, {}};
  for (size_t i = 0; i < row.out.size(); ++i) {
    const double inexact = (relative * want.magnitudes[i] + n * 0x1p-25 * largest) * (1 + wider) +
                           wider * want.magnitudes[i];
    row.bounds.push_back(inexact + unit_roundoff(out_dtype) * (std::abs(row.out[i]) + inexact) +
                         0x1p-25);
  }
  return row;
}

// Expects such a row. If `errors` is not null, adds the row to it.
inline void expect_row(const float64::Values& q, const float64::Values& k, const float64::Values& v,
                       const Heads& heads, int64_t last, DType out_dtype, Through through,
                       const float* got, const std::string& what, PlainErrors* errors = nullptr,
                       float softcap = 0, std::optional<float> sink = {}) {
  const AttentionRow want = attention_row(q, k, v, heads, last, out_dtype, through, softcap, sink);
  ASSERT_NO_FATAL_FAILURE(want.expect(got, what));
  if (errors == nullptr) return;
  const auto plain = plain::attention_row(q, k, v, last, scale_of(heads), out_dtype, softcap);
  for (size_t i = 0; i < plain.size(); ++i) errors->add(double(got[i]), plain[i], want.out[i]);
}

// A row of queries in float64, as the kernels round it.
inline float64::Values row_of(const HostTensor& x, int64_t row) {
  const int64_t n = x.view().shape.last();
  float64::Values values;
  for (int64_t i = row * n; i < (row + 1) * n; ++i) {
    values.push_back(double(to_f32(to_f16(x.at(i)))));
  }
  return values;
}

// The rows of the last `window` positions up to `last`, or of all if window is 0.
inline float64::Values seen_rows(const float64::Values& rows, int64_t head_dim, int64_t last,
                                 int64_t window) {
  const int64_t from = window == 0 ? 0 : std::max<int64_t>(0, last + 1 - window);
  return {rows.begin() + from * head_dim, rows.begin() + (last + 1) * head_dim};
}

// Expects the result of a prefill into poisoned memory: correct rows in `rows`, which are pairs of
// token and head; no NaN in any other row; nothing written after the last of n_tokens. k and v have
// the values of each key/value head. sinks [n_heads], or null.
inline void expect_prefill(const HostTensor& got, const HostTensor& q,
                           std::span<const float64::Values> k, std::span<const float64::Values> v,
                           const Heads& h, int64_t pos, int64_t n_tokens, Through through,
                           std::span<const std::pair<int64_t, int64_t>> rows, PlainErrors* errors,
                           int64_t window = 0, float softcap = 0, const HostTensor& sinks = {}) {
  for (const auto& [t, head] : rows) {
    const int64_t row = t * h.n_heads + head, kv_head = head / (h.n_heads / h.n_kv_heads);
    std::vector<float> values;
    for (int64_t i = 0; i < h.head_dim; ++i) values.push_back(got.at(row * h.head_dim + i));
    const auto seen = [&](std::span<const float64::Values> x) {
      return seen_rows(x[size_t(kv_head)], h.head_dim, pos + t, window);
    };
    const float64::Values seen_k = seen(k);
    const int64_t last = std::ssize(seen_k) / h.head_dim - 1;
    ASSERT_NO_FATAL_FAILURE(expect_row(
        row_of(q, row), seen_k, seen(v), h, last, got.view().dtype, through, values.data(),
        cat("pos ", pos, ", ", n_tokens, " tokens, token ", t, ", head ", head), errors, softcap,
        sinks.view() ? std::optional(sinks.at(head)) : std::nullopt));
  }
  const int64_t per_token = h.n_heads * h.head_dim;
  for (int64_t i = 0; i < n_tokens * per_token; ++i)
    ASSERT_FALSE(std::isnan(got.at(i))) << "element " << i << " of " << n_tokens << " tokens";
  for (int64_t i = n_tokens * per_token; i < got.view().n_elements(); ++i)
    ASSERT_EQ(static_cast<const uint16_t*>(got.view().data)[i], 0xFFFF) << "past the end";
}

inline HostTensor angles(int64_t max_seq_len, int64_t rotary_dim) {
  HostTensor table(DType::F32, {max_seq_len, rotary_dim / 2, 2});
  for (int64_t pos = 0; pos < max_seq_len; ++pos)
    for (int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double angle = double(pos) * std::pow(10000.0, -2.0 * double(i) / double(rotary_dim));
      float* const at = table.as<float>() + (pos * (rotary_dim / 2) + i) * 2;
      at[0] = float(std::cos(angle));
      at[1] = float(std::sin(angle));
    }
  return table;
}

// A row of x in f32, rotated as in rotate.cuh, with the same bits.
inline std::vector<float> rotated_row(const HostTensor& x, int64_t row, int64_t head_dim,
                                      const HostTensor* table, int64_t pos) {
  std::vector<float> out;
  for (int64_t i = 0; i < head_dim; ++i) out.push_back(x.at(row * head_dim + i));
  if (table == nullptr) return out;
  const int64_t n_pairs = table->view().shape[1];
  for (int64_t i = 0; i < n_pairs; ++i) {
    const float c = table->at((pos * n_pairs + i) * 2), s = table->at((pos * n_pairs + i) * 2 + 1);
    const float a = out[size_t(i)], b = out[size_t(i + n_pairs)];
    out[size_t(i)] = std::fma(a, c, -(b * s));
    out[size_t(i + n_pairs)] = std::fma(b, c, a * s);
  }
  return out;
}

// Writes `row` as row `at` of what the cache should hold.
inline void put_row(const std::vector<float>& row, int64_t at, HostTensor& rows,
                    HostTensor& scales) {
  const auto head_dim = int64_t(row.size());
  float largest = 0;
  for (float x : row) largest = std::max(largest, std::abs(x));
  const float inverse = largest == 0 ? 0 : 127 / largest;
  for (int64_t i = 0; i < head_dim; ++i) {
    const float x = row[size_t(i)];
    if (rows.view().dtype == DType::F16) {
      rows.as<f16>()[at * head_dim + i] = to_f16(x);
    } else {
      static_cast<uint8_t*>(rows.view().data)[at * head_dim + i] =
          uint8_t(128 + int(std::nearbyint(x * inverse)));
    }
  }
  if (rows.view().dtype != DType::F16) scales.as<float>()[at] = largest / 127;
}

}  // namespace minfer::test
