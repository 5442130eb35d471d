// Every operation of CpuKernels in plain loops: the path for CPUs without AVX2, and the readable
// reference for the vector paths.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/half.h"
#include "kernels/cpu/reference_quantized.h"

namespace minfer::cpu {
namespace {

template <typename T>
void matmul(const MatmulPiece& piece) {
  float* const w_block = piece.scratch;             // [kKBlock, kPanel]
  float* const total = w_block + kKBlock * kPanel;  // [n_tokens, kPanel]
  for (int64_t panel = piece.panel_begin; panel < piece.panel_end; ++panel) {
    const T* w = static_cast<const T*>(piece.w) + panel * piece.in_dim * kPanel;
    for (int64_t k0 = 0; k0 < piece.in_dim; k0 += kKBlock) {
      const int64_t n_k = std::min(kKBlock, piece.in_dim - k0);
      for (int64_t i = 0; i < n_k * kPanel; ++i) w_block[i] = to_f32(w[k0 * kPanel + i]);
      for (int64_t t = piece.token_begin; t < piece.token_end; ++t) {
        const float* x = piece.x + t * piece.in_dim + k0;
        float sum[kPanel] = {};
        for (int64_t k = 0; k < n_k; ++k) {
          for (int64_t lane = 0; lane < kPanel; ++lane)
            sum[lane] += x[k] * w_block[k * kPanel + lane];
        }
        float* const row = total + (t - piece.token_begin) * kPanel;
        for (int64_t lane = 0; lane < kPanel; ++lane) {
          row[lane] = k0 == 0 ? sum[lane] : row[lane] + sum[lane];
        }
      }
    }
    const int64_t n_lanes = std::min(kPanel, piece.out_dim - panel * kPanel);
    for (int64_t t = piece.token_begin; t < piece.token_end; ++t) {
      float* const out = piece.out + t * piece.out_dim + panel * kPanel;
      const float* row = total + (t - piece.token_begin) * kPanel;
      for (int64_t lane = 0; lane < n_lanes; ++lane) {
        out[lane] = piece.accumulate ? out[lane] + row[lane] : row[lane];
      }
    }
  }
}

// Converts one element of the cache to float. The caller applies the scale.
float cached(float x) { return x; }
float cached(f16 x) { return to_f32(x); }
float cached(uint8_t code) { return float(code - kKvZeroCode); }

float capped(float x, float cap) { return cap * std::tanh(x / cap); }

// Attention with online softmax: each block of kPositionBlock positions updates a running maximum,
// sum of weights and weighted sum of values.
// Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
template <typename T>
void attention(const AttentionPiece& piece) {
  const CachePages& cache = piece.cache;
  float* const p = piece.scratch;          // [kPositionBlock]
  float* const sums = p + kPositionBlock;  // [head_dim]
  for (int64_t r = piece.row_begin; r < piece.row_end; ++r) {
    const int64_t t = r / piece.n_group;
    const int64_t offset = (t * piece.n_heads + r % piece.n_group) * piece.head_dim;
    const float* q = piece.q + offset;
    const int64_t kv_len = piece.pos + t + 1;
    const bool has_sink = piece.sinks != nullptr;
    float max = has_sink ? piece.sinks[r % piece.n_group] : -std::numeric_limits<float>::infinity();
    float total = has_sink ? 1 : 0;
    std::fill(sums, sums + piece.head_dim, 0.0f);
    const int64_t first = piece.window == 0 ? 0 : std::max<int64_t>(0, kv_len - piece.window);
    for (int64_t begin = first / kPositionBlock * kPositionBlock; begin < kv_len;
         begin += kPositionBlock) {
      const int64_t matrix = matrix_of(cache, begin, piece.kv_head),
                    scales = matrix * kPositionBlock;
      const T* const keys = keys_of<T>(cache, matrix);
      const T* const values = values_of<T>(cache, matrix);
      const int64_t n = std::min(kPositionBlock, kv_len - begin);
      const int64_t hidden = std::max<int64_t>(0, first - begin);
      float new_max = max;
      for (int64_t j = hidden; j < n; ++j) {
        float dot = 0;
        for (int64_t i = 0; i < piece.head_dim; ++i) {
          dot += q[i] * cached(keys[panel_offset(j, i, piece.head_dim)]);
        }
        p[j] = dot * piece.scale;
        if (cache.key_scales != nullptr) p[j] *= cache.key_scales[scales + j];
        if (piece.softcap > 0) p[j] = capped(p[j], piece.softcap);
        new_max = std::max(new_max, p[j]);
      }
      float sum = 0;
      for (int64_t j = hidden; j < n; ++j) {
        p[j] = std::exp(p[j] - new_max);
        sum += p[j];
        if (cache.value_scales != nullptr) p[j] *= cache.value_scales[scales + j];
      }
      const float correction = std::exp(max - new_max);
      total = total * correction + sum;
      for (int64_t i = 0; i < piece.head_dim; ++i) {
        float weighted = 0;
        for (int64_t j = hidden; j < n; ++j) {
          weighted += p[j] * cached(values[panel_offset(i, j, kPositionBlock)]);
        }
        sums[i] = sums[i] * correction + weighted;
      }
      max = new_max;
    }
    for (int64_t i = 0; i < piece.head_dim; ++i) piece.out[offset + i] = sums[i] / total;
  }
}

// Converts the key or value of one head at one position to cache elements: the constructor finds
// the scale of this row (1 for floats), operator() converts one element.
template <typename T>
struct CacheRow {
  CacheRow(const float*, int64_t) {}
  T operator()(float x) const { return from_f32<T>(x); }
  float scale = 1;
};
template <>
struct CacheRow<uint8_t> {
  CacheRow(const float* x, int64_t n) {
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      largest = std::isfinite(x[i]) ? std::max(largest, std::abs(x[i]))
                                    : std::numeric_limits<float>::quiet_NaN();
      if (std::isnan(largest)) break;
    }
    if (largest < kSmallestInput) return;
    scale = largest / 127;
    if (!std::isnan(largest)) inverse = 127 / largest;
  }
  uint8_t operator()(float x) const {
    return inverse == 0 ? kKvZeroCode : uint8_t(std::nearbyint(x * inverse) + kKvZeroCode);
  }
  float scale = 0, inverse = 0;
};

template <typename T>
void kv_append(const KvAppend& append, int64_t token_begin, int64_t token_end) {
  const CachePages& cache = append.cache;
  const int64_t head_dim = cache.head_dim;
  for (int64_t head = 0; head < cache.n_kv_heads; ++head) {
    for (int64_t t = token_begin; t < token_end; ++t) {
      const int64_t row = (t * cache.n_kv_heads + head) * head_dim;
      const int64_t matrix = matrix_of(cache, append.pos + t, head);
      const int64_t at = (append.pos + t) % kPositionBlock;
      T* const keys = keys_of<T>(cache, matrix);
      T* const values = values_of<T>(cache, matrix);
      const CacheRow<T> key(append.k + row, head_dim), value(append.v + row, head_dim);
      for (int64_t i = 0; i < head_dim; ++i) {
        keys[panel_offset(at, i, head_dim)] = key(append.k[row + i]);
        values[panel_offset(i, at, kPositionBlock)] = value(append.v[row + i]);
      }
      if (cache.key_scales == nullptr) continue;
      cache.key_scales[matrix * kPositionBlock + at] = key.scale;
      cache.value_scales[matrix * kPositionBlock + at] = value.scale;
    }
  }
}

void rope(float* x, const float* cos_sin, int64_t n_tokens, int64_t n_heads, int64_t head_dim,
          int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const float* angle = cos_sin + t * rotary_dim;
    for (int64_t head = 0; head < n_heads; ++head) {
      float* const row = x + (t * n_heads + head) * head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const float c = angle[2 * i], s = angle[2 * i + 1], a = row[i], b = row[i + half];
        row[i] = a * c - b * s;
        row[i + half] = b * c + a * s;
      }
    }
  }
}

float activated(float x, Activation activation) {
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::GeluErf:
      return 0.5f * x * (1.0f + std::erf(x * 0.707106781f));
    case Activation::GeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.797884561f * (x + 0.044715f * x * x * x)));
    case Activation::Silu:
      return x / (1.0f + std::exp(-x));
  }
  return x;
}

void rms_norm(float* out, const float* x, const float* weight, int64_t n_rows, int64_t dim,
              float eps) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    float sum_sq = 0;
    for (int64_t i = 0; i < dim; ++i) sum_sq += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum_sq / float(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) out[i] = x[i] * scale * weight[i];
  }
}

void layer_norm(float* out, const float* x, const float* weight, const float* bias, int64_t n_rows,
                int64_t dim, float eps, Activation activation) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    float sum = 0, sum_sq = 0;
    for (int64_t i = 0; i < dim; ++i) sum += x[i];
    const float mean = sum / float(dim);
    for (int64_t i = 0; i < dim; ++i) sum_sq += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(sum_sq / float(dim) + eps);
    for (int64_t i = 0; i < dim; ++i) {
      const float normed = (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f);
      out[i] = activated(normed, activation);
    }
  }
}

void activate(float* out, const float* x, const float* bias, int64_t n_rows, int64_t dim,
              Activation activation) {
  for (int64_t r = 0; r < n_rows; ++r, x += dim, out += dim) {
    for (int64_t i = 0; i < dim; ++i)
      out[i] = activated(x[i] + (bias ? bias[i] : 0.0f), activation);
  }
}

void glu(float* out, const float* gate, const float* up, int64_t n, Activation activation) {
  for (int64_t i = 0; i < n; ++i) out[i] = activated(gate[i], activation) * up[i];
}

void clamped_swiglu(float* out, const float* gate, const float* up, int64_t n, float alpha,
                    float limit) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];  // NaN stays
    const float u = std::clamp(up[i], -limit, limit);
    out[i] = (u + 1) * (g / (1 + std::exp(-alpha * g)));
  }
}

void scale_and_cap(float* x, int64_t n, float scale, float softcap) {
  for (int64_t i = 0; i < n; ++i) x[i] = softcap > 0 ? capped(scale * x[i], softcap) : scale * x[i];
}

void add(float* out, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void softmax(float* out, const float* x, int64_t n_rows, int64_t n) {
  for (int64_t r = 0; r < n_rows; ++r, x += n, out += n) {
    const float max = *std::max_element(x, x + n);
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = std::exp(x[i] - max);
      sum += out[i];
    }
    for (int64_t i = 0; i < n; ++i) out[i] /= sum;
  }
}

uint32_t sum_words(const uint32_t* data, int64_t n) {
  uint32_t sum[32] = {};
  for (int64_t i = 0; i < n; i += 32) {
    for (int j = 0; j < 32; ++j) sum[j] += data[i + j];
  }
  for (int j = 1; j < 32; ++j) sum[0] += sum[j];
  return sum[0];
}

double fma_rounds(float* result, int64_t n_rounds) {
  constexpr int kLanes = 40;  // ten vectors of four lanes
  float x[kLanes];
  std::fill(x, x + kLanes, 1e-3f);
  for (int64_t i = 0; i < n_rounds; ++i) {
    for (int j = 0; j < kLanes; ++j) x[j] = x[j] * 0.999f + 1e-3f;
  }
  for (int j = 0; j < kLanes; ++j) *result += x[j];
  return 2.0 * kLanes * double(n_rounds);
}

}  // namespace

const CpuKernels& reference_kernels() {
  static constexpr CpuKernels kKernels = {
      .name = "base",
      .matmul_f32 = matmul<float>,
      .matmul_f16 = matmul<f16>,
      .matmul_bf16 = matmul<bf16>,
      .matmul_codes = reference_matmul_codes,
      .bytes = {.symmetric = reference_matmul_int8,
                .asymmetric = reference_matmul_int8,
                .quantize = reference_quantize_input},
      .attention_f32 = attention<float>,
      .attention_f16 = attention<f16>,
      .attention_u8 = attention<uint8_t>,
      .kv_append_f32 = kv_append<float>,
      .kv_append_f16 = kv_append<f16>,
      .kv_append_u8 = kv_append<uint8_t>,
      .rope = rope,
      .rms_norm = rms_norm,
      .layer_norm = layer_norm,
      .activate = activate,
      .glu = glu,
      .clamped_swiglu = clamped_swiglu,
      .scale_and_cap = scale_and_cap,
      .add = add,
      .softmax = softmax,
      .sum_words = sum_words,
      .fma_rounds = fma_rounds,
  };
  return kKernels;
}

}  // namespace minfer::cpu
